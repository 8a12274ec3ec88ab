"""When requests are sent: an open loop does not wait for answers, a closed loop does.

A schedule is computed whole before the first request, so that nothing in the run can move it.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

NS = 1_000_000_000


@dataclass(frozen=True)
class Schedule:
    """Send times in nanoseconds after the start, ascending, and the length of the window in which they lie."""

    offsets_ns: array[int]
    duration_ns: int

    @property
    def rate(self) -> float:
        """Requests per second that the schedule offers."""
        return len(self.offsets_ns) * NS / self.duration_ns


@dataclass(frozen=True)
class ClosedLoop:
    """So many clients, each of which sends its next request when it has its answer and has thought about it.

    `duration_s` None: until the requests are used up. `ramp_s`: the clients begin spread over this time.
    """

    clients: int
    think_s: float = 0.0
    duration_s: float | None = None
    ramp_s: float = 0.0


def poisson(rate: float, duration_s: float, seed: str) -> Schedule:
    """Independent arrivals, `rate` a second on average; the same seed gives the same schedule."""
    draw = random.Random(seed)  # noqa: S311 - repeatable on purpose
    offsets: list[float] = []
    at = draw.expovariate(rate)
    while at < duration_s:
        offsets.append(at)
        at += draw.expovariate(rate)
    return _schedule(offsets, duration_s)


def constant(rate: float, duration_s: float) -> Schedule:
    """One arrival every 1/rate seconds, the first at the start."""
    # Multiplied, not added up: an hour of additions would drift. The margin is for 0.1 * 30 being just above 3.
    count = int(rate * duration_s + 1 - 1e-9)
    return _schedule((number / rate for number in range(count)), duration_s)


def recorded(offsets_s: Iterable[float], duration_s: float | None = None) -> Schedule:
    """A trace of arrivals in seconds after its start; what lies beyond `duration_s` is left out.

    Without `duration_s` the window ends one mean gap after the last arrival.

    Raises:
        ValueError: the trace is empty, or has a time before its start.
    """
    offsets = sorted(offsets_s)
    if not offsets:
        raise ValueError("the trace has no arrivals")
    if offsets[0] < 0:
        raise ValueError(f"the trace has an arrival {-offsets[0]} s before its start")
    if duration_s is None:
        span = offsets[-1] - offsets[0]
        duration_s = offsets[-1] + (span / (len(offsets) - 1) if span else 1.0)
    return _schedule((one for one in offsets if one < duration_s), duration_s)


def _schedule(offsets_s: Iterable[float], duration_s: float) -> Schedule:
    return Schedule(array("q", (round(one * NS) for one in offsets_s)), round(duration_s * NS))
