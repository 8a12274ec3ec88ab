"""SHA-256 of many and of large files, with all cores and flat memory.

Threads are enough: hashlib lets go of the interpreter while it works on a block, and so does a read. Each thread has
one block of memory for its whole life, and asks the kernel for what it will read next while it hashes what it has.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Progress = Callable[[int], None]
"""Called with how many bytes were hashed since the last call."""

_Item = TypeVar("_Item")

BLOCK_BYTES = 1 << 20
_AHEAD_BYTES = 16 << 20


class _GivenUpError(Exception):
    """Another thread has failed; what this one does is not needed any more."""


class ChangedWhileReadError(OSError):
    """A file was written to while it was hashed: what was read belongs to no state of it."""


@dataclass(frozen=True)
class FileHash:
    """What a file held: lower-case hexadecimal SHA-256, and size in bytes."""

    sha256: str
    bytes: int


def sha256_file(path: Path, progress: Progress | None = None) -> tuple[str, int]:
    """SHA-256 (lower-case hexadecimal) and size in bytes of one regular file; symbolic links are followed.

    Raises OSError with the file's name: what the system says, or that it is no regular file, or ChangedWhileReadError.
    """
    found = _hash(path, bytearray(BLOCK_BYTES), progress)
    return found.sha256, found.bytes


def hash_files(
    paths: Iterable[Path],
    workers: int | None = None,
    progress: Progress | None = None,
    *,
    on_error: Callable[[Path, OSError], None] | None = None,
    follow: bool = True,
) -> dict[Path, FileHash]:
    """Hash of each of the paths, by path as it was given, in the order given.

    `workers` is how many files are read at a time; by default one a core that this process may use. Large files come
    first, so that none of them is left alone at the end. `progress` is never called by two threads at once.
    Symbolic links are followed unless `follow` is False; then they are no regular files.

    A file that cannot be read ends the work with OSError, as of `sha256_file`; with `on_error`, never called by two
    threads at once either, it is told there, and left out.
    """
    wanted = list(dict.fromkeys(paths))
    found: dict[Path, FileHash] = {}
    lock = threading.Lock()

    def work(path: Path, block: bytearray, told: Progress) -> None:
        try:
            found[path] = _hash(path, block, told, follow=follow)
        except OSError as error:
            if on_error is None:
                raise
            with lock:
                on_error(path, error)

    each_file(wanted, work, _size, workers, progress)
    return {path: found[path] for path in wanted if path in found}


def each_file(
    items: Sequence[_Item],
    work: Callable[[_Item, bytearray, Progress], None],
    size: Callable[[_Item], int],
    workers: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Do `work(item, block, progress)` for all items in threads, large ones first; each thread has one block.

    The first exception ends the work and is raised: the other threads end where they next tell their progress.
    """
    queue = iter(sorted(items, key=size, reverse=True))
    failures: list[BaseException] = []
    lock = threading.Lock()

    def told(count: int) -> None:
        if failures:
            raise _GivenUpError
        if progress is not None:
            with lock:
                progress(count)

    def following() -> _Item | None:
        with lock:
            return None if failures else next(queue, None)

    def run() -> None:
        block = bytearray(BLOCK_BYTES)
        try:
            while (item := following()) is not None:
                work(item, block, told)
        except BaseException as error:  # raised in the thread of whoever called, where it belongs
            failures.append(error)

    count = max(1, min(workers or len(os.sched_getaffinity(0)), len(items)))
    threads = [threading.Thread(target=run, name=f"file-{number}", daemon=True) for number in range(count)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as error:  # Ctrl-C
        failures.append(error)
        raise
    if failures:
        raise failures[0]


def blocks(descriptor: int, block: bytearray) -> Iterator[memoryview]:
    """An open file from its start, piece by piece in the memory of `block`: each piece is valid until the next one.

    What the file gets beyond the size that it has now is not read: that might never end.
    """
    view = memoryview(block)
    size = os.fstat(descriptor).st_size
    offset = asked = 0
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    while offset < size:
        if asked - offset < _AHEAD_BYTES // 2:
            os.posix_fadvise(descriptor, asked, _AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
            asked += _AHEAD_BYTES
        count = os.preadv(descriptor, [view[: size - offset]], offset)
        if not count:
            return
        offset += count
        yield view[:count]


def open_regular(path: Path, *, follow: bool = True) -> int:
    """Descriptor of a regular file, for reading. Raises OSError for anything else, without waiting for it."""
    # A named pipe would hold up whoever opens it until somebody writes; O_NONBLOCK does nothing to a file.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no regular file")
    return descriptor


def unchanged(path: Path, before: os.stat_result, after: os.stat_result) -> None:
    """Raises ChangedWhileReadError when a file was written to between the two."""
    if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
        raise ChangedWhileReadError(f"{path} was written to while it was read; repeat this when nothing writes there")


def _hash(path: Path, block: bytearray, progress: Progress | None, *, follow: bool = True) -> FileHash:
    descriptor = open_regular(path, follow=follow)
    try:
        before = os.fstat(descriptor)
        digest = hashlib.sha256(usedforsecurity=False)
        size = 0
        for piece in blocks(descriptor, block):
            digest.update(piece)
            size += len(piece)
            if progress is not None:
                progress(len(piece))
        after = os.fstat(descriptor)
    except OSError as error:
        raise _named(error, path) from error
    finally:
        os.close(descriptor)
    unchanged(path, before, after)
    return FileHash(digest.hexdigest(), size)


def _named(error: OSError, path: Path) -> OSError:
    """The same error with the name of the file, which reads of a descriptor do not have."""
    return error if error.filename or not error.errno else OSError(error.errno, error.strerror, str(path))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # opening it will say what is wrong
