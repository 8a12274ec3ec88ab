"""Who tells a history what became of it: the stack when every unit is ready, and a teardown, which ends it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit import test_node_teardown as teardowns
from tests.unit import test_stack_step as stacks
from tests.unit.role_code import on_path, shared_code

generations = shared_code("node_generations")


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


def installed(state: Path, **told: Any) -> Any:
    """A history of one generation, of which nobody knows yet what became of it."""
    store = generations.Store(str(state))
    entry = {"content": b"1", "mode": 0o644, "owner": os.getuid(), "group": os.getgid(), "scope": "stack"}
    told = {"outcome": "applied", "installed": True, "secret_files": {}, "secrets": {}, **told}
    own = ("number", "files", "content")
    store.add({"/etc/a": entry}, **{**{key: None for key in generations.NEEDED if key not in own}, **told})
    return store


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> stacks.Node:
    on_path(monkeypatch, tmp_path / "bin")
    node = stacks.Node(tmp_path, capsys)
    node.quadlet()
    node.podman(**{"vllm-chat": "one"})
    return node


def test_a_stack_that_is_ready_says_so_of_what_was_installed(stack: stacks.Node) -> None:
    store = installed(stack.root / "state")
    stack.step()
    assert store.read(1)["outcome"] == "ready"
    assert store.read(1)["ready_at"] > 1_700_000_000


def test_a_look_in_check_mode_says_nothing(stack: stacks.Node) -> None:
    store = installed(stack.root / "state")
    stack.step(check=True)
    assert store.read(1)["outcome"] == "applied"


def test_a_stack_that_is_not_ready_says_nothing(stack: stacks.Node) -> None:
    store = installed(stack.root / "state")
    stack.systemd({stacks.TARGET: stacks.active(), stacks.UNIT: stacks.active(ActiveState="activating")})
    stack.step()
    assert store.read(1)["outcome"] == "applied"


def test_half_of_an_installation_is_never_ready(stack: stacks.Node) -> None:
    store = installed(stack.root / "state", outcome="installing", installed=False)
    stack.step()
    assert store.read(1)["outcome"] == "installing"


def test_a_damaged_history_does_not_keep_a_stack_from_being_ready(stack: stacks.Node) -> None:
    store = installed(stack.root / "state")
    (stack.root / "state/generations/0001.json").write_text("{")
    assert stack.step()["states"][stacks.UNIT]["state"] == "ready"
    assert store.all()[0]["outcome"] == "damaged"


@pytest.mark.parametrize("keep", [[], ["images"], ["data"]])
def test_a_teardown_ends_the_history_whatever_it_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], keep: list[str]
) -> None:
    on_path(monkeypatch, tmp_path / "bin")
    node = teardowns.Node(tmp_path, capsys)
    node.brought_up()
    installed(node.state)
    node.down(keep=keep)
    assert not (node.state / "generations").exists()
