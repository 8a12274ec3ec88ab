"""Whether a queue grows: the slope of its length over time, with how sure it is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

MIN_SAMPLES = 10
# Two-sided 95 %; the samples are tens at least, so the normal value will do.
_Z = 1.96


@dataclass(frozen=True)
class Trend:
    """Requests per second by which the queue grows, with the bounds of a 95 % interval."""

    slope: float
    low: float
    high: float
    samples: int


def trend(samples: Sequence[tuple[float, float]]) -> Trend | None:
    """The trend of (seconds, length); None when there are too few samples.

    Neighbouring samples of a queue are alike, so the interval of plain least squares would be far too narrow: the
    number of independent samples is estimated from the correlation of the residuals.
    """
    count = len(samples)
    if count < MIN_SAMPLES:
        return None
    mean_t = sum(at for at, _ in samples) / count
    mean_v = sum(value for _, value in samples) / count
    spread = sum((at - mean_t) ** 2 for at, _ in samples)
    if spread <= 0:
        return None
    slope = sum((at - mean_t) * (value - mean_v) for at, value in samples) / spread
    residuals = [value - mean_v - slope * (at - mean_t) for at, value in samples]
    squares = sum(one * one for one in residuals)
    if squares == 0:
        return Trend(slope, slope, slope, count)
    alike = sum(before * after for before, after in itertools.pairwise(residuals)) / squares
    alike = min(0.95, max(0.0, alike))
    independent = max(3.0, count * (1 - alike) / (1 + alike))
    error = math.sqrt(squares / (independent - 2) / spread)
    return Trend(slope, slope - _Z * error, slope + _Z * error, count)


def overloaded(found: Trend, offered_per_s: float, window_s: float) -> bool:
    """Whether the server is surely left behind: it does not finish 98 % of what is offered.

    A growth of less than two requests over the whole window is none, however sure it is.
    """
    return found.low > 0 and found.slope >= 0.02 * offered_per_s and found.slope * window_s >= 2
