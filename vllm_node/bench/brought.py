"""What a user brings along for a benchmark: requests, recorded arrivals, fields of bodies.

It is read and judged on the control host, before a node is asked anything.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_node.bench.facts import WorkloadError
from vllm_node.bench.own_requests import OwnRequests, read_requests
from vllm_node.bench.trace import Trace, read_trace
from vllm_node.load.arrivals import NS, recorded
from vllm_node.load.plan import parameter_problems

# Where the arrivals lie, seen from the plan. In the plan they would stand in each result again.
_ARRIVALS = "arrivals.txt"
# A closed loop that may go through its requests again needs to know how often. A server that answers faster than this
# has used them up before the stage is over, and all bodies are made before it begins.
_FASTEST_S = 0.25
_MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class Brought:
    """What was brought; None where nothing was. `origin` says which files these were."""

    requests: OwnRequests | None = None
    trace: Trace | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def span_s(self) -> float | None:
        """How long the trace is, with one mean gap after its last arrival; None without one."""
        return None if self.trace is None else recorded(self.trace.offsets_s).duration_ns / NS

    @property
    def notices(self) -> tuple[str, ...]:
        """What was done to the trace."""
        return () if self.trace is None else self.trace.notices

    def workload(self, preset: str, stage: int = 1, of: int = 1) -> OwnRequests | str:
        """The requests of a stage: those of the `stage`-th part of so many, or the preset's."""
        if self.requests is None:
            return preset
        # Requests that may be sent twice may also be sent in two stages, which then have the same ones.
        return self.requests if self.requests.reuse else self.requests.part(stage, of)

    def count(self, clients: int, duration_s: float) -> int | None:
        """How many requests a closed loop makes; None: as many as there are, or as the preset says."""
        if self.requests is None or not self.requests.reuse:
            return None
        there = len(self.requests.requests)
        room = _MOST_BYTES * there // len(self.requests.text())
        return max(there, min(math.ceil(clients * duration_s / _FASTEST_S), room))

    def sent(self, plan: Mapping[str, Any], workload: OwnRequests | str) -> tuple[dict[str, Any], dict[str, str]]:
        """The plan as it goes to the node, and the files that go with it, by name."""
        files = {}
        found = dict(plan)
        if isinstance(workload, OwnRequests):
            files[workload.path] = workload.text()
        if self.trace is not None:
            files[_ARRIVALS] = "".join(f"{at:.9f}\n" for at in self.trace.offsets_s)
            arrivals = {name: value for name, value in found["arrivals"].items() if name != "offsets_s"}
            found["arrivals"] = {**arrivals, "path": _ARRIVALS}
        return found, files


def read(
    *,
    requests: str = "",
    reuse: bool = False,
    api: str = "completions",
    trace: str = "",
    speed: float = 1.0,
    parameters: Mapping[str, Any] | None = None,
    rates: Sequence[float] = (),
    clients: Sequence[int] = (),
) -> Brought:
    """Read what there is; `requests` and `trace` are paths, empty where there are none.

    Raises:
        WorkloadError: a file or a field is not what it should be, or two of them exclude each other.
    """
    if trace and (rates or clients):
        given = " and ".join(name for name, value in (("rates", rates), ("clients", clients)) if value)
        raise WorkloadError(f"a trace says itself when requests arrive: leave out {given}, or the trace {trace}")
    if problems := parameter_problems(parameters or {}):
        raise WorkloadError("; ".join(problems))
    own = played = None
    origin: dict[str, Any] = {}
    if requests:
        path = Path(requests).expanduser()
        own = read_requests(path, api=api)
        own = OwnRequests(own.name, own.api, own.requests, reuse=reuse)
        origin["requests"] = {**_file(path), "count": len(own.requests), "reuse": reuse}
    if trace:
        path = Path(trace).expanduser()
        played = read_trace(path, speed)
        origin["arrivals"] = {**_file(path), "count": len(played.offsets_s), "speed": speed}
    if parameters:
        origin["parameters"] = dict(parameters)
    return Brought(own, played, parameters or {}, origin)


def _file(path: Path) -> dict[str, str]:
    with path.open("rb") as file:
        return {"file": path.name, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
