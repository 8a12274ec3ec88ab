"""Numbers that say how they were obtained, and how far they may be off."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Word = Literal["measured", "derived", "inferred", "unobservable"]
GIB = 1 << 30


@dataclass(frozen=True)
class Figure:
    """One number of a plan. `value` is None when nothing tells it, and `word` is then `unobservable`.

    low, high: the range in which the truth is expected; None where the figure has no range of its own.
    how: where it comes from, in a few words.
    """

    name: str
    value: float | None
    unit: str
    word: Word
    how: str
    low: float | None = None
    high: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Span:
    """A best guess and the range around it, all in the same unit."""

    low: float
    best: float
    high: float

    def __add__(self, other: Span) -> Span:
        """Both together; the ranges add up."""
        return Span(self.low + other.low, self.best + other.best, self.high + other.high)

    def times(self, factor: float) -> Span:
        """The same, so many times."""
        return Span(self.low * factor, self.best * factor, self.high * factor)


NOTHING = Span(0.0, 0.0, 0.0)


def exactly(value: float) -> Span:
    """A number without a range."""
    return Span(value, value, value)


def unobservable(name: str, unit: str, why: str) -> Figure:
    """A figure that nothing tells."""
    return Figure(name, None, unit, "unobservable", why)


def size(value: float) -> str:
    """Bytes for people."""
    for unit, factor in (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(value) >= factor:
            number = value / factor
            return f"{number:.0f} {unit}" if number >= 1000 or number == int(number) else f"{number:.1f} {unit}"
    return f"{value:.0f} B"
