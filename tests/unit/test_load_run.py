"""The module that runs a stage on a node: one at a time, in a container of the pinned image, and nothing stays."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.unit.role_code import calls, load, on_path, program, run_module

REFERENCE = "registry.example/vllm@sha256:" + "1" * 64


def tar() -> str:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as made:
        made.addfile(tarfile.TarInfo("vllm_node/load/run.py"))
    return base64.b64encode(out.getvalue()).decode()


class Node:
    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.capsys, self.module = root, capsys, load("roles/benchmark/library/load_run.py")
        self.folder = root / "run"
        self.module.FOLDER, self.module.POLL_S = str(self.folder), 0.01
        self.systemd(running=False)
        program(root / "bin", "systemd-run")

    def systemd(self, running: bool) -> None:
        program(self.root / "bin", "systemctl", f'[ "$1" != is-active ] || exit {0 if running else 3}')

    def run(self, state: str, **more: Any) -> dict[str, Any]:
        return run_module(self.module, self.capsys, state=state, **more)

    def sent(self, text: str) -> str:
        """A file that was copied to the node."""
        path = self.root / "sent"
        path.write_text(text)
        return str(path)

    def begin(self, **more: Any) -> dict[str, Any]:
        return self.run("begin", reference=REFERENCE, generator=tar(), plan={"name": "x"}, **more)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Node:
    on_path(monkeypatch, tmp_path / "bin")
    return Node(tmp_path, capsys)


def test_a_stage_runs_in_the_pinned_image_with_what_it_needs_and_nothing_else(node: Node) -> None:
    sent = node.sent("1")
    assert node.begin(cpus="6-7", sent={"trace.txt": sent})["running"] is True
    assert json.loads((node.folder / "plan.json").read_text()) == {"name": "x"}
    assert (node.folder / "trace.txt").read_text() == "1"
    assert not Path(sent).exists()
    assert node.folder.stat().st_mode & 0o777 == 0o700
    assert (node.folder / "vllm_node/load/run.py").exists()
    probe, words = calls(node.root / "bin", "systemd-run")
    assert probe[-1] == "true"
    assert "--property=CPUSchedulingPolicy=rr" in words
    assert {"--pull=never", "--read-only", "--cap-drop=all", "--property=CPUAffinity=6-7", REFERENCE} <= set(words)
    assert any(word.startswith("--property=RuntimeMaxSec=") for word in words)


def test_two_loads_do_not_measure_each_other(node: Node) -> None:
    node.systemd(running=True)
    told = node.begin()
    assert told["failed"] is True
    assert "runs already" in told["msg"]
    assert "systemctl stop vllm-node-load.service" in told["msg"]
    assert calls(node.root / "bin", "systemd-run") == []


def test_a_file_cannot_be_put_elsewhere(node: Node) -> None:
    node.begin(sent={"../../escaped": node.sent("x")})
    assert (node.folder / "escaped").exists()
    assert not (node.root.parent / "escaped").exists()


def test_what_cannot_begin_leaves_nothing(node: Node) -> None:
    told = node.begin(sent={"requests.jsonl": str(node.root / "nowhere")})
    assert told["failed"] is True
    assert "nowhere" in told["msg"]
    assert not node.folder.exists()
    program(node.root / "bin", "systemd-run", "echo no such image >&2; exit 1")
    assert "no such image" in node.begin()["msg"]
    assert not node.folder.exists()


def test_the_last_word_is_told_whatever_else_was_said(node: Node) -> None:
    node.begin()
    (node.folder / "progress.jsonl").write_text('{"event": "start"}\n{"event": "progress", "sent": 3}\nconmon: hello\n7\n')
    assert node.run("look", wait_s=0)["progress"] == {"event": "progress", "sent": 3}


def test_the_result_is_given_and_the_node_is_left_clean(node: Node) -> None:
    node.begin()
    (node.folder / "out/result.json").write_text('{"schema": 1}')
    told = node.run("collect")
    assert (told["result"], told["changed"]) == ({"schema": 1}, False)
    assert not node.folder.exists()


def test_a_stage_that_runs_is_ended_before_it_is_collected(node: Node) -> None:
    node.begin()
    node.systemd(running=True)
    node.run("collect")
    assert ["systemctl", "stop", "vllm-node-load.service"] in calls(node.root / "bin", "systemctl")


def test_without_a_result_its_last_words_are_given(node: Node) -> None:
    node.begin()
    (node.folder / "progress.jsonl").write_text("plan: rate is wrong\n")
    told = node.run("collect")
    assert "result" not in told
    assert told["said"] == "plan: rate is wrong"


def test_pages_of_metrics_come_back_up_to_a_size(node: Node) -> None:
    node.begin()
    assert node.run("collect")["no_pages"] == "the generator kept no pages of metrics"
    node.begin()
    (node.folder / "out/metrics.jsonl.gz").write_bytes(b"pages")
    told = node.run("collect")
    assert base64.b64decode(told["pages"]) == b"pages"
    assert "no_pages" not in told
    node.module.MOST_PAGES_BYTES = 4
    node.begin()
    (node.folder / "out/metrics.jsonl.gz").write_bytes(b"pages")
    told = node.run("collect")
    assert "at most 0 are brought back" in told["no_pages"]
    assert "pages" not in told


def test_where_the_node_refuses_real_time_it_runs_without(node: Node) -> None:
    program(node.root / "bin", "systemd-run", 'for word; do [ "$word" != --wait ] || exit 1; done')
    assert node.begin()["running"] is True
    _, words = calls(node.root / "bin", "systemd-run")
    assert not any("CPUScheduling" in word for word in words)
