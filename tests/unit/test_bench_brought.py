"""What a user brings along is read before any node is asked, and each stage gets its own part of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from vllm_node.bench import brought
from vllm_node.bench.facts import WorkloadError
from vllm_node.bench.own_requests import OwnRequests
from vllm_node.bench.workloads import plan
from vllm_node.load import bodies
from vllm_node.load import plan as engine

FACTS = {"vocab_size": 32_000, "max_model_len": 4096}


def requests(folder: Path, count: int = 30) -> str:
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{number}", "max_tokens": 4}) + "\n" for number in range(count)))
    return str(path)


def trace(folder: Path) -> str:
    path = folder / "arrivals"
    path.write_text("0\n1.25\n3\n")
    return str(path)


def prompts(workload: OwnRequests | str) -> list[str]:
    assert isinstance(workload, OwnRequests)
    return [one["prompt"] for one in workload.requests]


def test_nothing_brought_is_the_preset() -> None:
    found = brought.read()
    assert found.workload("rag", 2, 3) == "rag"
    assert (found.span_s, found.origin, found.sent({"arrivals": {"kind": "poisson"}}, "rag")[1]) == (None, {}, {})


def test_each_stage_has_requests_of_its_own(tmp_path: Path) -> None:
    found = brought.read(requests=requests(tmp_path))
    parts = [prompts(found.workload("chat", stage, 3)) for stage in (1, 2, 3)]
    assert sorted(one for part in parts for one in part) == sorted(f"p{number}" for number in range(30))
    assert [len(part) for part in parts] == [10, 10, 10]


def test_requests_that_may_be_sent_again_are_the_same_in_each_stage(tmp_path: Path) -> None:
    found = brought.read(requests=requests(tmp_path, 2), reuse=True)
    assert prompts(found.workload("chat", 3, 3)) == ["p0", "p1"]
    # Enough for a fast server in a closed loop, and never more than there is room for.
    assert found.count(4, 10) == 160
    assert brought.read(requests=requests(tmp_path, 2)).count(4, 10) is None


def test_room_limits_how_often_long_requests_are_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brought, "_MOST_BYTES", 400)
    found = brought.read(requests=requests(tmp_path, 3), reuse=True)
    assert 3 <= (found.count(64, 600) or 0) < 20


def test_the_files_are_what_the_engine_reads_on_the_node(tmp_path: Path) -> None:
    found = brought.read(requests=requests(tmp_path), trace=trace(tmp_path))
    workload = found.workload("chat", 2, 2)
    assert found.trace is not None
    arrivals = found.trace.arrivals()
    common: dict[str, Any] = {"url": "http://x", "model": "m", "facts": FACTS, "seed": 1, "repeat": 1, "warmup": {}}
    made = plan(workload, arrivals=arrivals, duration_s=found.span_s, **common)
    sent, files = found.sent(made, workload)
    assert "offsets_s" not in json.dumps(sent)
    node = tmp_path / "node"
    node.mkdir()
    for name, text in files.items():
        (node / name).write_text(text)
    read = engine.parse(sent, node)
    assert read.arrivals.offsets_s == (0.0, 1.25, 3.0)
    assert [one["prompt"] for one in bodies.documents(read, "scored", 3)] == ["p1", "p3", "p5"]
    # Two gaps in three seconds, and one more after the last arrival.
    assert found.span_s == pytest.approx(4.5)


def test_where_they_come_from_is_kept(tmp_path: Path) -> None:
    path = requests(tmp_path)
    found = brought.read(requests=path, trace=trace(tmp_path), speed=2, parameters={"seed": 4})
    assert found.origin["requests"] == {
        "file": "mine.jsonl",
        "sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest(),
        "count": 30,
        "reuse": False,
    }
    assert (found.origin["arrivals"]["speed"], found.origin["parameters"]) == (2, {"seed": 4})
    assert found.notices == ("the trace is played 2 times as fast as it was recorded",)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rates": [2.0]}, "leave out rates, or the trace"),
        ({"rates": [2.0], "clients": [1]}, "leave out rates and clients"),
        ({"parameters": {"stream": False}}, "parameters.stream cannot be given"),
        ({"speed": 0}, "above 0"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        brought.read(trace=trace(tmp_path), **given)
