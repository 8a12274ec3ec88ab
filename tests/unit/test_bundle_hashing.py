"""Hashing of trees: right, told as it goes, with flat memory, and honest about what cannot be read."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vllm_node.bundle.copying import copy_file
from vllm_node.bundle.hashing import BLOCK_BYTES, ChangedWhileReadError, FileHash, hash_files, sha256_file

SIZES = [0, 1, 511, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 7]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"file-{size}" for size in SIZES]
    for path, size in zip(paths, SIZES, strict=True):
        path.write_bytes(random.Random(size).randbytes(size))
    return paths


@pytest.mark.parametrize("workers", [None, 1, 3, 50])
def test_the_same_as_everybodys(files: list[Path], workers: int | None) -> None:
    wanted = {path: FileHash(hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size) for path in files}
    found = hash_files(files, workers)
    assert found == wanted
    assert list(found) == files
    assert sha256_file(files[-1]) == (wanted[files[-1]].sha256, SIZES[-1])


def test_progress_adds_up_and_comes_from_one_thread_at_a_time(files: list[Path]) -> None:
    told: list[int] = []
    inside = threading.Lock()

    def progress(count: int) -> None:
        assert inside.acquire(blocking=False), "two threads at once"
        told.append(count)
        inside.release()

    hash_files(files * 3, 4, progress)
    assert sum(told) == sum(SIZES), "a file that is named twice is read once"


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "unreadable link"])
def test_what_is_no_file_is_an_error_with_its_name(tmp_path: Path, files: list[Path], kind: str) -> None:
    odd = tmp_path / "odd"
    if kind == "folder":
        odd.mkdir()
    elif kind == "pipe":
        os.mkfifo(odd)  # nobody writes: a plain open would wait for ever
    elif kind == "unreadable link":
        odd.symlink_to("nothing")
    with pytest.raises(OSError, match="odd"):
        hash_files([*files, odd])
    seen: list[Path] = []
    found = hash_files([*files, odd], on_error=lambda path, _error: seen.append(path))
    assert (seen, set(found)) == ([odd], set(files))


def test_links_are_followed_unless_told_otherwise(tmp_path: Path, files: list[Path]) -> None:
    link = tmp_path / "link"
    link.symlink_to(files[-1])
    assert hash_files([link])[link] == hash_files([files[-1]])[files[-1]]
    with pytest.raises(OSError):
        hash_files([link], follow=False)


def test_a_file_that_grows_while_it_is_read_is_refused(files: list[Path], tmp_path: Path) -> None:
    grown = 0

    def grow(_count: int) -> None:
        nonlocal grown
        grown += 1
        assert grown < 100, "what is added is read as well, without end"
        with files[-1].open("ab") as file:
            file.write(b"more")

    with pytest.raises(ChangedWhileReadError):
        sha256_file(files[-1], grow)
    grown = 0
    with pytest.raises(ChangedWhileReadError):
        copy_file(files[-1], tmp_path / "copy", bytearray(BLOCK_BYTES), grow)


def test_a_failure_ends_the_work_soon(tmp_path: Path) -> None:
    """Large files come first; a small one that cannot be read must not wait for all of them."""
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(1 << 30)
    read = 0

    def count(size: int) -> None:
        nonlocal read
        read += size

    with pytest.raises(OSError, match="absent"):
        hash_files([large, tmp_path / "absent"], 2, count)
    assert read < 1 << 29


def test_memory_stays_flat(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(200 << 20)
    code = (
        "import sys\nfrom pathlib import Path\nfrom vllm_node.bundle.hashing import hash_files\n"
        "hash_files([Path(sys.argv[1])], 2)\n"
        "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(large)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 40 << 10, "KiB; the interpreter alone is half of it"
