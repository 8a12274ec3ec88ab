"""Quantiles out of buckets, held against the samples that were put into them."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_node.bench.buckets import Histogram
from vllm_node.load.distribution import INSUFFICIENT

EDGES = (0.001, 0.005, 0.01, 0.1, 0.25, 1.0, 2.5, 10.0, 80.0)


def histogram(samples: list[float]) -> Histogram:
    counts = [0] * (len(EDGES) + 1)
    for sample in samples:
        counts[bisect_left(EDGES, sample)] += 1
    return Histogram(zip((*EDGES, math.inf), map(float, accumulate(counts)), strict=True), sum(samples))


def reference(samples: list[float], quantile: float) -> tuple[float, float, float]:
    """(low, high, value) by counting the samples themselves, bucket by bucket."""
    rank = quantile * len(samples)
    low = 0.0
    for high in (*EDGES, math.inf):
        below = sum(sample <= low for sample in samples) if low else 0
        inside = sum(low < sample <= high or (low == 0 and sample <= high) for sample in samples)
        if below + inside >= rank - 1e-9:
            return low, high, low + (high - low) * max(0.0, rank - below) / inside
        low = high
    raise AssertionError("the last bucket holds all")


@given(st.lists(st.floats(1e-4, 79), min_size=100, max_size=300), st.sampled_from((0.5, 0.95, 0.99)))
def test_a_quantile_is_that_of_the_samples_within_its_bucket(samples: list[float], quantile: float) -> None:
    found = histogram(samples).quantile(quantile)
    low, high, value = reference(samples, quantile)
    assert (found.low, found.high, found.samples) == (low, high, len(samples))
    assert found.value == pytest.approx(value)
    true = sorted(samples)[math.ceil(round(quantile * len(samples), 6)) - 1]
    assert low <= true <= high


@given(st.lists(st.floats(1e-4, 79), min_size=2, max_size=300), st.integers(1, 5))
def test_engines_are_added_up_before_the_quantile(samples: list[float], engines: int) -> None:
    parts = [samples[number::engines] for number in range(engines)]
    together = Histogram(
        [pair for part in parts for pair in zip(histogram(part).edges, histogram(part).counts, strict=True)]
    )
    assert together.quantile(0.5) == histogram(samples).quantile(0.5)


@given(st.lists(st.floats(1e-4, 79), min_size=100, max_size=300))
def test_quantiles_never_fall(samples: list[float]) -> None:
    found = [histogram(samples).quantile(quantile).value for quantile in (0.5, 0.95, 0.99)]
    assert found == sorted(found, key=lambda value: float(value or 0))


@pytest.mark.parametrize(
    ("samples", "quantile", "word"), [(1, 0.5, INSUFFICIENT), (19, 0.95, INSUFFICIENT), (99, 0.99, INSUFFICIENT)]
)
def test_too_few_samples_give_a_word(samples: int, quantile: float, word: str) -> None:
    assert histogram([0.02] * samples).quantile(quantile).value == word
    assert isinstance(histogram([0.02] * (samples + 1)).quantile(quantile).value, float)


def test_no_sample_is_not_zero() -> None:
    found = histogram([]).quantile(0.5)
    assert found.value is None
    assert found.why == "nothing was observed in the window"
    assert histogram([]).mean() is None


def test_above_the_last_edge_nothing_is_known() -> None:
    found = histogram([100.0] * 100).quantile(0.5)
    assert (found.value, found.low, found.high) == (None, 80.0, None)
    assert found.why == "it lies above the last edge, 80"


def test_without_an_edge_at_infinity_the_number_of_samples_is_not_known() -> None:
    assert Histogram([(1.0, 100.0)]).quantile(0.5).value is None
    assert Histogram([]).quantile(0.5).value is None


def test_extrapolated_counts_that_fall_by_a_hair_do_no_harm() -> None:
    found = Histogram([(0.1, 57.0000001), (0.2, 57.0), (math.inf, 60.0000001)]).quantile(0.95)
    assert found.high == 0.1
    assert found.value == pytest.approx(0.1)
