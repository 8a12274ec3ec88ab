"""The history of a node: whole or damaged, bounded, without secrets, and never better than what was seen."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.unit.role_code import manifest_code, shared_code

manifest_code()
generations = shared_code("node_generations")
recorder = shared_code("generation_recorder")
SECRET = "hush-hush-4711"


class Node:
    """A node in a folder: what is installed there is told to its history as `node_apply` does it."""

    def __init__(self, root: Path) -> None:
        self.root, self.state = root, root / "state"
        self.store = generations.Store(str(self.state))

    @property
    def manifest(self) -> Any:
        return manifest_code().Manifest.load(str(self.state))

    def entry(self, content: str, scope: str = "stack", mode: int = 0o644) -> dict[str, Any]:
        ids = {"owner": os.getuid(), "group": os.getgid()}
        return {"content": content.encode(), "mode": mode, "scope": scope, **ids}

    def begin(self, run: str, files: dict[str, str], scope: str = "stack", **more: Any) -> Any:
        told = recorder.Recorder(self.store, self.manifest, {"id": run, "verb": "up", **more.pop("told", {})})
        wanted = {str(self.root / name): self.entry(text, scope) for name, text in files.items()}
        hidden = {str(self.root / name) for name in more.pop("hidden", ())}
        told.begin((scope,), wanted, hidden, more.pop("secrets", {}), more.pop("units", []))
        return told

    def install(self, run: str, files: dict[str, str], scope: str = "stack", keep: int = 5, **more: Any) -> None:
        told = self.begin(run, files, scope, **more)
        manifest = self.manifest
        for path, known in list(manifest.data["files"].items()):
            if known["scope"] == scope and path not in {str(self.root / name) for name in files}:
                manifest.remove(path)
        for name, text in files.items():
            secret = name in more.get("hidden", ())
            manifest.install(str(self.root / name), text.encode(), 0o644, os.getuid(), os.getgid(), scope, secret=secret)
        told.installed(keep)

    def outcomes(self) -> list[str]:
        return [one["outcome"] for one in self.store.all()]

    def kept(self, number: int) -> dict[str, str]:
        files = self.store.files(number)
        return {os.path.relpath(path, self.root): entry["content"].decode() for path, entry in files.items()}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr("os.fsync", lambda _: None)
    return Node(tmp_path)


def test_a_generation_holds_the_files_as_they_were_installed(node: Node) -> None:
    node.install("r1", {"a": "1", "sub/b": "2"})
    node.install("r2", {"a": "3"})
    assert node.kept(1) == {"a": "1", "sub/b": "2"}
    assert node.kept(2) == {"a": "3"}
    folder = node.state / "generations"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "0001.json").stat().st_mode & 0o777 == 0o600
    kept = folder / "content" / node.store.read(1)["content"]
    assert (kept / str(node.root / "sub/b").lstrip("/")).read_text() == "2"


def test_one_run_is_one_generation_in_however_many_calls_it_installs(node: Node) -> None:
    node.install("r1", {"host": "1"}, scope="host")
    node.install("r1", {"a": "1"})
    assert node.kept(1) == {"host": "1", "a": "1"}
    assert node.store.numbers() == [1]


def test_a_run_that_goes_back_makes_another_generation(node: Node) -> None:
    node.install("r1", {"a": "1"})
    node.store.ready()
    node.install("r2", {"a": "2"})
    node.store.failed("r2", "it dies")
    node.install("r2", {"a": "1"}, told={"back_to": 1, "instead_of": 2})
    node.store.ready()
    assert node.outcomes() == ["ready", "rolled_back", "ready"]
    assert node.store.read(2)["reason"] == "it dies"
    assert node.store.read(3)["content"] == node.store.read(1)["content"]


def test_a_scope_that_did_not_change_stays_in_the_picture(node: Node) -> None:
    node.install("r1", {"host": "1"}, scope="host")
    node.install("r1", {"a": "1"})
    node.install("r2", {"a": "2"})
    assert node.kept(2) == {"host": "1", "a": "2"}


def test_what_is_of_no_scope_that_can_go_back_is_left_out(node: Node) -> None:
    node.manifest.install(str(node.root / "repo"), b"x", 0o644, os.getuid(), os.getgid(), "packages")
    node.install("r1", {"a": "1"})
    assert node.kept(1) == {"a": "1"}


def test_what_ran_before_a_history_was_kept_can_be_gone_back_to(node: Node) -> None:
    node.manifest.install(str(node.root / "a"), b"old", 0o644, os.getuid(), os.getgid(), "stack")
    node.install("r1", {"a": "new"})
    assert node.outcomes() == ["found", "applied"]
    assert node.kept(1) == {"a": "old"}


def test_secrets_are_nowhere_in_it(node: Node) -> None:
    files = {"a": "1", "keys/key": SECRET}
    node.install("r1", files, hidden=["keys/key"], secrets={"password": SECRET})
    node.install("r2", {**files, "a": "2"}, hidden=["keys/key"], secrets={"password": SECRET})
    assert node.kept(2) == {"a": "2"}
    for path in (node.state / "generations").rglob("*"):
        assert SECRET not in path.name
        assert not path.is_file() or SECRET not in path.read_text()
    told = node.store.read(2)
    # And the files' names do not matter: a certificate stays with the key that it came with.
    node.install("r3", {**files, "keys/crt": "public"}, hidden=["keys/key"])
    assert node.kept(3) == {"a": "1"}
    assert len(told["secrets"]["password"]) == len(told["secret_files"][str(node.root / "keys/key")]) == 24


def test_a_secret_file_of_an_earlier_manifest_is_known_by_its_mode(node: Node) -> None:
    node.manifest.install(str(node.root / "keys/key"), SECRET.encode(), 0o600, os.getuid(), os.getgid(), "host")
    node.install("r1", {"a": "1"})
    assert node.kept(1) == {"a": "1"}
    assert list(node.store.read(1)["secret_files"]) == [str(node.root / "keys/key")]


def test_another_secret_is_told_without_its_value(node: Node) -> None:
    for run, value in (("r1", "one"), ("r2", "two")):
        node.install(run, {"a": run}, secrets={"password": value})
    assert "secrets: password" in node.store.read(2)["changes"]


def test_no_more_than_so_many_are_kept_and_no_content_without_its_entry(node: Node) -> None:
    for number in range(9):
        node.install(f"r{number}", {"a": str(number)}, keep=3)
        node.store.ready()
    assert node.store.numbers() == [7, 8, 9]
    assert len(list((node.state / "generations/content").iterdir())) == 3
    assert node.kept(7) == {"a": "6"}


def test_what_was_ready_last_is_kept_however_many_fail_after_it(node: Node) -> None:
    node.install("r0", {"a": "good"}, keep=2)
    node.store.ready()
    for number in range(1, 6):
        node.install(f"r{number}", {"a": str(number)}, keep=2)
        node.store.failed(f"r{number}", "no")
    assert node.store.numbers() == [1, 5, 6]
    assert node.kept(1) == {"a": "good"}


def test_going_back_and_forth_does_not_drop_what_is_gone_back_to(node: Node) -> None:
    for number in range(30):
        node.install(f"r{number}", {"a": str(number % 2)}, keep=2)
        node.store.ready()
    assert len(node.store.numbers()) == 8
    assert len(list((node.state / "generations/content").iterdir())) == 2


@pytest.mark.parametrize("moment", ["before", "half"])
def test_an_interrupted_run_never_counts_as_ready(node: Node, moment: str) -> None:
    node.install("r1", {"a": "1"})
    node.store.ready()
    node.begin("r2", {"a": "2", "b": "2"})
    if moment == "half":
        node.manifest.install(str(node.root / "a"), b"2", 0o644, os.getuid(), os.getgid(), "stack")
    # Something makes all units ready: they are not those of the second generation.
    node.store.ready()
    assert node.outcomes() == ["ready", "installing"]
    node.install("r3", {"a": "3"})
    assert node.outcomes() == ["ready", "interrupted", "applied"]


def test_a_run_that_finds_all_files_of_an_interrupted_one_says_so(node: Node) -> None:
    node.begin("r1", {"a": "1"})
    node.manifest.install(str(node.root / "a"), b"1", 0o644, os.getuid(), os.getgid(), "stack")
    recorder.Recorder(node.store, node.manifest, {"id": "r2"}).nothing_changed()
    assert node.outcomes() == ["applied"]
    node.store.ready()
    assert node.outcomes() == ["ready"]


def test_files_that_are_not_all_there_leave_it_interrupted(node: Node) -> None:
    node.begin("r1", {"a": "1", "b": "1"})
    node.manifest.install(str(node.root / "a"), b"1", 0o644, os.getuid(), os.getgid(), "stack")
    recorder.Recorder(node.store, node.manifest, {"id": "r2"}).nothing_changed()
    assert node.outcomes() == ["installing"]


def test_what_failed_and_is_ready_later_is_ready(node: Node) -> None:
    node.install("r1", {"a": "1"})
    node.store.failed("r1", "no model")
    assert node.store.read(1)["reason"] == "no model"
    node.store.ready()
    assert (node.store.read(1)["outcome"], node.store.read(1)["reason"]) == ("ready", None)


def test_what_was_ready_does_not_fail_by_another_run(node: Node) -> None:
    node.install("r1", {"a": "1"})
    node.store.ready()
    node.store.failed("r2", "the disk is full")
    assert node.outcomes() == ["ready"]
    node.store.failed("r1", "it answers nonsense")
    assert node.outcomes() == ["failed"]


def _cut(node: Node) -> None:
    path = node.state / "generations/0001.json"
    path.write_text(path.read_text()[:100])


def _alter_list(node: Node) -> None:
    path = node.state / "generations/0001.json"
    data = json.loads(path.read_text())
    next(iter(data["files"].values()))["mode"] = 0o777
    path.write_text(json.dumps(data))


def _alter_file(node: Node) -> None:
    kept = node.state / "generations/content" / node.store.read(1)["content"]
    (kept / str(node.root / "a").lstrip("/")).write_text("evil")


def _drop_files(node: Node) -> None:
    shutil.rmtree(node.state / "generations/content" / node.store.read(1)["content"])


@pytest.mark.parametrize(("harm", "listed"), [(_cut, True), (_alter_list, True), (_alter_file, False), (_drop_files, False)])
def test_a_damaged_one_is_named_and_nobody_goes_back_to_it(node: Node, harm: Any, listed: bool) -> None:
    node.install("r1", {"a": "1"})
    node.install("r2", {"a": "2"})
    harm(node)
    with pytest.raises(ValueError, match="generation 1 is damaged"):
        node.store.files(1)
    assert node.outcomes()[0] == ("damaged" if listed else "interrupted")
    # It hinders nobody.
    node.install("r3", {"a": "3"})
    node.store.ready()
    assert node.kept(3) == {"a": "3"}
    assert node.kept(2) == {"a": "2"}


def test_content_that_was_damaged_is_laid_down_anew(node: Node) -> None:
    node.install("r1", {"a": "1"})
    _alter_file(node)
    node.install("r2", {"a": "2"})
    node.install("r3", {"a": "1"})
    assert node.kept(1) == node.kept(3) == {"a": "1"}


def test_a_write_that_breaks_off_leaves_what_was_there(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.install("r1", {"a": "1"})

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    for name in ("chmod", "rename"):
        with monkeypatch.context() as patch:
            patch.setattr(f"os.{name}", full)
            with pytest.raises(OSError, match="No space left"):
                node.begin("r2", {"a": "2"})
    assert node.store.numbers() == [1]
    assert node.kept(1) == {"a": "1"}
    assert [path.name for path in (node.state / "generations/content").iterdir()] == [node.store.read(1)["content"]]


def test_units_are_kept_as_far_as_their_files_are(node: Node) -> None:
    units = [{"unit": "x.service", "ready": {"url": "u"}}, {"unit": "y.service"}]
    node.install("r1", {"quadlets/x.container": "Image=r/x@sha256:1\n"}, units=units)
    told = node.store.read(1)
    assert (told["units"], told["images"]) == ([units[0]], {"x": "r/x@sha256:1"})
