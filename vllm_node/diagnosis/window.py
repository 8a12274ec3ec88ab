"""Durations and moments as an operator writes them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
SHORTEST_S, LONGEST_S = 60, 86400


def seconds(text: str) -> int:
    """Seconds of a duration such as `15m` or `1h30m`. Raises ValueError below a minute and above a day."""
    parts = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text.strip())
    if not text.strip() or parts is None:
        raise ValueError(f"{text!r} is no duration; write it as 15m or 1h30m")
    total = sum(int(count) * unit for count, unit in zip(parts.groups(), _UNITS.values(), strict=True) if count)
    if not SHORTEST_S <= total <= LONGEST_S:
        raise ValueError(f"{text} is no useful window: rates need a minute, and a day hides what happened in it")
    return total


def duration(total: float) -> str:
    """A duration as Prometheus and people write it: 5400 → `1h30m`."""
    rest, text = int(total), ""
    for letter, size in _UNITS.items():
        count, rest = divmod(rest, size)
        text += f"{count}{letter}" if count else ""
    return text or "0s"


def moment(text: str) -> float:
    """Seconds since 1970 of an ISO 8601 time with its offset, or of a plain number. Raises ValueError."""
    if re.fullmatch(r"\d+(\.\d+)?", text.strip()):
        return float(text)
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"{text!r} is no time; write it as 2026-05-04T13:30:00+02:00, or in seconds since 1970"
        ) from None
    if found.tzinfo is None:
        raise ValueError(f"{text!r} names no time zone; write it as {text.strip()}Z for UTC, or with an offset")
    return found.timestamp()


def clock(at: float) -> str:
    """A moment for people, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
