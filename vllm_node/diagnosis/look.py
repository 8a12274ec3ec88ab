"""Reads signals of one subject out of the facts. What cannot be known stays unknown, with the reason."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vllm_node.diagnosis.facts import Facts, Subject, UnseenError
from vllm_node.diagnosis.signal import WINDOW, Signal
from vllm_node.diagnosis.thresholds import limits
from vllm_node.diagnosis.window import duration


@dataclass(frozen=True)
class Reading:
    """A signal's value, in its unit. `value` None: `missing` says why. window: what it covers, for people."""

    signal: Signal
    value: float | None
    missing: str = ""
    window: str = ""


class Look:
    """One subject through its signals; each is read once."""

    def __init__(self, facts: Facts, subject: Subject, signals: Mapping[str, Signal]) -> None:
        """Look at `subject`."""
        self.facts, self.subject = facts, subject
        self._signals = signals
        self._read: dict[str, Reading] = {}

    @cached_property
    def limits(self) -> dict[str, float]:
        """The numbers that signs are compared with."""
        return limits(self.facts.alerts)

    def read(self, name: str) -> Reading:
        """The signal of that id."""
        if name not in self._read:
            self._read[name] = self._reading(self._signals[name])
        return self._read[name]

    def value(self, name: str) -> float:
        """The value of another signal, for one that is worked out of it. Raises UnseenError."""
        reading = self.read(name)
        if reading.value is None:
            raise UnseenError(reading.missing)
        return reading.value

    def _reading(self, signal: Signal) -> Reading:
        covers = duration(self.facts.window_s) if signal.window == WINDOW else signal.window
        try:
            value = signal.compute(self) if signal.compute else self._from_prometheus(signal)
            self._enough(signal)
        except UnseenError as error:
            return Reading(signal, None, str(error), covers)
        return Reading(signal, value, "", covers)

    def _enough(self, signal: Signal) -> None:
        if not signal.counted_by:
            return
        count = self.value(signal.counted_by)
        if count < self.limits["samples"]:
            wanted = f"{self.limits['samples']:g}"
            raise UnseenError(f"insufficient: {count:.0f} requests in the window, {wanted} are wanted")

    def _from_prometheus(self, signal: Signal) -> float:
        answer = self.facts.answers.get(signal.id)
        if answer is None:
            raise UnseenError("Prometheus was not asked")
        if answer.get("error"):
            raise UnseenError(f"Prometheus refused: {answer['error']}")
        series = [one for one in answer["result"] if self.subject.owns(one["labels"])]
        if not series:
            raise UnseenError("no such series in Prometheus")
        return _fold(signal, [_number(one["value"]) for one in series])


def _number(value: Any) -> float:
    if isinstance(value, str):
        raise UnseenError(f"its value is {value}: what it is a share of did not occur")
    return float(value)


def _fold(signal: Signal, values: list[float]) -> float:
    if signal.fold == "max":
        return max(values)
    if signal.fold == "min":
        return min(values)
    if signal.fold == "sum":
        return sum(values)
    if signal.fold == "mean":
        return sum(values) / len(values)
    if len(values) < 2:
        raise UnseenError("there is one GPU only, and nothing to compare it with")
    spread = max(values) - min(values)
    if signal.fold == "spread":
        return spread
    if max(values) <= 0:
        raise UnseenError("all are zero, and a share of nothing is nothing")
    return spread / max(values)


def expression(signal: Signal, window_s: float) -> str:
    """The PromQL of a signal for a window."""
    return string.Template(signal.expr).substitute(window=duration(window_s))
