"""The manifest of a node: an entry comes before its thing, and what lay there before comes back as it was."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.role_code import manifest_code

node_manifest = manifest_code()
Manifest = node_manifest.Manifest


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def load(state: Path) -> Any:
    return Manifest.load(str(state))


def recorded(state: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((state / "manifest.json").read_text())
    return found


def install(state: Path, path: Path, content: bytes = b"ours", mode: int = 0o644, scope: str = "stack") -> None:
    load(state).install(str(path), content, mode, os.getuid(), os.getgid(), scope)


def test_a_node_without_one_gets_an_empty_one_and_reading_writes_nothing(state: Path) -> None:
    data = load(state).data
    assert data["files"] == data["images"] == {}
    assert all(data[name] == [] for name in node_manifest.LISTS)
    assert not state.exists()


def test_every_node_has_a_salt_of_its_own_that_stays(state: Path) -> None:
    first = load(state)
    first.save()
    assert load(state).data["salt"] == first.data["salt"]
    assert load(state.with_name("other")).data["salt"] != first.data["salt"]


def test_it_is_for_root_only(state: Path) -> None:
    load(state).save()
    assert state.stat().st_mode & 0o777 == 0o700
    assert (state / "manifest.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is damaged"),
        ('{"schema": 1', "is damaged"),
        ("[]", "no object"),
        ('{"schema": 1, "salt": "00", "files": {}}', "lacks images, directories"),
        ('{"schema": 2}', "has schema 2, this toolkit knows 1"),
    ],
)
def test_a_damaged_one_is_an_error_that_names_the_file(state: Path, text: str, said: str) -> None:
    state.mkdir()
    (state / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=said) as error:
        load(state)
    assert str(state / "manifest.json") in str(error.value)


def test_names_and_images_are_recorded_once(state: Path) -> None:
    manifest = load(state)
    for _ in range(2):
        manifest.add("volumes", "v")
        manifest.add_image("r/x@sha256:00", "x")
    assert recorded(state)["volumes"] == ["v"]
    assert recorded(state)["images"] == {"r/x@sha256:00": "x"}


def test_a_file_is_recorded_before_it_is_written(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "etc/new/file"

    def power_cut(target: str, *_: Any) -> None:
        if target == str(path):
            raise KeyboardInterrupt
        really(target, *_)

    really = node_manifest.write_atomically
    monkeypatch.setattr(node_manifest, "write_atomically", power_cut)
    with pytest.raises(KeyboardInterrupt):
        install(state, path)
    assert str(path) in recorded(state)["files"]
    assert not path.exists()
    load(state).remove(str(path))  # an entry without its thing does no harm
    assert recorded(state)["files"] == {}


def test_a_folder_is_recorded_before_it_is_made(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, mode: int) -> None:
        if path != str(state):
            raise KeyboardInterrupt
        really(path, mode)

    really = node_manifest.make_directory
    monkeypatch.setattr(node_manifest, "make_directory", refuse)
    with pytest.raises(KeyboardInterrupt):
        install(state, tmp_path / "a/b/file")
    assert recorded(state)["directories"] == [str(tmp_path / "a")]
    assert not (tmp_path / "a").exists()


def test_folders_are_recorded_outermost_first_and_go_innermost_first(state: Path, tmp_path: Path) -> None:
    path = tmp_path / "a/b/c/file"
    install(state, path)
    assert recorded(state)["directories"] == [str(tmp_path / part) for part in ("a", "a/b", "a/b/c")]
    manifest = load(state)
    manifest.remove(str(path))
    manifest.remove_empty_directories()
    assert not (tmp_path / "a").exists()
    assert recorded(state)["directories"] == []


def test_a_folder_that_somebody_else_uses_by_now_stays(state: Path, tmp_path: Path) -> None:
    path = tmp_path / "a/b/file"
    install(state, path)
    (tmp_path / "a/theirs").write_text("")
    manifest = load(state)
    manifest.remove(str(path))
    manifest.remove_empty_directories()
    assert (tmp_path / "a/theirs").exists()
    assert not (tmp_path / "a/b").exists()
    assert recorded(state)["directories"] == [str(tmp_path / "a")]


def test_a_folder_that_was_there_is_not_ours(state: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    install(state, tmp_path / "a/file")
    manifest = load(state)
    manifest.remove(str(tmp_path / "a/file"))
    manifest.remove_empty_directories()
    assert (tmp_path / "a").is_dir()


def test_a_foreign_file_comes_back_with_mode_owner_and_times(state: Path, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("theirs")
    path.chmod(0o640)
    if os.getuid() == 0:
        os.chown(path, 4242, 4343)
    os.utime(path, (1, 1_000_000_000))
    before = path.stat()
    install(state, path)
    assert path.read_text() == "ours"
    install(state, path, b"ours again")
    load(state).remove(str(path))
    after = path.stat()
    assert path.read_text() == "theirs"
    for part in ("st_mode", "st_uid", "st_gid", "st_mtime"):
        assert getattr(after, part) == getattr(before, part)
    assert not list((state / "backup").iterdir())


def test_it_comes_back_over_the_border_of_a_file_system(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("theirs")
    path.chmod(0o4750)
    if os.getuid() == 0:
        os.chown(path, 4242, 4343)
        path.chmod(0o4750)
    before = path.stat()
    install(state, path)
    really = os.rename

    def rename(source: str, target: str) -> None:
        if Path(source).parent == state / "backup":
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        really(source, target)

    monkeypatch.setattr(node_manifest.os, "rename", rename)
    load(state).remove(str(path))
    after = path.stat()
    assert path.read_text() == "theirs"
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert not list((state / "backup").iterdir())
    assert not list(tmp_path.glob(".vllm-node-*"))


@pytest.mark.parametrize("target", ["nowhere", "/dev/null"])
def test_a_foreign_link_comes_back_as_a_link(state: Path, tmp_path: Path, target: str) -> None:
    path = tmp_path / "vllm-node.target"
    path.symlink_to(target)
    install(state, path)
    assert not path.is_symlink()
    load(state).remove(str(path))
    assert str(path.readlink()) == target


def test_a_run_that_died_after_bringing_back_does_not_remove_what_came_back(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("theirs")
    install(state, path)
    manifest = load(state)
    monkeypatch.setattr(manifest, "save", lambda: None)
    manifest.remove(str(path))
    load(state).remove(str(path))
    assert path.read_text() == "theirs"
    assert recorded(state)["files"] == {}


def test_a_run_that_died_while_keeping_aside_can_keep_aside_again(state: Path, tmp_path: Path) -> None:
    path = tmp_path / "link"
    path.symlink_to("nowhere")
    load(state)._keep_aside(str(path))
    install(state, path)
    load(state).remove(str(path))
    assert str(path.readlink()) == "nowhere"


def test_a_file_that_is_gone_already_is_no_error(state: Path, tmp_path: Path) -> None:
    install(state, tmp_path / "file")
    (tmp_path / "file").unlink()
    load(state).remove(str(tmp_path / "file"))
    assert recorded(state)["files"] == {}


def test_a_write_leaves_the_old_or_the_new_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    node_manifest.write_atomically(str(path), b"old", 0o600)
    assert path.stat().st_mode & 0o777 == 0o600

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(node_manifest.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        node_manifest.write_atomically(str(path), b"new", 0o644)
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_missing_folders_are_named_outermost_first(tmp_path: Path) -> None:
    assert node_manifest.missing_directories(str(tmp_path)) == []
    assert node_manifest.missing_directories(str(tmp_path / "a/b")) == [str(tmp_path / "a"), str(tmp_path / "a/b")]
