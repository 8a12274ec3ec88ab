"""What happened in each second of a stage, for a chart on one time axis."""

from __future__ import annotations

from collections import Counter
from typing import Any

from vllm_node.load.arrivals import NS
from vllm_node.load.records import OK, Record

_COLUMNS = ("scheduled", "sent", "completed", "failed", "in_flight", "content_events")


class Timeline:
    """Takes records; scored or not, as the server sees both."""

    def __init__(self, start_ns: int) -> None:
        """`start_ns` is the start of the window."""
        self._start_ns = start_ns
        self._counts: dict[str, Counter[int]] = {name: Counter() for name in (*_COLUMNS, "left")}

    def add(self, record: Record) -> None:
        """Take one."""
        counts = self._counts
        counts["scheduled"][self._second(record.scheduled)] += 1
        if record.sent:
            counts["sent"][self._second(record.sent)] += 1
            counts["left"][self._second(record.end)] += 1
            after_us = (record.sent - self._start_ns) // 1000
            counts["content_events"].update((after_us + at) // 1_000_000 for at in record.contents_us)
        if record.kind == OK:
            counts["completed"][self._second(record.end)] += 1
        elif record.group != "cancelled":
            counts["failed"][self._second(record.end)] += 1

    def document(self) -> dict[str, Any]:
        """Columns of one number a second; `in_flight` is at the end of the second, seconds before the window < 0."""
        counts = self._counts
        used = [second for one in counts.values() for second in one]
        if not used:
            return {"second": [], **{name: [] for name in _COLUMNS}}
        seconds = range(min(used), max(used) + 1)
        found: dict[str, list[int]] = {name: [counts[name][second] for second in seconds] for name in _COLUMNS}
        now = 0
        for number, second in enumerate(seconds):
            now += counts["sent"][second] - counts["left"][second]
            found["in_flight"][number] = now
        return {"second": list(seconds), **found}

    def _second(self, at_ns: int) -> int:
        return (at_ns - self._start_ns) // NS
