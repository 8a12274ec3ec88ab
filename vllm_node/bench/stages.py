"""Which stages a benchmark has, and in which order they run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """One stage: which `repeat` of its step, its place in the order, and its load.

    That is `rate_per_s` (open loop) or `clients` (closed loop); with neither, arrivals are those of a trace.
    """

    order: int
    repeat: int
    rate_per_s: float | None = None
    clients: int | None = None

    @property
    def name(self) -> str:
        """For people."""
        load = "recorded arrivals" if self.clients is None else f"{self.clients} clients"
        if self.rate_per_s is not None:
            load = f"{self.rate_per_s:g} requests/s"
        return f"{load}, repeat {self.repeat}"


def turns(
    rates: Sequence[float], clients: Sequence[int], repeats: int, seed: int, *, trace: bool = False
) -> list[Turn]:
    """All stages, repeat by repeat, each repeat in an order of its own (the first one from low to high).

    A `trace` is one step more. Whatever drifts on the node meanwhile then hits every rate alike, and a benchmark that
    is cut off has looked at each rate before it looks at one twice.
    """
    steps: list[tuple[float | None, int | None]] = [(rate, None) for rate in sorted(set(rates))]
    steps += [(None, number) for number in sorted(set(clients))]
    steps += [(None, None)] if trace else []
    found: list[Turn] = []
    for repeat in range(1, repeats + 1):
        ordered = list(steps)
        if repeat > 1:
            random.Random(f"{seed}/{repeat}").shuffle(ordered)  # noqa: S311 - an order, not a secret
        found += [Turn(len(found) + at + 1, repeat, rate, number) for at, (rate, number) in enumerate(ordered)]
    return found
