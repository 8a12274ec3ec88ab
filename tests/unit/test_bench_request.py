"""What is given on the command line becomes variables of the role, or is refused with what to change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vllm_node.bench.request import variables
from vllm_node.paths import project_root


def given(**more: Any) -> dict[str, object]:
    nothing: dict[str, Any] = {
        **dict.fromkeys(("requests", "trace", "speed", "workload", "duration", "lead_in", "output")),
        **dict.fromkeys(("param", "rates", "clients"), ()),
        "reuse": False,
        "api": "completions",
    }
    return variables(**{**nothing, **more})


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "arrivals"
    path.write_text("1\n2\n")
    return path


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "x", "max_tokens": 5}\n')
    return path


def test_what_was_not_given_is_left_to_the_role() -> None:
    found = given(seed=4)
    assert found["benchmark_workload"] == "chat"
    assert (found["benchmark_rates"], found["benchmark_duration_s"], found["benchmark_seed"]) == ([], 0, 4)
    assert "benchmark_lead_in_s" not in found
    assert "benchmark_output" not in found


def test_every_variable_is_one_of_the_role() -> None:
    spec = (project_root() / "roles/benchmark/meta/argument_specs.yml").read_text()
    found = given(lead_in=2.0, output=Path("x"), instance="", repeats=1, seed=1, max_in_flight=1, approved=True, redact=True)
    assert [name for name in found if f" {name}:" not in spec] == []


def test_files_are_named_as_ansible_will_find_them(trace: Path, requests: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trace.parent)
    found = given(trace=Path("arrivals"), speed=2.0, requests=Path("mine.jsonl"), reuse=True, output=Path("runs"))
    assert (found["benchmark_trace"], found["benchmark_trace_speed"]) == (str(trace), 2.0)
    assert (found["benchmark_requests"], found["benchmark_requests_reuse"]) == (str(requests), True)
    assert found["benchmark_output"] == str(trace.parent / "runs")


def test_values_are_json_where_they_can_be() -> None:
    words = ("a=false", "b=1.5", "c=", "d=x=y", 'e={"f": [1]}', "a=null")
    expected = {"a": None, "b": 1.5, "c": "", "d": "x=y", "e": {"f": [1]}}
    assert given(param=words)["benchmark_parameters"] == expected


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"requests": "requests", "workload": "rag"}, "leave out --workload"),
        ({"requests": "requests", "api": "chat"}, "mine.jsonl: line 1: a request of the API chat has 'messages'"),
        ({"requests": "trace"}, "arrivals: line 1: a request is an object"),
        ({"reuse": True}, "--reuse is for --requests"),
        ({"trace": "requests"}, "mine.jsonl: line 1: "),
        ({"trace": "trace", "rates": [2.0]}, "leave out --rate and --clients"),
        ({"trace": "trace", "clients": [2]}, "leave out --rate and --clients"),
        ({"speed": 2.0}, "--speed is for --trace"),
        ({"param": ["stream=false"]}, "parameters.stream cannot be given: the engine sets it"),
        ({"param": ["skip"]}, "give KEY=VALUE"),
        ({"param": ["=1"]}, "give KEY=VALUE"),
    ],
)
def test_what_does_not_go_together_is_refused(
    more: dict[str, Any], words: str, request: pytest.FixtureRequest
) -> None:
    files = {name: request.getfixturevalue(value) for name, value in more.items() if value in ("trace", "requests")}
    with pytest.raises(ValueError, match=words):
        given(**{**more, **files})
