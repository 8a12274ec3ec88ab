"""Many durations, exact to the microsecond, in memory that depends on how different they are, not on how many."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

US = 1_000_000
INSUFFICIENT = "insufficient"
TIMED_OUT = "timed out"


def samples_needed(quantile: float) -> int:
    """Fewer samples than this hold no observation beyond the quantile: 2 for p50, 20 for p95, 100 for p99."""
    return math.ceil(round(1 / (1 - quantile), 6))


class Distribution:
    """Durations in microseconds, and how many are only known to be longer than all of these.

    The latter come from requests that ran into a time-out: leaving them out would make a server that stops answering
    look fast.
    """

    def __init__(self) -> None:
        """No durations yet."""
        self.counts: Counter[int] = Counter()
        self.timed_out = 0
        self._keys: list[int] | None = None

    def add(self, value_us: int) -> None:
        """One more."""
        self.counts[value_us] += 1
        self._keys = None

    def extend(self, values_us: Iterable[int]) -> None:
        """Many more."""
        self.counts.update(values_us)
        self._keys = None

    @property
    def n(self) -> int:
        """How many, with those that timed out."""
        return self.counts.total() + self.timed_out

    def quantile(self, quantile: float) -> float | str:
        """Seconds, interpolated linearly between neighbours; a word where there is no honest number."""
        count = self.n
        if count < samples_needed(quantile):
            return INSUFFICIENT
        place = quantile * (count - 1)
        below, above = self._at(math.floor(place)), self._at(math.ceil(place))
        if below is None or above is None:
            return TIMED_OUT
        return (below + (above - below) * (place - math.floor(place))) / US

    def nearest_rank(self, quantile: float) -> float:
        """Seconds that at most 1 - quantile of the samples exceed (nearest rank), whatever their number.

        For bounds that have to hold: with few samples this is the largest of them. 0 without any.
        """
        known = self.counts.total()
        return (self._at(max(0, math.ceil(quantile * known) - 1)) or 0) / US if known else 0.0

    def mean(self) -> float | None:
        """Mean in seconds of those that are known; None without any."""
        known = self.counts.total()
        return sum(value * times for value, times in self.counts.items()) / known / US if known else None

    def share_within(self, limit_s: float) -> float | None:
        """Share that is at most `limit_s`; None without any."""
        met = sum(times for value, times in self.counts.items() if value <= round(limit_s * US))
        return met / self.n if self.n else None

    def summary(self) -> dict[str, float | int | str | None]:
        """As it stands in a result: seconds, with the number of samples."""
        return {
            "n": self.n,
            "timed_out": self.timed_out,
            "mean": self.mean(),
            "min": min(self.counts) / US if self.counts else None,
            "max": max(self.counts) / US if self.counts else None,
            **{f"p{quantile * 100:.0f}": self.quantile(quantile) for quantile in (0.5, 0.95, 0.99)},
        }

    def histogram(self, per_decade: int = 40) -> list[tuple[float, int]]:
        """Upper bounds in seconds on a logarithmic scale with how many lie at or below it and above the one before."""
        found: Counter[int] = Counter()
        for value, times in self.counts.items():
            found[math.ceil(math.log10(max(value, 1)) * per_decade)] += times
        return [(10 ** (step / per_decade) / US, times) for step, times in sorted(found.items())]

    def _at(self, rank: int) -> int | None:
        """The value at a place of the sorted samples; None in the part that timed out."""
        if self._keys is None:
            self._keys = sorted(self.counts)
        for value in self._keys:
            rank -= self.counts[value]
            if rank < 0:
                return value
        return None
