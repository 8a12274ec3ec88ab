"""Quantiles against a plain sort, and words where there is no honest number."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_node.load.distribution import INSUFFICIENT, TIMED_OUT, Distribution, samples_needed

VALUES = st.lists(st.integers(0, 10**9), min_size=1, max_size=300)


def distribution(values: list[int], timed_out: int = 0) -> Distribution:
    found = Distribution()
    found.extend(values[: len(values) // 2])
    for value in values[len(values) // 2 :]:
        found.add(value)
    found.timed_out = timed_out
    return found


@pytest.mark.parametrize(("quantile", "needed"), [(0.5, 2), (0.95, 20), (0.99, 100)])
def test_samples_that_a_percentile_needs(quantile: float, needed: int) -> None:
    assert samples_needed(quantile) == needed
    assert distribution([7] * (needed - 1)).quantile(quantile) == INSUFFICIENT
    assert distribution([7] * needed).quantile(quantile) == 7e-6


@given(VALUES, st.sampled_from([50, 95, 99]))
def test_quantile_is_that_of_a_sort(values: list[int], percent: int) -> None:
    seen = distribution(values).quantile(percent / 100)
    if len(values) < samples_needed(percent / 100):
        assert seen == INSUFFICIENT
    else:
        truth = statistics.quantiles(values, n=100, method="inclusive")[percent - 1] / 1e6
        assert seen == pytest.approx(truth, rel=1e-9, abs=1e-12)


@given(VALUES, st.integers(0, 50), st.sampled_from([0.5, 0.95, 0.99]))
def test_what_timed_out_is_slower_than_all(values: list[int], timed_out: int, quantile: float) -> None:
    """It never makes a percentile smaller, and shows as soon as the percentile lies among it."""
    without, seen = distribution(values).quantile(quantile), distribution(values, timed_out).quantile(quantile)
    if isinstance(seen, float) and isinstance(without, float):
        assert seen >= without - 1e-12
    if timed_out > (1 - quantile) * (len(values) + timed_out) + 1 and seen != INSUFFICIENT:
        assert seen == TIMED_OUT


@given(VALUES)
def test_summary(values: list[int]) -> None:
    seen = distribution(values, 3).summary()
    assert (seen["n"], seen["timed_out"]) == (len(values) + 3, 3)
    assert seen["min"] == min(values) / 1e6
    assert seen["max"] == max(values) / 1e6
    assert seen["mean"] == pytest.approx(statistics.fmean(values) / 1e6)
    assert sum(times for _, times in distribution(values).histogram()) == len(values)


@given(VALUES, st.integers(0, 10**9))
def test_share_within(values: list[int], limit_us: int) -> None:
    assert distribution(values).share_within(limit_us / 1e6) == sum(value <= limit_us for value in values) / len(values)


def test_nothing_is_not_zero() -> None:
    assert Distribution().summary() == {
        "n": 0, "timed_out": 0, "mean": None, "min": None, "max": None,
        "p50": INSUFFICIENT, "p95": INSUFFICIENT, "p99": INSUFFICIENT,
    }


@given(VALUES)
def test_nearest_rank_needs_no_minimum(values: list[int]) -> None:
    """Few samples: the largest of them, so that one bad moment is not averaged away."""
    seen = distribution(values).nearest_rank(0.99)
    assert sum(value / 1e6 > seen for value in values) <= 0.01 * len(values)
    if len(values) < 100:
        assert seen == max(values) / 1e6
