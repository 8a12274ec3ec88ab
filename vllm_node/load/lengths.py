"""Lengths in tokens, drawn from a distribution."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from vllm_node.load.fields import Fields

# Standard deviations from the median to the 95th percentile.
_Z95 = 1.6448536269514722
_Z99 = 2.3263478740408408


@dataclass(frozen=True)
class Lengths:
    """`low` to `high`, evenly when `p50` is None, else log-normal with this median and `p95`, cut at both ends.

    With `p99` the tail beyond `p95` has a slope of its own, so that all three percentiles are as asked.
    """

    low: int
    high: int
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None

    def draw(self, random_: random.Random) -> int:
        """One length."""
        if self.p50 is None or self.p95 is None:
            return random_.randint(self.low, self.high)
        sigma = math.log(self.p95 / self.p50) / _Z95
        if self.p99 is None:
            return self._cut(random_.lognormvariate(math.log(self.p50), sigma))
        place = random_.normalvariate(0.0, 1.0)
        if place > _Z95:
            return self._cut(self.p95 * math.exp((place - _Z95) * math.log(self.p99 / self.p95) / (_Z99 - _Z95)))
        return self._cut(self.p50 * math.exp(place * sigma))

    def _cut(self, length: float) -> int:
        return min(self.high, max(self.low, round(length)))


def lengths(fields: Fields, name: str) -> Lengths | None:
    """Lengths out of a plan: `128`, `{"low": 64, "high": 256}` or `{"p50": 200, "p95": 900, "max": 4000}`.

    The last may have a `p99` and a `min` (1).
    """
    value = fields.any(name)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return Lengths(value, value)
    part = Fields(f"{fields.place}.{name}", value, fields.problems)
    if not part.values:
        fields.problem(name, "should be a whole number above 0 or a distribution")
        return None
    before = len(fields.problems)
    if "p50" in part.values:
        p50, p95 = part.take("p50", "a number", least=1), part.take("p95", "a number", least=1)
        p99 = part.take("p99", "a number", None, least=1)
        high, low = part.take("max", "a whole number", least=1), part.take("min", "a whole number", 1, least=1)
        part.end()
        if len(fields.problems) == before and not low <= p50 <= p95 <= (p95 if p99 is None else p99) <= high:
            fields.problem(name, "should have min <= p50 <= p95 <= p99 <= max")
        return Lengths(low, high, p50, p95, p99) if len(fields.problems) == before else None
    low, high = part.take("low", "a whole number", least=1), part.take("high", "a whole number", least=1)
    part.end()
    if len(fields.problems) == before and low > high:
        fields.problem(name, "should have low <= high")
    return Lengths(low, high) if len(fields.problems) == before else None
