"""What the command line asks of a benchmark, as variables of the role."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm_node.bench import brought
from vllm_node.bench.facts import WorkloadError

_WORKLOAD = "chat"


def variables(
    *,
    requests: Path | None,
    reuse: bool,
    trace: Path | None,
    speed: float | None,
    api: str,
    param: Sequence[str],
    workload: str | None,
    duration: int | None,
    lead_in: float | None,
    output: Path | None,
    rates: Sequence[float],
    clients: Sequence[int],
    **others: Any,
) -> dict[str, object]:
    """Variables for what was given; `others` have the names of theirs. Files are read here, before any node is asked.

    Raises:
        ValueError: what was given cannot be used, or does not go together.
    """
    if requests and workload:
        raise ValueError("--requests are a workload of their own: leave out --workload")
    if reuse and not requests:
        raise ValueError("--reuse is for --requests, and there are none")
    if speed is not None and not trace:
        raise ValueError("--speed is for --trace, and there is none")
    if trace and (rates or clients):
        raise ValueError("--trace says itself when requests arrive: leave out --rate and --clients")
    parameters = dict(map(_parameter, param))
    paths = {"requests": _absolute(requests), "trace": _absolute(trace)}
    try:
        brought.read(
            requests=paths["requests"],
            reuse=reuse,
            api=api,
            trace=paths["trace"],
            speed=speed or 1.0,
            parameters=parameters,
        )
    except WorkloadError as error:
        raise ValueError(str(error)) from None
    found = {
        **others,
        **paths,
        "requests_reuse": reuse,
        "trace_speed": speed or 1.0,
        "api": api,
        "parameters": parameters,
        "workload": workload or _WORKLOAD,
        "duration_s": duration or 0,
        "rates": list(rates),
        "clients": list(clients),
        **({} if lead_in is None else {"lead_in_s": lead_in}),
        **({} if output is None else {"output": str(output.absolute())}),
    }
    return {f"benchmark_{name}": value for name, value in found.items()}


def _absolute(path: Path | None) -> str:
    return "" if path is None else str(path.absolute())


def _parameter(text: str) -> tuple[str, Any]:
    """A field of each body. The value is JSON where it can be read so, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"--param {text}: give KEY=VALUE, such as skip_special_tokens=false")
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        return name.strip(), value
