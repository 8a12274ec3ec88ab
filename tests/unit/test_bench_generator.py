"""A stage on a node: begun, watched, collected; also when it fails or is interrupted."""

from __future__ import annotations

import base64
import io
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from vllm_node.bench.generator import Staged, StageError, package, stage, told

PROGRESS = {"event": "progress", "rate_per_s": 2.0, "in_flight": 3, "waiting": 1.0, "ttft_s": 0.05, "left_s": 7.2}


class Node:
    """Answers as the module does; `looks` are the answers of a run that goes on."""

    def __init__(self, looks: list[Any], collected: dict[str, Any]) -> None:
        self.looks, self.collected, self.asked = looks, collected, list[str]()

    def __call__(self, **args: Any) -> dict[str, Any]:
        self.asked.append(args["state"])
        if args["state"] == "begin":
            return {"running": True}
        if args["state"] == "collect":
            return self.collected
        look = self.looks.pop(0)
        if isinstance(look, BaseException):
            raise look
        return dict(look)


def test_a_stage_is_watched_and_its_result_comes_back() -> None:
    node = Node([{"running": True, "progress": PROGRESS}, {"running": False}], {"result": {"schema": 1}})
    shown: list[str] = []
    assert stage(node, {"name": "x"}, shown.append).result == {"schema": 1}
    assert node.asked == ["begin", "look", "look", "collect"]
    assert "2.0 requests/s, 3 in flight, 1 waiting, first token after 50 ms, 7 s left" in shown[0]


def test_an_interrupted_stage_is_collected_before_anything_else() -> None:
    node = Node([KeyboardInterrupt()], {"result": {"partial": True}})
    with pytest.raises(KeyboardInterrupt):
        stage(node, {}, print)
    assert node.asked == ["begin", "look", "collect"]


def test_a_stage_that_is_to_end_is_collected_at_the_next_look() -> None:
    node = Node([{"running": True, "progress": PROGRESS}] * 9, {"result": {"partial": True}, "no_pages": "too many"})
    wishes = iter([False, False, True])
    assert stage(node, {}, lambda _text: None, lambda: next(wishes)) == Staged({"partial": True}, None, "too many")
    assert node.asked == ["begin", "look", "look", "collect"]


def test_pages_come_back_as_the_generator_wrote_them() -> None:
    node = Node([{"running": False}], {"result": {}, "pages": base64.b64encode(b"\x1f\x8b").decode()})
    assert stage(node, {}, print).pages == b"\x1f\x8b"


@pytest.mark.parametrize(
    ("looks", "collected", "said"),
    [
        ([{"running": False}], {"said": "plan: rate is wrong"}, "plan: rate is wrong"),
        ([{"failed": True, "msg": "the node is gone"}], {"said": ""}, "the node is gone"),
        ([{"running": False}], {"failed": True, "msg": "no space"}, "no space"),
    ],
)
def test_without_a_result_there_are_words(looks: list[Any], collected: dict[str, Any], said: str) -> None:
    with pytest.raises(StageError, match=said):
        stage(Node(looks, collected), {}, print)


def test_what_is_sent_runs_by_itself(tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(package()))) as tar:
        tar.extractall(tmp_path, filter="data")
    (tmp_path / "plan.json").write_text('{"name": "x"}')
    words = [sys.executable, "-S", "-E", "-m", "vllm_node.load", "run", "--plan", "plan.json", "--out", "out"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "plan: target" in done.stderr


def test_a_generator_that_has_not_said_anything_yet_is_starting() -> None:
    assert told({}) == "starting"
    assert told({"event": "warmup", "requests": 8}) == "warmup"
