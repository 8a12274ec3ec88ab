"""Copies whose content is hashed on the way, so that a bundle's sums are those of what was read at its origin."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from vllm_node.bundle.hashing import FileHash, Progress, blocks, open_regular, unchanged


def copy_file(source: Path, target: Path, block: bytearray, progress: Progress | None = None) -> FileHash:
    """Copy the content of a regular file to `target`, which must not be there, and put it on the disk.

    Raises OSError, and ChangedWhileReadError when somebody wrote to the source meanwhile.
    """
    reading = open_regular(source)
    try:
        before = os.fstat(reading)
        found = write_file(target, blocks(reading, block), progress)
        after = os.fstat(reading)
    finally:
        os.close(reading)
    unchanged(source, before, after)
    return found


def write_file(target: Path, pieces: Iterable[memoryview], progress: Progress | None = None) -> FileHash:
    """Write pieces to the new file `target`, and put it on the disk; returns what it holds. Raises OSError."""
    digest = hashlib.sha256(usedforsecurity=False)
    size = 0
    # Not through a link, and not over anything: nobody else makes this file.
    writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        for piece in pieces:
            digest.update(piece)
            _write(writing, piece)
            size += len(piece)
            if progress is not None:
                progress(len(piece))
        os.fsync(writing)
    finally:
        os.close(writing)
    return FileHash(digest.hexdigest(), size)


def sync(path: Path) -> None:
    """Put a file, or the names in a folder, on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(descriptor: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]
