"""A plan is refused with all that is wrong in it; its requests are repeatable and never shared where they must not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vllm_node.load import bodies
from vllm_node.load.bodies import Bodies
from vllm_node.load.plan import Plan, PlanError, parse, read
from vllm_node.load.target import Target, request
from vllm_node.paths import project_root


def document(**other: Any) -> dict[str, Any]:
    return {
        "target": {"url": "http://127.0.0.1:8000", "model": "tiny"},
        "arrivals": {"kind": "poisson", "rate": 5, "duration_s": 4},
        "requests": {"kind": "generated", "vocabulary": [10, 1000], "prompt_tokens": {"low": 5, "high": 50}, "output_tokens": {"p50": 20, "p95": 60, "max": 100}},
        **other,
    }


def prompts(plan: Plan, purpose: str, count: int = 30) -> list[Any]:
    return [one["prompt"] for one in bodies.documents(plan, purpose, count)]


def test_a_plan_has_sensible_defaults() -> None:
    plan = parse(document())
    assert (plan.api, plan.backend, plan.connections.keep_alive, plan.repeat) == ("completions", "auto", True, 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arivals": {}}, "arivals is unknown; did you mean arrivals?"),
        ({"arrivals": {"kind": "poison", "rate": 1}}, "did you mean poisson?"),
        ({"arrivals": {"kind": "poisson", "rate": 0, "duration_s": 1}}, "arrivals.rate should be above 0"),
        ({"arrivals": {"kind": "closed", "clients": 0}}, "arrivals.clients should be at least 1"),
        ({"arrivals": {"kind": "closed", "clients": 4}}, "requests.count is missing"),
        ({"arrivals": {"kind": "trace", "offsets_s": ["x"]}}, "arrivals.offsets_s should hold seconds"),
        ({"arrivals": {"kind": "trace", "path": "no-such-file"}}, "arrivals.path should hold seconds"),
        ({"target": {"url": "127.0.0.1:8000", "model": "x"}}, "no http:// or https:// address"),
        ({"target": {"url": "http://x", "model": "x", "api_key_env": "NO_SUCH_VARIABLE"}}, "NO_SUCH_VARIABLE is not set"),
        ({"slo": {"ttft_p59_s": 1}}, "slo.ttft_p59_s is unknown; did you mean ttft_p95_s?"),
        ({"slo": {"error_rate": 5}}, "slo.error_rate is a share"),
        ({"timeouts": {"stall_s": "long"}}, "timeouts.stall_s should be a number"),
        ({"requests": {"kind": "file", "path": "no-such-file"}}, "requests.path names no file"),
        ({"requests": {"kind": "generated", "vocabulary": [5], "prompt_tokens": 0}}, "requests.prompt_tokens"),
        ({"api": "embeddings"}, "api should be one of completions, chat"),
        ({"parameters": {"model": "other"}}, "parameters.model cannot be given: the engine sets it"),
        ({"parameters": {"stream": False}}, "parameters.stream cannot be given"),
        ({"parameters": {"stream_options": {}}}, "parameters.stream_options cannot be given"),
        ({"parameters": {"prompt": "x"}}, "parameters.prompt cannot be given: it is the requests'"),
        ({"parameters": {"messages": []}}, "parameters.messages cannot be given"),
        ({"parameters": {"max_completion_tokens": 5}}, "parameters.max_completion_tokens cannot be given: lengths are"),
        ({"parameters": {"n": 2}}, "parameters.n cannot be given: a request is to have one answer"),
        ({"parameters": {"echo": True}}, "parameters.echo cannot be given"),
        ({"parameters": {"follows_after_s": 1}}, "parameters.follows_after_s cannot be given: it is no field of the API"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse(document(**change))
    assert any(words in problem for problem in caught.value.problems), caught.value.problems


def test_all_problems_at_once() -> None:
    with pytest.raises(PlanError) as caught:
        parse({"target": {}, "arrivals": {"kind": "constant"}, "requests": {"kind": "generated"}})
    assert len(caught.value.problems) >= 6


def test_file_that_is_no_plan(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(PlanError, match=r"plan.json"):
        read(tmp_path / "plan.json")


def test_same_seed_same_requests() -> None:
    assert prompts(parse(document()), "scored") == prompts(parse(document()), "scored")
    assert parse(document()).arrivals.load("a") == parse(document()).arrivals.load("a")


def test_warmup_repeats_and_seeds_share_no_prompt() -> None:
    """Else a repeat would measure the prefix cache."""
    seen = [
        *prompts(parse(document()), "scored"),
        *prompts(parse(document()), "warmup"),
        *prompts(parse(document(repeat=1)), "scored"),
        *prompts(parse(document(seed=1)), "scored"),
    ]
    firsts = {tuple(prompt[:5]) for prompt in seen}
    assert len(firsts) == len(seen)


def test_shared_prefix_is_shared_by_all() -> None:
    requests = {**document()["requests"], "prompt_tokens": 40, "shared_prefix_tokens": 30}
    seen = [*prompts(parse(document(requests=requests)), "scored"), *prompts(parse(document(requests=requests, repeat=1)), "warmup")]
    assert {len(prompt) for prompt in seen} == {40}
    assert len({tuple(prompt[:30]) for prompt in seen}) == 1
    assert len({tuple(prompt[30:]) for prompt in seen}) == len(seen)


def test_bodies_are_what_the_api_takes(tmp_path: Path) -> None:
    with Bodies(tmp_path / "bodies", bodies.documents(parse(document()), "scored", 50)) as made:
        seen = [json.loads(made[number]) for number in range(len(made))]
        assert len(made) == 50
        assert list(made.output_tokens) == [one["max_tokens"] for one in seen]
    for one in seen:
        assert (one["model"], one["stream"], one["stream_options"]) == ("tiny", True, {"include_usage": True})
        assert 5 <= len(one["prompt"]) <= 50
        assert 1 <= one["max_tokens"] <= 100
        assert all(10 <= token < 1000 for token in one["prompt"])
    lengths = sorted(one["max_tokens"] for one in seen)
    assert 12 <= lengths[25] <= 32  # the median that was asked for is 20


def test_chat_bodies() -> None:
    (one,) = bodies.documents(parse(document(api="chat")), "scored", 1)
    assert one["messages"][0]["role"] == "user"
    assert 5 <= len(one["messages"][0]["content"].split()) <= 50


def test_requests_of_a_file(tmp_path: Path) -> None:
    lines = [{"prompt": [number], "max_tokens": 3, "cancel_after_s": 1.5} for number in range(5)]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    plan = parse(document(requests={"kind": "file", "path": "r.jsonl"}), tmp_path)
    # What the warm-up took is not scored.
    assert prompts(plan, "warmup", 2) == [[0], [1]]
    assert [one["prompt"] for one in bodies.documents(plan, "scored", 3, skip=2)] == [[2], [3], [4]]
    with pytest.raises(PlanError, match="prefix cache"):
        list(bodies.documents(plan, "scored", 4, skip=2))
    with Bodies(tmp_path / "bodies", bodies.documents(plan, "scored", 3)) as made:
        assert made.cancel_s == {0: 1.5, 1: 1.5, 2: 1.5}
        assert b"cancel_after_s" not in made[0]


@pytest.mark.parametrize(("line", "words"), [("{", "no JSON"), ('{"messages": []}', "'prompt'"), ("[]", "'prompt'")])
def test_line_of_a_file_that_is_none(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "r.jsonl").write_text(f'{{"prompt": "x"}}\n{line}\n')
    plan = parse(document(requests={"kind": "file", "path": "r.jsonl"}), tmp_path)
    with pytest.raises(PlanError, match=words) as caught:
        list(bodies.documents(plan, "scored", 1))
    assert "r.jsonl:2" in caught.value.problems[0]


def test_head_of_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("secret\n")
    target = Target("https://gpu1.example:8443/base/", "tiny", api_key_file=str(tmp_path / "key"))
    assert (target.host, target.port, target.tls) == ("gpu1.example", 8443, True)
    whole = request(target.head("chat", True), b"7", b"{}")
    assert whole.startswith(b"POST /base/v1/chat/completions HTTP/1.1\r\nHost: gpu1.example:8443\r\n")
    assert b"\r\nAuthorization: Bearer secret\r\n" in whole
    assert whole.endswith(b"X-Request-Id: 7\r\nContent-Length: 2\r\n\r\n{}")
    monkeypatch.setenv("KEY", "other")
    assert b"Bearer other" in Target("http://x", "m", api_key_env="KEY").head("chat", True)
    assert b"Authorization" not in Target("http://x", "m").head("chat", True)


def test_the_folder_alone_runs_on_the_standard_library(tmp_path: Path) -> None:
    """It is copied to a node, where nothing else of this project is."""
    shutil.copytree(project_root() / "vllm_node/load", tmp_path / "vllm_node/load", ignore=shutil.ignore_patterns("__pycache__"))
    code = "import vllm_node.load.__main__, vllm_node.load.timed; from vllm_node.load.framing import backend; print(backend().name)"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "stdlib"), done.stderr
