"""A whole benchmark over a node that answers as the modules do: order, refusals, partial runs, the document."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.run_documents import client
from vllm_node.bench.report import document
from vllm_node.bench.run import Benchmark, BenchmarkError, Wanted

INSTANCE = {"name": "tiny", "port": 8000, "model": "/srv/models/tiny", "gpus": [0]}
MODEL = {"vocab_size": 32000, "max_model_len": 8192, "special_token_ids": [0, 1, 2]}


def wanted(**other: Any) -> Wanted:
    given: dict[str, Any] = {
        "host": "gpu1",
        "instance": INSTANCE,
        "workload": "chat",
        "rates": [2.0, 4.0],
        "clients": [],
        "repeats": 1,
        "duration_s": 60,
        "lead_in_s": 5,
        "warmup_requests": 4,
        "seed": 1,
        "slo": {"ttft_p95_s": 0.5},
        "max_in_flight": 64,
        "max_errors": 10,
        "approved": False,
        "cpus": "",
        "reference": "registry.example/vllm@sha256:" + "1" * 64,
        **other,
    }
    return Wanted(**given)


class Node:
    """Answers by module name; each stage has the next of `results`."""

    def __init__(self, results: list[dict[str, Any]], busy: bool | None = False, wrong: bool = False) -> None:
        self.results, self.busy, self.wrong, self.asked, self.plans = results, busy, wrong, list[str](), list[Any]()

    def __call__(self, module: str, **args: Any) -> dict[str, Any]:
        self.asked.append(module if module != "load_run" else f"load_run {args['state']}")
        if module == "instance_facts":
            activity = {"running": 3 if self.busy else 0, "waiting": 0, "finished_last_minute": 2.4}
            return {"facts": {"max_model_len": 4096, "version": "0.32.0", "model": {"facts": MODEL}, "activity": activity}}
        if module == "smoke_check":
            outcome = "fail" if self.wrong else "pass"
            return {"checks": [{"check": "usage counts the tokens", "outcome": outcome, "seen": "8 and 8"}]}
        assert module == "load_run"
        if args["state"] == "begin":
            self.plans.append(args["plan"])
            return {"running": True}
        if args["state"] == "look":
            return {"running": False, "progress": {}}
        found = self.results.pop(0)
        return found if found.get("failed") or "said" in found else {"result": found}


def run(node: Node, **other: Any) -> Benchmark:
    made = Benchmark(wanted(**other), node, lambda _text: None)
    made.run()
    return made


def test_correctness_comes_before_speed_and_every_rate_is_run() -> None:
    node = Node([client(), client()])
    found = run(node).document()
    assert node.asked[:2] == ["instance_facts", "smoke_check"]
    assert node.asked.count("load_run begin") == 2
    assert [plan["arrivals"]["rate"] for plan in node.plans] == [2.0, 4.0]
    assert [step["rate_per_s"] for step in found["steps"]] == [2.0, 4.0]
    assert found["verdict"]["sustainable_rate_per_s"] == 4.0
    document.check(json.loads(json.dumps(found)))


def test_plans_ask_for_what_the_server_was_started_with() -> None:
    node = Node([client()])
    run(node, rates=[2.0], max_in_flight=7)
    (plan,) = node.plans
    assert (plan["target"], plan["limits"]["in_flight"]) == ({"url": "http://127.0.0.1:8000", "model": "tiny"}, 7)
    assert plan["requests"]["vocabulary"][0] > 2
    assert plan["gpus"] == 1


def test_an_instance_that_serves_others_is_left_alone() -> None:
    node = Node([], busy=True)
    with pytest.raises(BenchmarkError, match="serves others at the moment"):
        run(node)
    assert node.asked == ["instance_facts"]


def test_with_approval_it_is_measured_all_the_same() -> None:
    assert len(run(Node([client(), client()], busy=True), approved=True).done) == 2


def test_a_wrong_answer_fails_the_run_and_is_in_its_document() -> None:
    found = run(Node([client(), client()], wrong=True)).document()
    assert found["verdict"]["verdict"] == "fail"
    assert found["correctness"][0]["outcome"] == "fail"


def test_a_stage_that_gave_nothing_ends_the_run_and_keeps_what_there_is() -> None:
    found = run(Node([client(), {"said": "the server is gone"}])).document()
    assert len(found["steps"]) == 1
    assert "the server is gone" in found["partial"]
    assert found["verdict"]["verdict"] == "insufficient"
    document.check(json.loads(json.dumps(found)))


def test_a_workload_that_does_not_fit_the_model_is_refused_before_any_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODEL, "vocab_size", 10)
    node = Node([])
    with pytest.raises(BenchmarkError, match=r"gpu1: .*vocabulary"):
        run(node)
    assert "load_run begin" not in node.asked
