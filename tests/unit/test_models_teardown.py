"""A teardown takes what was delivered, leaves what is the site's, and keeps models only when it is asked to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.role_code import answers, calls, fast_clock, load, manifest_code, on_path, program, run_module

PATTERN = "/srv/models(/.*)?"


class Node:
    """A node to which a model was brought, with the programs that teardown calls."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.capsys, self.state, self.store = root, capsys, root / "state", root / "store/models"
        self.module = load("roles/teardown/library/node_teardown.py")
        self.module.STORAGE, self.module.RUNTIME = str(root / "storage"), str(root / "run")
        for name in ("systemctl", "podman"):
            program(root / "bin", name)
        self.semanage(PATTERN)
        manifest = manifest_code().Manifest.load(str(self.state))
        manifest.make_directories(str(self.store))
        self.tree, self.mark = self.store / "chat", self.store / ".chat.json"
        self.parts = [Path(f"{self.tree}.incoming"), Path(f"{self.mark}.incoming")]
        manifest.add_model(str(self.tree), str(self.mark), [str(part) for part in self.parts])
        manifest.add("fcontexts", PATTERN)
        for folder in (self.tree, self.parts[0]):
            folder.mkdir()
            (folder / "weights").write_text("x")
        for path in (self.mark, self.parts[1]):
            path.write_text("{}")

    def semanage(self, *known: str) -> None:
        lines = "\n".join(f"{pattern} all files system_u:object_r:container_file_t:s0" for pattern in known)
        program(self.root / "bin", "semanage", answers({"fcontext --list": (0, lines), "fcontext --delete": (0, "")}))

    def down(self, *keep: str, check: bool = False) -> dict[str, Any]:
        arguments = {"state_dir": str(self.state), "target": "vllm-node.target", "keep": list(keep)}
        return run_module(self.module, self.capsys, **arguments, _ansible_check_mode=check)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Node:
    on_path(monkeypatch, tmp_path / "bin")
    monkeypatch.setattr("os.fsync", lambda _: None)
    fast_clock(monkeypatch)
    return Node(tmp_path, capsys)


def test_delivered_models_go_with_all_that_lies_beside_them(node: Node) -> None:
    told = node.down()
    assert (told["left"], told["kept"]) == ([], [])
    assert told["removed"] == [f"model {node.tree}", f"SELinux file context {PATTERN}"]
    assert not (node.root / "store").exists()
    assert not node.state.exists()
    assert ["semanage", "fcontext", "--delete", PATTERN] in calls(node.root / "bin", "semanage")


def test_what_the_site_has_in_the_store_stays(node: Node) -> None:
    (node.store / "theirs").mkdir()
    assert node.down()["left"] == []
    assert [path.name for path in node.store.iterdir()] == ["theirs"]


def test_models_are_kept_when_asked_and_go_the_next_time(node: Node) -> None:
    told = node.down("models")
    assert told["kept"] == [{"kind": "model", "name": str(node.tree)}]
    assert sorted(path.name for path in node.store.iterdir()) == [".chat.json", "chat"]
    assert calls(node.root / "bin", "semanage") == []
    record = json.loads((node.state / "manifest.json").read_text())
    assert list(record["models"]) == [str(node.tree)]
    assert record["fcontexts"] == [PATTERN]
    assert node.down()["kept"] == []
    assert not node.state.exists()


def test_an_unfinished_delivery_is_not_kept(node: Node) -> None:
    manifest_code().remove_path(str(node.tree))
    told = node.down("models")
    assert told["kept"] == []
    assert not (node.root / "store").exists()


def test_a_rule_that_somebody_has_removed_is_no_trouble(node: Node) -> None:
    node.semanage()
    told = node.down()
    assert told["left"] == []
    assert not [one for one in calls(node.root / "bin", "semanage") if "--delete" in one]


def test_a_rule_that_cannot_be_removed_is_told_and_stays_on_record(node: Node) -> None:
    program(node.root / "bin", "semanage", answers({"fcontext --list": (0, PATTERN), "fcontext --delete": (1, "busy")}))
    assert node.down()["left"] == [f"SELinux file context {PATTERN}: busy"]
    assert json.loads((node.state / "manifest.json").read_text())["fcontexts"] == [PATTERN]


def test_a_tree_that_cannot_be_removed_is_told_and_stays_on_record(node: Node) -> None:
    def refuse(path: str) -> None:
        raise OSError(16, "Device or resource busy", path)

    node.module.remove_path = refuse
    told = node.down()
    assert "Device or resource busy" in told["left"][0]
    assert told["removed"] == [f"SELinux file context {PATTERN}"]
    assert list(json.loads((node.state / "manifest.json").read_text())["models"]) == [str(node.tree)]


def test_check_mode_lists_them_and_removes_nothing(node: Node) -> None:
    told = node.down(check=True)
    assert told["removed"] == [f"model {node.tree}", f"SELinux file context {PATTERN}"]
    assert node.tree.is_dir()
    assert not [one for one in calls(node.root / "bin", "semanage") if "--delete" in one]


def test_a_record_of_an_earlier_version_has_no_models(node: Node) -> None:
    path = node.state / "manifest.json"
    data = json.loads(path.read_text())
    del data["models"], data["fcontexts"]
    path.write_text(json.dumps(data))
    assert node.down()["left"] == []
    assert node.tree.is_dir()
