"""What a load generator or an application measured on its own side, as a JSON file.

{"schema": 1, "instance": "chat", "from": 1800000000, "to": 1800000900,
 "ttft_s": {"p95": 0.4, "mean": 0.3, "samples": 900}, "e2e_s": {…},
 "lateness_p99_s": 0.001, "loop_lag_p99_s": 0.001, "cpu_cores": 0.4}

Only `schema` and one of `ttft_s` and `e2e_s` are required.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SCHEMA = 1
_MEASURES = ("ttft_s", "e2e_s")
_NUMBERS = ("lateness_p99_s", "loop_lag_p99_s", "cpu_cores")
_KEYS = ("schema", "instance", "from", "to", *_MEASURES, *_NUMBERS)


@dataclass(frozen=True)
class Client:
    """Seconds and cores; `ttft_s` and `e2e_s` hold p95, mean and samples. None: the client did not measure it."""

    instance: str | None = None
    start: float | None = None
    end: float | None = None
    ttft_s: Mapping[str, float] | None = None
    e2e_s: Mapping[str, float] | None = None
    lateness_p99_s: float | None = None
    loop_lag_p99_s: float | None = None
    cpu_cores: float | None = None

    @property
    def window_s(self) -> int | None:
        """Length of its measurement in seconds."""
        return None if self.start is None or self.end is None else max(1, round(self.end - self.start))


def read(document: Any) -> Client:
    """A client's measurements. Raises ValueError, naming the key, for what is of another form."""
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        raise ValueError(f"it is no client's measurement of schema {SCHEMA}")
    unknown = sorted(set(document) - set(_KEYS))
    if unknown:
        raise ValueError(f"unknown key {unknown[0]}; known are {', '.join(_KEYS)}")
    ttft, e2e = (_measure(key, document.get(key)) for key in _MEASURES)
    if ttft is None and e2e is None:
        raise ValueError("it has neither ttft_s nor e2e_s")
    start, end, lateness, lag, cores = (_number(key, document.get(key)) for key in ("from", "to", *_NUMBERS))
    if (start is None) != (end is None) or (start is not None and end is not None and end <= start):
        raise ValueError("from and to belong together, and to is the later one")
    instance = document.get("instance")
    return Client(None if instance is None else str(instance), start, end, ttft, e2e, lateness, lag, cores)


def _measure(key: str, value: Any) -> dict[str, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or not {"p95", "mean"} & set(value) or "samples" not in value:
        raise ValueError(f"{key} holds samples, and p95 or mean or both")
    found = {name: _number(f"{key}.{name}", value[name]) for name in ("p95", "mean", "samples") if name in value}
    return {name: number for name, number in found.items() if number is not None}


def _number(key: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{key} is no number of zero or more: {value!r}")
    return float(value)
