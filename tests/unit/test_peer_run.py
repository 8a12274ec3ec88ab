"""The module that runs the other load generator on a node: in the pinned image, shut in, and nothing stays."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.role_code import calls, load, on_path, program, run_module

REFERENCE = "registry.example/vllm@sha256:" + "1" * 64


class Node:
    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.capsys, self.module = root, capsys, load("roles/benchmark/library/peer_run.py")
        self.folder, self.bin = root / "run", root / "bin"
        self.module.FOLDER, self.module.POLL_S = str(self.folder), 0.01
        self.systemd(running=False)
        program(self.bin, "systemd-run")
        program(self.bin, "podman")

    def systemd(self, running: bool) -> None:
        program(self.bin, "systemctl", f'[ "$1" != is-active ] || exit {0 if running else 3}')

    def run(self, state: str, **more: Any) -> dict[str, Any]:
        return run_module(self.module, self.capsys, state=state, **more)

    def sent(self, name: str) -> dict[str, str]:
        """A file that has been brought to the node for a run, by the name that it will have there."""
        path = self.root / "brought"
        path.write_text("{}\n")
        return {name: str(path)}

    def begin(self, **more: Any) -> dict[str, Any]:
        given = {"words": ["--model", "tiny"], "model": "/srv/models/tiny", "sent": self.sent("trace.jsonl"), **more}
        return self.run("begin", reference=REFERENCE, **given)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Node:
    on_path(monkeypatch, tmp_path / "bin")
    return Node(tmp_path, capsys)


def test_it_runs_in_the_pinned_image_with_what_it_needs_and_nothing_else(node: Node) -> None:
    assert node.begin(cpus="6-7", limit_s=90, environment={"PYTHONHASHSEED": "3"})["running"] is True
    assert (node.folder / "trace.jsonl").read_text() == "{}\n"
    assert not (node.root / "brought").exists()
    assert node.folder.stat().st_mode & 0o777 == 0o700
    _, words = calls(node.bin, "systemd-run")
    assert {"--property=RuntimeMaxSec=90", "--property=CPUAffinity=6-7", "--pull=never", "--read-only", "--rm"} <= set(words)
    assert {"--cap-drop=all", "--security-opt=no-new-privileges", "--network=host", "--http-proxy=false"} <= set(words)
    assert {"--env=HF_HUB_OFFLINE=1", "--env=PYTHONHASHSEED=3"} <= set(words)
    volumes = [after for before, after in itertools.pairwise(words) if before == "--volume"]
    assert volumes == ["/srv/models/tiny:/model:ro", f"{node.folder}:/peer:rw,Z"]
    assert words[words.index("--entrypoint") :] == ["--entrypoint", "vllm", REFERENCE, "bench", "serve", "--model", "tiny"]


def test_two_runs_do_not_measure_each_other(node: Node) -> None:
    node.systemd(running=True)
    told = node.begin()
    assert told["failed"] is True
    assert "systemctl stop vllm-node-peer.service" in told["msg"]
    assert calls(node.bin, "systemd-run") == []


def test_what_did_not_begin_leaves_nothing(node: Node) -> None:
    program(node.bin, "systemd-run", "echo no such unit type >&2; exit 1")
    told = node.begin()
    assert told["msg"] == "vllm bench serve cannot be started: no such unit type"
    assert not node.folder.exists()


def test_a_file_cannot_be_put_elsewhere(node: Node) -> None:
    node.begin(sent=node.sent("../../escaped"))
    assert (node.folder / "escaped").exists()
    assert not (node.root.parent / "escaped").exists()


def test_the_result_comes_without_what_nobody_compares_and_the_node_is_left_clean(node: Node) -> None:
    node.begin()
    saved = {"completed": 2, "mean_ttft_ms": 1.5, "itls": [[0.1]], "generated_texts": ["x"], "start_times": [0.1], "latencies": [0.2]}
    (node.folder / "result.json").write_text(json.dumps(saved))
    told = node.run("collect")
    assert told["result"] == {"completed": 2, "mean_ttft_ms": 1.5, "start_times": [0.1], "latencies": [0.2]}
    assert ["podman", "rm", "--force", "--ignore", "vllm-node-peer"] in calls(node.bin, "podman")
    assert not node.folder.exists()


@pytest.mark.parametrize("saved", [None, "{", "[]"])
def test_without_a_result_its_last_words_are_given(node: Node, saved: str | None) -> None:
    node.begin()
    (node.folder / "said").write_text("\n".join(f"line {number}" for number in range(40)))
    if saved is not None:
        (node.folder / "result.json").write_text(saved)
    told = node.run("collect")
    assert "result" not in told
    assert told["said"].splitlines() == [f"line {number}" for number in range(25, 40)]


def test_what_still_runs_is_ended_before_it_is_collected(node: Node) -> None:
    node.begin()
    node.systemd(running=True)
    assert node.run("look", wait_s=0)["running"] is True
    node.run("collect")
    assert ["systemctl", "stop", "vllm-node-peer.service"] in calls(node.bin, "systemctl")
