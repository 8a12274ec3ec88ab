"""Lengths in tokens, drawn from a distribution."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from vllm_node.load.fields import Fields

# Standard deviations from the median to the 95th percentile.
_Z95 = 1.6448536269514722


@dataclass(frozen=True)
class Lengths:
    """`low` to `high`, evenly when `p50` is None, else log-normal with this median and `p95`, cut at both ends."""

    low: int
    high: int
    p50: float | None = None
    p95: float | None = None

    def draw(self, random_: random.Random) -> int:
        """One length."""
        if self.p50 is None or self.p95 is None:
            return random_.randint(self.low, self.high)
        sigma = math.log(self.p95 / self.p50) / _Z95
        return min(self.high, max(self.low, round(random_.lognormvariate(math.log(self.p50), sigma))))


def lengths(fields: Fields, name: str) -> Lengths | None:
    """Lengths out of a plan: `128`, `{"low": 64, "high": 256}` or `{"p50": 200, "p95": 900, "max": 4000}`."""
    value = fields.any(name)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return Lengths(value, value)
    part = Fields(f"{fields.place}.{name}", value, fields.problems)
    if not part.values:
        fields.problem(name, "should be a number of tokens or a distribution")
        return None
    before = len(fields.problems)
    if "p50" in part.values:
        p50, p95 = part.take("p50", "a number", least=1), part.take("p95", "a number", least=1)
        high, low = part.take("max", "a whole number", least=1), part.take("min", "a whole number", 1, least=1)
        part.end()
        if len(fields.problems) == before and not low <= p50 <= p95 <= high:
            fields.problem(name, "should have min <= p50 <= p95 <= max")
        return Lengths(low, high, p50, p95) if len(fields.problems) == before else None
    low, high = part.take("low", "a whole number", least=1), part.take("high", "a whole number", least=1)
    part.end()
    if len(fields.problems) == before and low > high:
        fields.problem(name, "should have low <= high")
    return Lengths(low, high) if len(fields.problems) == before else None
