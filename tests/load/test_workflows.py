"""Workflows against what the server knows: each call follows the answer to the one before, and the whole is measured."""

from __future__ import annotations

import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.load.runs import BACKENDS, measure, plan, undisturbed
from tests.load.server import TimedServer, serving
from vllm_node.load import bodies, generated
from vllm_node.load.plan import Plan
from vllm_node.load.records import Record

TTFT_S, ITL_S, THINK_S, CALLS, TOKENS = 0.02, 0.005, 0.05, 3, 4
CALL_S = TTFT_S + ITL_S * (TOKENS - 1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TimedServer]:
    with serving(tmp_path_factory.mktemp("server"), "--ttft-us", "20000", "--itl-us", "5000") as one:
        yield one


def agents(server: TimedServer, **other: Any) -> dict[str, Any]:
    """Workflows of three calls with 50 ms of thinking before the second and the third."""
    requests = {
        "kind": "workflows",
        "count": 6,
        "vocabulary": [10, 1000],
        "prompt_tokens": 64,
        "new_tokens": 20,
        "output_tokens": TOKENS,
        "calls": CALLS,
        "think_ms": round(THINK_S * 1000),
        **other.pop("requests", {}),
    }
    arrivals = {"kind": "constant", "rate": 20, "duration_s": 0.5}
    return plan(server, **{"arrivals": arrivals, "requests": requests, "connections": {"open_first": 16}, **other})


def by_workflow(taken: list[Record]) -> dict[int | None, list[Record]]:
    found = defaultdict(list)
    for one in sorted(taken, key=lambda each: (each.workflow or 0, each.call)):
        found[one.workflow].append(one)
    return found


@pytest.mark.usefixtures("first_in_line")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_workflow_takes_what_the_server_saw_it_take(server: TimedServer, tmp_path: Path, backend: str) -> None:
    mark = server.mark()
    result, taken = undisturbed(agents(server, backend=backend, slo={"workflow_e2e_p95_s": 5}), tmp_path)
    # A run that was void and tried again has left the same names: the last ones count.
    streams = {one.name: one for one in server.truth(mark)}
    flow = result["workflow"]
    assert (flow["runs"], flow["complete"], flow["failed"], flow["unfinished"]) == (10, 10, 0, 0)
    assert flow["calls_per_run"] == {"mean": CALLS, "min": CALLS, "max": CALLS, "samples": 10}
    assert result["counts"]["offered"] == result["counts"]["completed"] == len(taken) == 10 * CALLS
    assert result["selfcheck"]["offered_per_s"] == pytest.approx(20)  # workflows; their later calls are no arrivals
    assert flow["offered_per_s"] == pytest.approx(20)

    lasted, thought = [], []
    for number, calls in by_workflow(taken).items():
        assert [one.call for one in calls] == [0, 1, 2]
        assert [one.index for one in calls] == [CALLS * (number or 0) + call for call in range(CALLS)]
        seen = [streams[str(one.index)] for one in calls]
        lasted.append((seen[-1].events[-1] - seen[0].received) / 1e9)
        for before, after in itertools.pairwise(seen):
            thought.append((after.received - before.events[-1]) / 1e9)
            assert after.received > before.events[-1]
    assert flow["e2e_s"]["samples"] == 10
    assert flow["e2e_s"]["mean"] == pytest.approx(statistics.fmean(lasted), abs=0.003)
    assert flow["e2e_s"]["mean"] > CALLS * CALL_S + (CALLS - 1) * THINK_S
    assert statistics.fmean(thought) == pytest.approx(THINK_S, abs=0.003)
    assert flow["thinking_s"]["mean"] == pytest.approx((CALLS - 1) * THINK_S, abs=0.0001)
    assert flow["in_calls_s"]["mean"] + flow["thinking_s"]["mean"] == pytest.approx(flow["e2e_s"]["mean"], abs=0.0001)
    # Ten workflows give no p95, so nothing can be said of the SLO.
    assert flow["e2e_s"]["p95"] == "insufficient"
    assert result["verdict"]["verdict"] == "insufficient"


def test_each_prompt_begins_with_the_one_before(server: TimedServer, tmp_path: Path) -> None:
    result, _ = measure(agents(server), tmp_path)
    asked = result["requests"]
    assert asked["prompt_tokens"] == {"mean": 88, "min": 64, "p50": 88, "p95": 112, "p99": 112, "max": 112}
    assert (asked["count"], asked["workflows"], asked["cut"]) == (30, 10, 0)
    assert asked["shared_prefix_share"] == 0
    assert asked["repeated_share"] == pytest.approx((64 + 80) / (64 + 88 + 112))  # 88 tokens hold five whole blocks


@pytest.mark.usefixtures("first_in_line")
def test_agents_in_a_closed_loop(server: TimedServer, tmp_path: Path) -> None:
    """Two agents share six workflows; no agent begins one while its own is under way."""
    arrivals = {"kind": "closed", "clients": 2}
    result, taken = undisturbed(agents(server, arrivals=arrivals), tmp_path)
    assert result["workflow"]["complete"] == 6
    lasts = sorted((calls[0].scheduled, calls[-1].end) for calls in by_workflow(taken).values())
    for at, (begun, _) in enumerate(lasts):
        assert sum(other < begun < end for other, end in lasts[:at]) < 2


def test_no_thinking_at_all(server: TimedServer, tmp_path: Path) -> None:
    document = agents(server)
    del document["requests"]["think_ms"]
    result, taken = measure(document, tmp_path)
    assert result["workflow"]["complete"] == 10
    for calls in by_workflow(taken).values():
        assert all(after.scheduled == before.end for before, after in itertools.pairwise(calls))
    assert result["workflow"]["thinking_s"]["max"] == 0


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ({"fault": "http_500"}, "http_500"),
        ({"fault": "reset", "after": 1}, "reset"),
        ({"fault": "stall", "after": 1}, "stall_timeout"),
    ],
)
def test_a_call_that_fails_ends_its_workflow(
    server: TimedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any], kind: str
) -> None:
    """The second call of the third workflow."""

    def with_fault(plan: Plan, purpose: str, count: int) -> Iterator[Mapping[str, Any]]:
        for number, one in enumerate(generated.generated(plan, purpose, count)):
            yield {**one, **fault} if number == 2 * CALLS + 1 else one

    monkeypatch.setattr(bodies, "generated", with_fault)
    result, taken = measure(agents(server, timeouts={"stall_s": 0.2}), tmp_path)
    flow = result["workflow"]
    assert (flow["runs"], flow["complete"], flow["failed"]) == (10, 9, 1)
    assert flow["failed_by_kind"] == {kind: 1}
    assert [one.kind for one in by_workflow(taken)[2]] == ["ok", kind]
    # One that ran into a time-out is slower than all others, not absent.
    assert (flow["e2e_s"]["samples"], flow["e2e_s"]["timed_out"]) == ((10, 1) if kind == "stall_timeout" else (9, 0))
    assert result["counts"]["offered"] == 10 * CALLS - 1


def test_limit_in_flight_ends_workflows_and_the_stage_still_ends(server: TimedServer, tmp_path: Path) -> None:
    document = agents(server, limits={"in_flight": 1}, requests={"think_ms": 1})
    result, _ = measure(document, tmp_path)
    flow = result["workflow"]
    assert flow["failed_by_kind"].get("held_back", 0) > 0
    assert flow["complete"] + flow["failed"] == 10


def test_stopped_stage_has_unfinished_workflows(server: TimedServer, tmp_path: Path) -> None:
    result, _ = measure(agents(server, limits={"errors": 1}, parameters={"fault": "http_500"}), tmp_path)
    assert result["partial"]
    assert result["workflow"]["complete"] == 0
    assert result["workflow"]["failed"] == 1


def test_lead_in_counts_whole_workflows(server: TimedServer, tmp_path: Path) -> None:
    """A workflow that arrived before the window is not scored, though its last calls lie inside."""
    document = agents(server, warmup={"lead_in_s": 0.25, "requests": 2})
    result, taken = measure(document, tmp_path)
    assert result["workflow"]["runs"] == result["workflow"]["complete"] == 5
    for calls in by_workflow(taken).values():
        assert len({one.scored for one in calls}) == 1
    written = json.loads((tmp_path / "result.json").read_text())["workflow"]
    assert written["e2e_s"] == result["workflow"]["e2e_s"]
