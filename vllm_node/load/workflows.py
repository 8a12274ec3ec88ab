"""Whole workflows out of the records of their calls.

What a workflow takes is measured from its arrival to its last byte: no sum of the calls' percentiles would give it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm_node.load.definitions import Window
from vllm_node.load.distribution import Distribution
from vllm_node.load.records import OK, Record


@dataclass
class _Run:
    begun: int = 0
    ended: int = 0
    calls: int = 0
    in_calls: int = 0
    wrong: str = ""
    group: str = OK


class Workflows:
    """Takes records of calls, in any order, and gives the figures of the workflows. Only scored ones count."""

    def __init__(self, calls: Callable[[int], int]) -> None:
        """`calls` knows how many calls a workflow has."""
        self._calls = calls
        self._runs: dict[int, _Run] = {}

    def add(self, record: Record) -> None:
        """Take one."""
        if record.workflow is None or not record.scored:
            return
        run = self._runs.setdefault(record.workflow, _Run())
        if record.call == 0:
            run.begun = record.scheduled
        run.ended = max(run.ended, record.end)
        run.in_calls += record.end - record.scheduled
        run.calls += 1
        if record.kind != OK and not run.wrong:
            run.wrong, run.group = record.kind, record.group

    def e2e(self) -> Distribution:
        """Arrival to the last byte of the last call, of complete workflows; those that timed out are slower."""
        found = Distribution()
        for number, run in self._runs.items():
            if self._complete(number, run):
                found.add((run.ended - run.begun) // 1000)
            elif run.group == "timeout":
                found.timed_out += 1
        return found

    def document(self, window: Window) -> dict[str, Any]:
        """As it stands in a result. Times are seconds; the parts of a workflow are of complete ones."""
        complete = [run for number, run in self._runs.items() if self._complete(number, run)]
        wrong = Counter(run.wrong for run in self._runs.values() if run.wrong and run.group != "cancelled")
        e2e = self.e2e()
        calls, thinking = Distribution(), Distribution()
        for run in complete:
            calls.add(run.in_calls // 1000)
            thinking.add((run.ended - run.begun - run.in_calls) // 1000)
        took = sum(run.ended - run.begun for run in complete)
        counts = [run.calls for run in complete]
        inside = sum(run.ended <= window.end_ns for run in complete)
        return {
            "runs": len(self._runs),
            "complete": len(complete),
            "failed": wrong.total(),
            "unfinished": len(self._runs) - len(complete) - wrong.total(),
            "failed_by_kind": dict(sorted(wrong.items())),
            "e2e_s": {**e2e.summary(), "samples": e2e.n},
            "e2e_histogram": e2e.histogram(),
            "in_calls_s": calls.summary(),
            "thinking_s": thinking.summary(),
            "in_calls_share": sum(run.in_calls for run in complete) / took if took else None,
            "calls_per_run": {
                "mean": sum(counts) / len(counts) if counts else None,
                "min": min(counts, default=None),
                "max": max(counts, default=None),
                "samples": len(counts),
            },
            "offered_per_s": len(self._runs) / window.seconds if window.seconds > 0 else None,
            "completed_in_window_per_s": inside / window.seconds if window.seconds > 0 else None,
            "means": "a workflow lasts from its arrival to the last byte of its last call, thinking included; a call "
            "that fails ends it",
            "how": "measured",
        }

    def _complete(self, number: int, run: _Run) -> bool:
        return not run.wrong and run.calls == self._calls(number)
