"""Pass, fail and insufficient, each for its reason; and a queue that grows is an overload."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.load_values import NS, record
from vllm_node.load.definitions import Figures, Window
from vllm_node.load.distribution import Distribution
from vllm_node.load.records import Record
from vllm_node.load.selfcheck import INVALID, SelfCheck
from vllm_node.load.slo import Slo, contradictions
from vllm_node.load.trend import overloaded, trend
from vllm_node.load.verdict import Verdict, judge

SLO = Slo(ttft_p95_s=0.5, tpot_p95_s=0.05, e2e_p95_s=2.0, error_rate=0.05)


def verdict(taken: list[Record], slo: Slo = SLO, **other: object) -> Verdict:
    return judge(Figures(Window(0, 10 * NS), slo).extend(taken), **other)  # type: ignore[arg-type]


def test_pass() -> None:
    assert (verdict([record()] * 100).verdict, verdict([record()] * 100).reasons) == ("pass", [])


@pytest.mark.parametrize(
    ("slow", "name"),
    [
        (record(ttft_s=0.6), "ttft_p95_s"),
        (record(gaps_s=(0.1, 0.1)), "tpot_p95_s"),
        (record(rest_s=3), "e2e_p95_s"),
        (record("http_500"), "error_rate"),
        (record("first_byte_timeout"), "error_rate"),
        (record("http_429"), "error_rate"),
    ],
)
def test_fail_names_what_was_broken(slow: Record, name: str) -> None:
    seen = verdict([record()] * 90 + [slow] * 10)
    assert seen.verdict == "fail"
    assert any(reason.startswith(name) for reason in seen.reasons)
    assert verdict([record()] * 99 + [slow]).verdict == "pass"


def test_time_outs_are_slow_answers() -> None:
    """A server that lets one request in ten hang is not fast because the other nine are."""
    gone = record("first_byte_timeout")
    gone.contents_us = gone.contents_us[:0]
    seen = verdict([record()] * 90 + [gone] * 10, Slo(ttft_p95_s=0.5, error_rate=0.5))
    assert seen.verdict == "fail"
    assert "time-out" in seen.reasons[0]


def test_errors_are_judged_without_a_limit_of_theirs() -> None:
    seen = verdict([record()] * 50 + [record("http_429")] * 50, Slo(ttft_p95_s=0.5))
    assert seen.verdict == "fail"
    assert "default" in seen.reasons[0]


@pytest.mark.parametrize(
    ("taken", "slo", "other", "why"),
    [
        ([record()] * 19, SLO, {}, "19 samples"),
        ([], SLO, {}, "no request was offered"),
        ([record(gaps_s=(), tokens=1)] * 100, SLO, {}, "tpot_p95_s: 0 samples"),
        ([record()] * 100, SLO, {"stopped": "SIGINT was received"}, "ended early"),
        ([record()] * 100, SLO, {"void": ["lateness"]}, INVALID),
        ([record()] * 100, Slo(), {}, "no SLO"),
        ([record()] * 100 + [record("held_back")], SLO, {}, "held back"),
        ([record()] * 100, SLO, {"waiting": [(1.0, 0.0)] * 5}, "5 times"),
    ],
)
def test_insufficient_says_why(taken: list[Record], slo: Slo, other: dict[str, object], why: str) -> None:
    seen = verdict(taken, slo, **other)
    assert seen.verdict == "insufficient"
    assert any(why in reason for reason in seen.reasons), seen.reasons


def test_void_run_says_nothing_about_the_server() -> None:
    """Not even a fail: that the figures are bad may be the generator's doing."""
    assert verdict([record(ttft_s=9)] * 100, void=["the generator used 97 % of a core"]).verdict == "insufficient"


def test_goodput() -> None:
    taken = [record()] * 90 + [record(ttft_s=0.6)] * 10
    assert verdict(taken, Slo(ttft_p95_s=0.7, goodput_share=0.9)).verdict == "pass"
    loose = Slo(ttft_p95_s=0.55, goodput_share=0.95)
    assert any(reason.startswith("goodput_share") for reason in verdict(taken, loose).reasons)
    assert verdict(taken, Slo(goodput_per_s=10.0)).verdict == "pass"
    assert verdict(taken, Slo(goodput_per_s=10.1)).verdict == "fail"


def queue(slope: float, noise: float, seconds: int = 60, seed: int = 1) -> list[tuple[float, float]]:
    """A queue that grows by `slope` a second and wanders about it, each sample like the one before."""
    draw, off, found = random.Random(seed), 0.0, []
    for second in range(seconds):
        off = 0.7 * off + draw.gauss(0, noise)
        found.append((float(second), max(0.0, 5 + slope * second + off)))
    return found


def test_growing_queue_is_an_overload() -> None:
    seen = verdict([record()] * 100, waiting=queue(2.0, 3.0))
    assert seen.verdict == "fail"
    assert seen.reasons[0].startswith("overload")


def test_closed_loop_cannot_see_it() -> None:
    assert verdict([record()] * 100, waiting=queue(2.0, 3.0), open_loop=False).verdict == "pass"


def test_wandering_queue_is_none() -> None:
    called = sum(verdict([record()] * 100, waiting=queue(0.0, 3.0, seed=seed)).verdict == "fail" for seed in range(100))
    assert called <= 5


@given(st.floats(0.5, 20), st.floats(0, 100), st.integers(10, 100))
def test_slope_of_a_line(slope: float, start: float, count: int) -> None:
    found = trend([(at * 1.0, start + slope * at) for at in range(count)])
    assert found is not None
    assert found.slope == pytest.approx(slope)
    assert overloaded(found, 10, count)


def test_interval_holds_the_truth() -> None:
    found = [trend(queue(1.0, 4.0, seed=seed)) for seed in range(200)]
    held = sum(one is not None and one.low <= 1.0 <= one.high for one in found)
    assert held >= 175


def test_growth_that_does_not_matter() -> None:
    found = trend([(float(at), 0.01 * at) for at in range(60)])
    assert found is not None
    assert not overloaded(found, 10, 60)


@pytest.mark.parametrize("samples", [[], [(1.0, 1.0)] * 9, [(1.0, 1.0)] * 50])
def test_no_trend_without_samples(samples: list[tuple[float, float]]) -> None:
    assert trend(samples) is None


@pytest.mark.parametrize(
    ("slo", "lengths", "words"),
    [
        (Slo(tpot_p95_s=0.05, e2e_p95_s=10), [512] * 100, "contradicts"),
        (Slo(tpot_p95_s=0.05, e2e_p95_s=30), [512] * 100, None),
        (Slo(tpot_p95_s=0.05, e2e_p95_s=10), [64] * 96 + [512] * 4, None),
        (Slo(tpot_p95_s=0.05), [1] * 10, "one token"),
        (Slo(ttft_p95_s=2, e2e_p95_s=2), [], "not below"),
        (Slo(), [512], None),
    ],
)
def test_contradictions(slo: Slo, lengths: list[int], words: str | None) -> None:
    found = contradictions(slo, lengths)
    assert (not found) if words is None else (len(found) == 1 and words in found[0])


def check(lateness_us: int = 100, lag_us: int = 100, cpu: float = 0.1, offered: float | None = 10.0, achieved: float | None = 10.0) -> SelfCheck:
    lateness, lag = Distribution(), Distribution()
    lateness.extend([50] * 50 + [lateness_us])
    lag.extend([50] * 50 + [lag_us])
    return SelfCheck(lateness, lag, cpu, offered, achieved)


@pytest.mark.parametrize(
    ("one", "word"),
    [
        (check(), None),
        (check(lateness_us=10_001), "lateness"),
        (check(lateness_us=10_000), None),
        (check(lag_us=10_001), "lag"),
        (check(cpu=0.81), "core"),
        (check(achieved=9.79), "scheduled"),
        (check(achieved=9.81), None),
        (check(offered=None, achieved=None), None),
    ],
)
def test_bounds_of_the_generator(one: SelfCheck, word: str | None) -> None:
    reasons = one.reasons()
    assert (reasons == []) if word is None else (len(reasons) == 1 and word in reasons[0])
    assert one.document()["verdict"] == ("valid" if word is None else INVALID)
