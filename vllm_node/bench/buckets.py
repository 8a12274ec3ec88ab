"""Histograms with fixed edges: adding them up, and the quantile that can be read from them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from vllm_node.load.distribution import INSUFFICIENT, samples_needed

# What is added up and extrapolated is not exact in its last digits; a rank must not miss its bucket for that.
_DIGITS = 9


@dataclass(frozen=True)
class Quantile:
    """A quantile as a histogram knows it: it lies between `low` and `high`; `value` is interpolated between these.

    `value` is "insufficient" with too few samples, and None where nothing or only "above the last edge" is known; then
    `why` says it.
    """

    value: float | str | None
    samples: int
    low: float | None = None
    high: float | None = None
    why: str | None = None


class Histogram:
    """Counts by upper edge, cumulative as they are on the wire, of all engines together. `total_s` is their sum."""

    def __init__(self, buckets: Iterable[tuple[float, float]], total: float | None = None) -> None:
        """`buckets`: (upper edge, cumulative count), in any order; those with one edge are added up."""
        counts: defaultdict[float, float] = defaultdict(float)
        for edge, count in buckets:
            counts[edge] += count
        self.total = total
        self.edges = sorted(counts)
        self.counts: list[float] = []
        for edge in self.edges:
            # Prometheus extrapolates each series for itself, so that a count may fall by a hair.
            self.counts.append(max(counts[edge], self.counts[-1] if self.counts else 0.0))

    def __bool__(self) -> bool:
        """Whether it has any bucket at all; it may well be without samples."""
        return bool(self.edges)

    @property
    def whole(self) -> bool:
        """Whether it has an edge at infinity, without which the number of samples is not known."""
        return bool(self.edges) and self.edges[-1] == math.inf

    @property
    def n(self) -> float:
        """How many samples it holds; extrapolated counts are not whole."""
        return self.counts[-1] if self.whole else 0.0

    def mean(self) -> float | None:
        """Mean of the samples, exact in spite of the buckets; None without any."""
        return self.total / self.n if self.total is not None and self.n > 0 else None

    def quantile(self, quantile: float) -> Quantile:
        """The quantile, interpolated linearly inside of its bucket as Prometheus does."""
        if not self.whole:
            return Quantile(None, 0, why="the histogram has no edge at +Inf")
        samples = round(self.n)
        if samples == 0:
            return Quantile(None, 0, why="nothing was observed in the window")
        rank = round(quantile * self.n, _DIGITS)
        place = next(i for i, count in enumerate(self.counts) if round(count, _DIGITS) >= rank)
        high = self.edges[place]
        low = self.edges[place - 1] if place else min(0.0, high)
        before = self.counts[place - 1] if place else 0.0
        if samples < samples_needed(quantile):
            return Quantile(INSUFFICIENT, samples)
        if high == math.inf:
            return Quantile(None, samples, low, None, f"it lies above the last edge, {low:g}")
        inside = self.counts[place] - before
        share = min(1.0, max(0.0, (rank - before) / inside)) if inside > 0 else 1.0
        return Quantile(low + (high - low) * share, samples, low, high)
