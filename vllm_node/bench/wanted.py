"""What a benchmark is asked to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Wanted:
    """What was asked for; the names are those of the role's variables without their prefix. Times in seconds.

    `requests` and `trace` are paths on this machine. `duration_s` 0: the trace's, or the usual one. `rates` and
    `clients` both empty: the trace, or the usual rate. `correctness`: checks that were made a moment ago.
    `cross_check`: whether `vllm bench serve` is asked as well.
    """

    host: str
    instance: Mapping[str, Any]
    workload: str
    rates: Sequence[float]
    clients: Sequence[int]
    repeats: int
    duration_s: float
    lead_in_s: float
    warmup_requests: int
    seed: int
    slo: Mapping[str, float]
    max_in_flight: int
    max_errors: int
    approved: bool
    cpus: str
    reference: str
    requests: str = ""
    requests_reuse: bool = False
    api: str = "completions"
    trace: str = ""
    trace_speed: float = 1.0
    parameters: Mapping[str, Any] = field(default_factory=dict)
    cross_check: bool = False
    kind: str = "benchmark"
    correctness: Sequence[Mapping[str, Any]] | None = None
    prometheus: str | None = None
    scrape_interval_s: float = 15
    lock: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    role_args: Mapping[str, Any] = field(default_factory=dict)
    snapshot: Mapping[str, Any] | None = None

    @property
    def url(self) -> str:
        """Address of the instance on its node."""
        return f"http://127.0.0.1:{self.instance['port']}"

    @property
    def model(self) -> str:
        """Name in the API."""
        return str(self.instance.get("served_model_name") or self.instance["name"])
