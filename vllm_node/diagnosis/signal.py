"""What a signal is: one number about a subject, where it comes from, and how it was obtained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from vllm_node.diagnosis.look import Look

Obtained = Literal["measured", "derived", "inferred"]
Unit = Literal[
    "ratio", "seconds", "requests", "tokens", "percent", "degrees", "cores", "per second", "count", "yes or no"
]
Fold = Literal["max", "min", "mean", "sum", "spread", "spread share"]

WINDOW = "$window"


@dataclass(frozen=True)
class Signal:
    """One number.

    family: what is observed. Signals of one family are one observation seen twice, and count as one.
    expr: PromQL with `$window`; or compute: a function of the other sources, which raises UnseenError.
    fold: how several series of a subject become one number. window: `$window`, a fixed duration, or `now`.
    counted_by: signal with the number of samples behind it; too few make it unobservable.
    """

    id: str
    words: str
    unit: Unit
    family: str
    obtained: Obtained
    expr: str = ""
    compute: Callable[[Look], float] | None = None
    fold: Fold = "max"
    window: str = WINDOW
    counted_by: str = ""


def query(
    id_: str,
    words: str,
    unit: Unit,
    family: str,
    obtained: Obtained,
    expr: str,
    *,
    fold: Fold = "max",
    window: str = WINDOW,
    counted_by: str = "",
) -> Signal:
    """A signal that Prometheus knows."""
    return Signal(id_, words, unit, family, obtained, expr, None, fold, window, counted_by)


def computed(
    id_: str,
    words: str,
    unit: Unit,
    family: str,
    obtained: Obtained,
    compute: Callable[[Look], float],
    *,
    window: str = WINDOW,
) -> Signal:
    """A signal that is worked out here."""
    return Signal(id_, words, unit, family, obtained, "", compute, "max", window)
