"""Arrivals as they were recorded somewhere: one a line, in seconds or as time stamps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from vllm_node.bench.facts import WorkloadError

MOST_ARRIVALS = 1_000_000
MOST_SPAN_S = 86_400.0
_MOST_BYTES = 64 * 1024 * 1024
# Seconds beyond this are a date, not the distance from a beginning (2001 in Unix time); in milliseconds, micro, nano.
_UNIX_S = 1e9
_UNITS = ((1e18, 1e-9), (1e15, 1e-6), (1e12, 1e-3), (_UNIX_S, 1.0))


@dataclass(frozen=True)
class Trace:
    """Seconds after the beginning, ascending, and what was done to make them so."""

    offsets_s: tuple[float, ...]
    notices: tuple[str, ...]

    def arrivals(self) -> dict[str, Any]:
        """The part `arrivals` of a plan."""
        return {"kind": "trace", "offsets_s": list(self.offsets_s)}


def read_trace(path: Path, speed: float = 1.0) -> Trace:
    """Arrivals out of a file: seconds from its beginning, Unix times (s, ms, µs or ns), or ISO 8601, one a line.

    Times of day are moved so that the first arrival is at 0. `speed` 2 plays it twice as fast.

    Raises:
        WorkloadError: some lines are none of these; their numbers are named.
    """
    if not (math.isfinite(speed) and speed > 0):
        raise WorkloadError(f"the speed of a trace is above 0, not {speed!r}")
    if not path.is_file() or path.stat().st_size > _MOST_BYTES:
        raise WorkloadError(f"{path} is no file, or larger than {_MOST_BYTES >> 20} MiB")
    found: list[tuple[float, str]] = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        if len(found) >= MOST_ARRIVALS:
            raise WorkloadError(f"{path} has more than {MOST_ARRIVALS} arrivals")
        try:
            found.append(_time(line.decode().strip()))
        except ValueError as error:
            raise WorkloadError(f"{path}: line {number}: {error}") from None
        if found[-1][1] != found[0][1]:
            raise WorkloadError(f"{path}: line {number}: {found[-1][1]}, but the lines before are {found[0][1]}")
    if not found:
        raise WorkloadError(f"{path} holds no arrivals")
    return _normal(path, [at for at, _ in found], found[0][1] != "seconds", speed)


def _time(text: str) -> tuple[float, str]:
    """Seconds and what kind of time that was."""
    try:
        value = float(text)
    except ValueError:
        try:
            stamp = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{text[:40]!r} is neither seconds nor an ISO 8601 time") from None
        if stamp.tzinfo is None:
            # Once a year an hour of local time comes twice.
            raise ValueError(f"{text[:40]!r} has no time zone (Z, +02:00)") from None
        return stamp.timestamp(), "ISO 8601 times"
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{text[:40]!r} is no time at or after the beginning")
    for least, unit in _UNITS:
        if value >= least:
            return value * unit, f"Unix times in units of {unit:g} s"
    return value, "seconds"


def _normal(path: Path, times: list[float], stamps: bool, speed: float) -> Trace:
    notices = []
    ordered = sorted(times)
    if ordered != times:
        notices.append(f"the arrivals of {path.name} were not in order, and have been sorted")
    begin = ordered[0] if stamps else 0.0
    if stamps:
        notices.append(f"the times of {path.name} were moved so that the first arrival is at 0")
    if speed != 1:
        notices.append(f"the trace is played {speed:g} times as fast as it was recorded")
    offsets = tuple(round((at - begin) / speed, 9) for at in ordered)
    if offsets[-1] > MOST_SPAN_S:
        raise WorkloadError(f"{path} spans {offsets[-1] / 3600:.1f} h, more than {MOST_SPAN_S / 3600:.0f} h")
    return Trace(offsets, tuple(notices))
