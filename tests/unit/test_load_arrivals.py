"""Schedules: repeatable, of the rate that was asked for, and whole before the start."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_node.load import arrivals
from vllm_node.load.arrivals import NS

RATES = st.floats(0.5, 500)
DURATIONS = st.floats(0.1, 20)


@given(RATES, DURATIONS, st.text(max_size=5))
def test_poisson_stays_in_its_window_and_repeats(rate: float, duration_s: float, seed: str) -> None:
    one = arrivals.poisson(rate, duration_s, seed)
    assert one == arrivals.poisson(rate, duration_s, seed)
    assert list(one.offsets_ns) == sorted(one.offsets_ns)
    assert all(0 <= at <= one.duration_ns for at in one.offsets_ns)


def test_poisson_differs_by_its_seed() -> None:
    assert arrivals.poisson(10, 10, "0/0/a") != arrivals.poisson(10, 10, "0/1/a")


def test_poisson_has_the_rate_and_the_spread_of_one() -> None:
    one = arrivals.poisson(1000, 60, "x")
    gaps = [after - before for before, after in zip(one.offsets_ns, one.offsets_ns[1:], strict=False)]
    assert one.rate == pytest.approx(1000, rel=0.02)
    # The gaps of a Poisson process spread as widely as they are long.
    assert statistics.pstdev(gaps) == pytest.approx(statistics.fmean(gaps), rel=0.03)


@given(RATES, DURATIONS)
def test_constant_does_not_drift(rate: float, duration_s: float) -> None:
    one = arrivals.constant(rate, duration_s)
    assert abs(len(one.offsets_ns) - rate * duration_s) <= 1
    for number, at in enumerate(one.offsets_ns):
        assert abs(at - number * NS / rate) <= 1


def test_constant_counts() -> None:
    assert len(arrivals.constant(10, 3).offsets_ns) == 30
    assert len(arrivals.constant(0.1, 30).offsets_ns) == 3


@given(st.lists(st.floats(0, 1000), min_size=1), st.none() | st.floats(1, 500))
def test_trace_is_what_was_recorded(offsets_s: list[float], duration_s: float | None) -> None:
    one = arrivals.recorded(offsets_s, duration_s)
    kept = sorted(at for at in offsets_s if duration_s is None or at < duration_s)
    assert list(one.offsets_ns) == [round(at * NS) for at in kept]
    assert all(at <= one.duration_ns for at in one.offsets_ns)


@pytest.mark.parametrize("offsets_s", [[], [-1.0, 2.0]])
def test_trace_that_is_none(offsets_s: list[float]) -> None:
    with pytest.raises(ValueError, match="arrival"):
        arrivals.recorded(offsets_s)
