"""A whole benchmark over a node that answers as the modules do: order, refusals, partial runs, the document."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.run_documents import STARTED_AT_S, client
from tests.unit.server_answers import page
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
        self.files, self.pages, self.context = list[Any](), dict[str, Any](), 4096
        # What the last minute holds at each look, and how long ago a load of ours ended.
        self.lately: list[float] = [2.4]
        self.own_s: float | None = None

    def __call__(self, module: str, **args: Any) -> dict[str, Any]:
        self.asked.append(module if module != "load_run" else f"load_run {args['state']}")
        if module == "instance_facts":
            lately = self.lately.pop(0) if len(self.lately) > 1 else self.lately[0]
            activity = {"running": 3 if self.busy else 0, "waiting": 0, "finished_last_minute": lately}
            facts = {"max_model_len": self.context, "version": "0.32.0", "model": {"facts": MODEL}, "activity": activity}
            return {"facts": {**facts, "own_load_s_ago": self.own_s}}
        if module == "smoke_check":
            outcome = "fail" if self.wrong else "pass"
            return {"checks": [{"check": "usage counts the tokens", "outcome": outcome, "seen": "8 and 8"}]}
        assert module == "load_run"
        if args["state"] == "begin":
            self.plans.append(args["plan"])
            self.files.append(args["files"])
            return {"running": True}
        if args["state"] == "look":
            return {"running": False, "progress": {}}
        found = self.results.pop(0)
        return found if found.get("failed") or "said" in found else {"result": found, **self.pages}


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


@pytest.mark.parametrize(("own_s", "waits"), [(None, False), (74.9, True), (76.0, False)])
def test_the_last_benchmark_is_nobody_else(own_s: float | None, waits: bool) -> None:
    """Its requests are in the server's last minute; a look after that minute tells whether others are there."""
    node = Node([client(), client()])
    node.lately, node.own_s = [90.0, 0.0], own_s
    if not waits:
        with pytest.raises(BenchmarkError, match="serves others"):
            run(node)
        return
    assert len(run(node).done) == 2
    assert node.asked[:3] == ["instance_facts", "instance_facts", "smoke_check"]


def test_others_in_the_minute_after_the_last_benchmark_are_left_alone() -> None:
    node = Node([])
    node.lately, node.own_s = [90.0, 90.0], 74.9
    with pytest.raises(BenchmarkError, match="serves others"):
        run(node)
    busy = Node([], busy=True)
    busy.lately, busy.own_s = [90.0], 1.0
    with pytest.raises(BenchmarkError, match="serves others"):
        run(busy)
    assert busy.asked == ["instance_facts"]


def test_checks_of_a_bring_up_are_nobody_else() -> None:
    node = Node([client(), client()])
    node.lately = [25.0]
    with pytest.raises(BenchmarkError, match="serves others"):
        run(node)
    checks = [{"check": "x", "outcome": "pass", "seen": "y"}]
    assert len(run(Node([client(), client()]), correctness=checks).done) == 2
    node = Node([client(), client()])
    node.lately = [25.0]
    assert len(run(node, correctness=checks).done) == 2


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


def lines(folder: Path, count: int) -> str:
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{number}", "max_tokens": 4}) + "\n" for number in range(count)))
    return str(path)


def arrivals(folder: Path, *seconds: float) -> str:
    path = folder / "arrivals"
    path.write_text("".join(f"{one}\n" for one in seconds))
    return str(path)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"requests": "nowhere.jsonl"}, "nowhere.jsonl is no file"),
        ({"trace": "nowhere"}, "nowhere is no file"),
        ({"parameters": {"messages": []}}, "parameters.messages cannot be given"),
    ],
)
def test_what_was_brought_is_judged_before_the_node_is_asked(given: dict[str, Any], words: str) -> None:
    node = Node([])
    with pytest.raises(BenchmarkError, match=f"gpu1: nothing was asked of the node: .*{words}"):
        run(node, **{"rates": [], **given})
    assert node.asked == []


def test_no_stage_meets_the_requests_of_another(tmp_path: Path) -> None:
    node = Node([client(), client()])
    found = run(node, requests=lines(tmp_path, 700), warmup_requests=0).document()
    sent = [{json.loads(one)["prompt"] for one in files["requests.jsonl"].splitlines()} for files in node.files]
    assert [len(one) for one in sent] == [350, 350]
    assert not sent[0] & sent[1]
    assert [plan["requests"] for plan in node.plans] == [{"kind": "file", "path": "requests.jsonl", "reuse": False}] * 2
    assert found["workload"]["name"] == "mine.jsonl"
    assert found["workload"]["requests"]["count"] == 700
    assert found["id"].endswith("-mine.jsonl")
    document.check(json.loads(json.dumps(found)))


def test_too_few_requests_are_refused_before_any_load(tmp_path: Path) -> None:
    node = Node([])
    with pytest.raises(BenchmarkError, match=r"gpu1: mine.jsonl has 10 requests, and \d+ are needed"):
        run(node, requests=lines(tmp_path, 20))
    assert "load_run begin" not in node.asked


def test_a_trace_is_the_load_of_one_step_for_as_long_as_it_is(tmp_path: Path) -> None:
    node = Node([client(), client()])
    trace = arrivals(tmp_path, 0, 10, 20, 30)
    found = run(node, rates=[], trace=trace, trace_speed=2, duration_s=0, repeats=2).document()
    assert [plan["arrivals"] for plan in node.plans] == [{"kind": "trace", "duration_s": 20.0, "path": "arrivals.txt"}] * 2
    assert node.files[0]["arrivals.txt"].split()[-1] == "15.000000000"
    (step,) = found["steps"]
    assert (step["rate_per_s"], step["clients"], len(step["repeats"])) == (None, None, 2)
    assert "the trace is played 2 times as fast as it was recorded" in found["workload"]["notices"]
    assert found["verdict"]["sustainable_rate_per_s"] is None
    document.check(json.loads(json.dumps(found)))
    node = Node([client()])
    run(node, rates=[], trace=trace, duration_s=8)
    assert node.plans[0]["arrivals"]["duration_s"] == 8


def test_a_trace_of_workflows_begins_workflows(tmp_path: Path) -> None:
    node = Node([client()])
    node.context = 32_768
    run(node, rates=[], trace=arrivals(tmp_path, 0, 10, 20), duration_s=0, workload="agent")
    assert node.plans[0]["name"] == "agent, recorded arrivals of workflows"


def test_parameters_and_the_api_are_those_of_the_plan() -> None:
    node = Node([client(), client()])
    found = run(node, parameters={"skip_special_tokens": False}, api="chat").document()
    assert [(plan["parameters"], plan["api"]) for plan in node.plans] == [({"skip_special_tokens": False}, "chat")] * 2
    assert (found["workload"]["parameters"], found["workload"]["api"]) == ({"skip_special_tokens": False}, "chat")


def test_a_lead_in_that_leaves_nothing_is_refused() -> None:
    node = Node([])
    with pytest.raises(BenchmarkError, match=r"the first 60 s of a stage are not scored .* a stage of 60 s has no more"):
        run(node, lead_in_s=60)
    assert "load_run begin" not in node.asked
    assert len(run(Node([client()]), lead_in_s=60, rates=[], clients=[2]).done) == 1  # a closed loop has none


def test_without_a_load_there_is_one_request_a_second() -> None:
    node = Node([client()])
    run(node, rates=[], duration_s=0)
    assert (node.plans[0]["arrivals"]["rate"], node.plans[0]["arrivals"]["duration_s"]) == (1.0, 120)


def test_checks_of_a_moment_ago_are_not_made_again() -> None:
    node = Node([client(), client()])
    checks = [{"check": "models are listed", "outcome": "pass", "seen": "tiny"}]
    assert run(node, correctness=checks).document()["correctness"] == checks
    assert "smoke_check" not in node.asked


def test_pages_of_the_generator_stand_in_for_a_prometheus() -> None:
    node = Node([client()])
    kept = [page(STARTED_AT_S + second, 5.0 * second) for second in range(-2, 18)]
    node.pages = {"pages": base64.b64encode(gzip.compress("".join(json.dumps(one) + "\n" for one in kept).encode())).decode()}
    found = run(node, rates=[2.0]).document()
    server = found["steps"][0]["repeats"][0]["server"]
    assert (server["source"], server["figures"]["requests_finished"]["value"]) == ("scrapes", 75.0)
    document.check(json.loads(json.dumps(found)))


def test_a_server_that_nobody_saw_is_unobservable_and_says_why() -> None:
    node = Node([client()])
    node.pages = {"no_pages": "the pages of metrics come to 90 MiB, and at most 32 are brought back"}
    found = run(node, rates=[2.0]).document()
    assert found["steps"][0]["repeats"][0]["server"] is None
    (why,) = [one["why"] for one in found["unobservable"] if one["what"].startswith("the server's own figures of stage 1")]
    assert why == node.pages["no_pages"]


class Interrupted(Node):
    """Somebody interrupts while this module works for the `number`-th time."""

    def __init__(self, results: list[dict[str, Any]], module: str, number: int = 1) -> None:
        super().__init__(results)
        self.at, self.now = (module, number), False

    def __call__(self, module: str, **args: Any) -> dict[str, Any]:
        answer = super().__call__(module, **args)
        self.now = self.now or self.asked.count(self.at[0]) == self.at[1]
        return answer

    def measured(self) -> dict[str, Any]:
        made = Benchmark(wanted(), self, lambda _text: None, lambda: self.now)
        made.run()
        found = made.document()
        document.check(json.loads(json.dumps(found)))
        assert found["verdict"]["verdict"] == "insufficient"
        return found


def stopped(seconds: float) -> dict[str, Any]:
    found = client(seconds=seconds) if seconds else client()
    window = {**found["window"], "seconds": seconds, "end_unix_s": found["window"]["start_unix_s"] + seconds}
    return {**found, "partial": True, "stopped": "SIGTERM was received", "window": window}


def test_an_interrupted_stage_is_kept_and_no_other_one_begins() -> None:
    node = Interrupted([stopped(7.0), client()], "load_run begin")
    found = node.measured()
    assert found["partial"] == "interrupted in stage 1 of 2 (2 requests/s, repeat 1)"
    assert [step["rate_per_s"] for step in found["steps"]] == [2.0]
    assert (node.asked.count("load_run begin"), node.asked[-1]) == (1, "load_run collect")


def test_a_stage_that_was_interrupted_before_its_window_says_nothing_about_the_server() -> None:
    found = Interrupted([stopped(0.0)], "load_run begin").measured()
    assert found["partial"] == "interrupted in stage 1 of 2 (2 requests/s, repeat 1), before its window had begun"
    assert found["steps"] == []


def test_an_interrupt_between_two_stages_keeps_the_first() -> None:
    found = Interrupted([client()], "load_run collect").measured()
    assert found["partial"] == "interrupted before stage 2 of 2 (4 requests/s, repeat 1)"
    assert len(found["steps"]) == 1


def test_an_interrupt_before_the_first_stage_is_a_document_too() -> None:
    found = Interrupted([], "smoke_check").measured()
    assert found["partial"] == "interrupted before stage 1 of 2 (2 requests/s, repeat 1)"
    assert (found["steps"], len(found["correctness"])) == ([], 1)
