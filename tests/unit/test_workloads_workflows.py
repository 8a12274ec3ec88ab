"""Figures of whole workflows out of records, and what the requests of a stage asked for."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.load_values import NS, record
from vllm_node.load.asked import Asked
from vllm_node.load.definitions import Figures, Window
from vllm_node.load.records import Record, pack, unpack
from vllm_node.load.slo import Slo
from vllm_node.load.verdict import judge
from vllm_node.load.workflows import Workflows

WINDOW = Window(0, 10 * NS)


def call(workflow: int, number: int, scheduled_s: float, kind: str = "ok", **other: Any) -> Record:
    """One that takes 0.14 s."""
    one = record(kind, index=100 * workflow + number, scheduled_s=scheduled_s, **other)
    one.workflow, one.call = workflow, number
    return one


def figures(taken: list[Record], calls: int = 2) -> Workflows:
    found = Workflows(lambda _workflow: calls)
    for one in taken:
        found.add(one)
    return found


@given(st.randoms(use_true_random=False))
def test_order_of_records_does_not_matter(order: random.Random) -> None:
    taken = [call(flow, number, 1 + flow + number * 0.5) for flow in range(4) for number in range(2)]
    order.shuffle(taken)
    seen = figures(taken).document(WINDOW)
    assert (seen["runs"], seen["complete"], seen["failed"], seen["unfinished"]) == (4, 4, 0, 0)
    assert seen["e2e_s"]["mean"] == pytest.approx(0.64)
    assert seen["e2e_s"]["samples"] == 4
    assert (seen["in_calls_s"]["mean"], seen["thinking_s"]["mean"]) == pytest.approx((0.28, 0.36))
    assert seen["in_calls_share"] == pytest.approx(0.28 / 0.64)


def test_whole_is_no_sum_of_percentiles() -> None:
    """Each workflow has one slow call, now the first, now the second: all take the same time."""
    taken = []
    for flow in range(40):
        slow, quick = (1.0, 0.1) if flow % 2 else (0.1, 1.0)
        taken += [call(flow, 0, 1, ttft_s=slow, gaps_s=()), call(flow, 1, 1 + slow, ttft_s=quick, gaps_s=())]
    assert figures(taken).e2e().quantile(0.95) == pytest.approx(1.1)
    requests = Figures(WINDOW, Slo()).extend(taken).latency["e2e_scheduled_s"].quantile(0.95)
    assert isinstance(requests, float)
    assert 2 * requests == pytest.approx(2.0)


def test_failed_unfinished_and_late_ones() -> None:
    seen = figures(
        [
            *(call(0, number, 1 + number) for number in range(2)),
            *(call(1, 0, 1), call(1, 1, 2, "http_500")),
            *(call(2, 0, 1), call(2, 1, 2, "stall_timeout")),
            *(call(3, 0, 1), call(3, 1, 2, "interrupted")),
            call(4, 0, 1),
            *(call(5, 0, 1, scored=False), call(5, 1, 2, scored=False)),
            *(call(6, 0, 9.5), call(6, 1, 10.5)),
        ]
    ).document(WINDOW)
    assert (seen["runs"], seen["complete"], seen["failed"], seen["unfinished"]) == (6, 2, 2, 2)
    assert seen["failed_by_kind"] == {"http_500": 1, "stall_timeout": 1}
    assert (seen["e2e_s"]["samples"], seen["e2e_s"]["timed_out"]) == (3, 1)
    assert seen["completed_in_window_per_s"] == pytest.approx(0.1)  # one of the two ended after it
    assert seen["offered_per_s"] == pytest.approx(0.6)


@pytest.mark.parametrize(("limit", "verdict"), [(0.7, "pass"), (0.6, "fail")])
def test_workflows_have_an_slo_of_their_own(limit: float, verdict: str) -> None:
    taken = [call(flow, number, 1 + number * 0.5) for flow in range(30) for number in range(2)]
    slo = Slo(workflow_e2e_p95_s=limit)
    seen = judge(Figures(WINDOW, slo).extend(taken), workflow_e2e=figures(taken).e2e())
    assert seen.verdict == verdict
    assert seen.checks[0].name == "workflow_e2e_p95_s"
    # Where there are no workflows, nothing is promised to be kept.
    assert judge(Figures(WINDOW, slo).extend(taken)).verdict == "insufficient"


@given(st.none() | st.integers(0, 2**31 - 1), st.integers(0, 2**20))
def test_records_keep_workflow_and_call(workflow: int | None, number: int) -> None:
    one = record()
    one.workflow, one.call = workflow, number
    assert unpack(pack(one)) == one


def asked(*prompts: Any, before: tuple[Any, ...] = ()) -> dict[str, Any]:
    found = Asked()
    list(found.meet({"prompt": one} for one in before))
    list(found.count({"prompt": one, "max_tokens": 5} for one in prompts))
    return found.document()


def test_shares_are_counted_in_whole_blocks() -> None:
    base = list(range(40))
    assert asked(base, [*base[:20], *range(100, 120)])["shared_prefix_share"] == 16 / 80
    assert asked(base, base)["shared_prefix_share"] == 32 / 80
    assert asked(base, [7, *base[1:]])["shared_prefix_share"] == 0  # the same tokens elsewhere are no prefix
    assert asked(base, before=(base,))["shared_prefix_share"] == 32 / 40
    assert asked(base, "a text")["shared_prefix_share"] is None
    assert asked("a text")["prompt_tokens"] is None
    assert asked()["count"] == 0


def test_shares_of_a_long_stage_stop_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_node.load.asked._MOST_BLOCKS", 10)
    seen = asked(*([number] * 160 for number in range(5)))
    assert (seen["count"], seen["shares_of_requests"]) == (5, 2)
    assert seen["prompt_tokens"]["mean"] == 160
