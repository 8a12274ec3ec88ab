"""The scored time of a stage, on the clock of the machine that ran the generator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Window:
    """From `start` to `end`, in seconds since 1970. Raises ValueError when it has no length."""

    start: float
    end: float

    def __post_init__(self) -> None:
        """A rate over no time is no number."""
        if not self.end > self.start:
            raise ValueError(f"a window from {self.start} to {self.end} has no length")

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start

    @property
    def duration(self) -> str:
        """Its length as PromQL writes it, exact to the millisecond, which is all that Prometheus keeps."""
        return f"{max(1, round(self.seconds * 1000))}ms"

    def document(self) -> dict[str, float]:
        """As it stands in a run document."""
        return {"start": self.start, "end": self.end}

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Window:
        """The window of an engine's `result.json`. Raises KeyError or ValueError where there is none."""
        return cls(float(result["window"]["start_unix_s"]), float(result["window"]["end_unix_s"]))
