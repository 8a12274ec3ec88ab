"""The reader of a tree: what it has read is on record, it can be ended, and what changes under it is not vouched for."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.role_code import shared_code

reading = shared_code("model_reading")
Mark = shared_code("model_mark").Mark
SMALL = hashlib.sha256(b"small").hexdigest()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file, and one that gives nothing and never ends."""
    monkeypatch.setattr(reading, "RUNTIME", str(tmp_path / "run"))
    monkeypatch.setattr(reading, "_SAVE_EVERY_S", 0.0)
    monkeypatch.setattr(reading, "_TELL_EVERY_S", 0.0)
    (tmp_path / "small").write_bytes(b"small")
    os.mkfifo(tmp_path / "endless")
    return tmp_path


def start(root: Path, key: str, **wanted: str) -> Any:
    one = reading.Reading("chat", key)
    one.start(str(root), wanted, Mark(str(root / "mark")), 2)
    return one


def wait(until: Any) -> None:
    end = time.monotonic() + 20
    while not until():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_it_reads_to_the_end_and_says_so(root: Path) -> None:
    one = start(root, "key", small=SMALL)
    wait(lambda: not one.is_running())
    told = one.told()
    assert (told["ended"], told["differences"], told["bytes"], told["total_bytes"]) == (True, {}, 5, 5)
    assert Mark.load(str(root / "mark")).vouches("small", (root / "small").stat(), SMALL)
    assert reading.Reading("chat", "other").told() is None


def test_what_differs_or_cannot_be_read_is_told_and_not_vouched_for(root: Path) -> None:
    one = start(root, "key", small="0" * 64, gone="0" * 64)
    wait(lambda: not one.is_running())
    assert one.told()["differences"] == {
        "small": f"has other content (SHA-256 {SMALL[:12]}… instead of {'0' * 12}…)",
        "gone": "cannot be read: No such file or directory",
    }
    assert Mark.load(str(root / "mark")).files == {}


def test_it_says_how_far_it_is_and_what_it_has_read_outlives_it(root: Path) -> None:
    one = start(root, "key", small=SMALL, endless="0" * 64)
    wait(lambda: (one.told() or {}).get("bytes") == 5 and Mark.load(str(root / "mark")).files)
    assert one.is_running()
    assert one.told()["ended"] is False
    os.kill(int((root / "run/chat.lock").read_text()), signal.SIGKILL)
    wait(lambda: not one.is_running())
    assert one.told()["ended"] is False
    assert Mark.load(str(root / "mark")).vouches("small", (root / "small").stat(), SMALL)


def test_a_reader_of_another_manifest_is_ended_and_one_of_the_same_is_not(root: Path) -> None:
    one = start(root, "old", endless="0" * 64)
    assert reading.Reading("chat", "old").is_running()
    assert not reading.Reading("chat", "new").is_running()
    assert not one.is_running()


def test_all_readers_can_be_ended(root: Path) -> None:
    one = start(root, "key", endless="0" * 64)
    reading.end_all()
    assert not one.is_running()


def test_a_file_that_changes_while_it_is_read_is_not_vouched_for(root: Path) -> None:
    path = root / "file"
    path.write_bytes(bytes(3 << 20))

    def grow(_: int) -> None:
        with path.open("ab") as stream:
            stream.write(b"x")

    with pytest.raises(OSError, match="written to while it was read"):
        reading.hash_file(str(path), memoryview(bytearray(1 << 20)), grow)


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (9 << 20) + 5])
def test_hashes_are_those_of_the_content(root: Path, size: int) -> None:
    path, counts = root / "file", list[int]()
    data = os.urandom(size)
    path.write_bytes(data)
    status, sha256 = reading.hash_file(str(path), memoryview(bytearray(1 << 20)), counts.append)
    assert sha256 == hashlib.sha256(data).hexdigest()
    assert sum(counts) == size == status.st_size


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1}', '{"schema": 1, "manifest": null, "files": {"a": []}}', '{"schema": 2, "manifest": null, "files": {}}'])
def test_a_mark_that_cannot_be_read_vouches_for_nothing(root: Path, text: str) -> None:
    (root / "mark").write_text(text)
    assert Mark.load(str(root / "mark")).files == {}


@pytest.mark.parametrize("change", ["size", "time", "inode", "hash"])
def test_a_mark_vouches_for_nothing_else(root: Path, change: str) -> None:
    path, mark = root / "small", Mark(str(root / "mark"))
    mark.note("small", path.stat(), SMALL)
    mark.save()
    mark = Mark.load(str(root / "mark"))
    assert mark.vouches("small", path.stat(), SMALL)
    status = path.stat()
    if change == "size":
        path.write_bytes(b"smaller")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "time":
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    elif change == "inode":
        (root / "copy").write_bytes(b"small")
        os.utime(root / "copy", ns=(status.st_atime_ns, status.st_mtime_ns))
        (root / "copy").replace(path)
    assert not mark.vouches("small", path.stat(), "0" * 64 if change == "hash" else SMALL)
