"""From the name of a workload to the plan of a stage, and to what a report says of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vllm_node.bench.facts import Facts, WorkloadError
from vllm_node.bench.fit import document, fit
from vllm_node.bench.own_requests import OwnRequests
from vllm_node.bench.presets import PRESETS, Workload
from vllm_node.load import bodies
from vllm_node.load.asked import BLOCK_TOKENS, Asked
from vllm_node.load.plan import parse

# A closed loop needs to know how many requests to make. A server that answers faster than this uses them up, and the
# stage is over before its time; what is left over has cost some disk.
_FASTEST_S = 0.25
_MOST = 20_000
_COLD = "cold: no two prompts begin alike, and no repeat meets the prompts of another"
_WARM = "warm: the shared prefix has been sent before the window, and nothing else of a prompt"
_MIXED = "mixed: the shared prefix has been sent before the window, and within a workflow each prompt repeats the last"
_OWN = "unknown: it depends on the requests"


def named(name: str, shared_prefix_share: float | None = None) -> Workload:
    """A preset, with another share of the shared prefix when one is given.

    Raises:
        WorkloadError: there is none of this name.
    """
    if name not in PRESETS:
        raise WorkloadError(f"there is no workload {name!r}; there are {', '.join(PRESETS)}, and your own requests")
    found = PRESETS[name]
    return found if shared_prefix_share is None else replace(found, shared_prefix_share=shared_prefix_share)


def plan(
    workload: Workload | OwnRequests | str,
    *,
    url: str,
    model: str,
    facts: Facts | Mapping[str, Any],
    arrivals: Mapping[str, Any],
    duration_s: float | None,
    seed: int,
    repeat: int,
    slo: Mapping[str, Any] | None = None,
    api: str = "completions",
    warmup: Mapping[str, Any] | None = None,
    target: Mapping[str, Any] | None = None,
    count: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A plan for the engine (docs/benchmark.md), complete and already checked by the engine's own reader.

    `arrivals` are the plan's without a duration; those of a workload of workflows begin workflows. `target` holds
    what else the target needs (`api_key_file`, `ca_file`, …), `more` other fields of a plan (`metrics`, `limits`, …).
    `count` is for a closed loop. Own requests are looked for where their `path` says, seen from the plan's folder.

    Raises:
        WorkloadError: the workload does not fit the model, or there are too few requests of one's own.
        PlanError: a field is wrong.
    """
    workload = named(workload) if isinstance(workload, str) else workload
    known = Facts.of(facts)
    before = dict(warmup if warmup is not None else {"requests": 8, "clients": 4})
    found = {
        "name": f"{workload.name}, {_load(arrivals, workload)}",
        "target": {"url": url, "model": model, **(target or {})},
        "api": workload.api if isinstance(workload, OwnRequests) else api,
        "arrivals": {**arrivals, **({} if duration_s is None else {"duration_s": duration_s})},
        "seed": seed,
        "repeat": repeat,
        "warmup": before,
        "slo": dict(slo or {}),
        **({"gpus": known.gpus} if known.gpus else {}),
        **more,
    }
    closed = arrivals.get("kind") == "closed"
    if isinstance(workload, OwnRequests):
        workload.check(known)
        requests: dict[str, Any] = {"kind": "file", "path": workload.path, "reuse": workload.reuse}
        if count is not None and closed:
            requests["count"] = count
        _enough(workload, found, closed, count)
        return {**found, "requests": requests}
    requests = fit(workload, known, api).requests()
    if closed:
        requests["count"] = count if count is not None else _count(workload, arrivals, duration_s)
    found["requests"] = requests
    parse(_without_files(found))
    return found


def _load(arrivals: Mapping[str, Any], workload: Workload | OwnRequests) -> str:
    what = "workflows" if isinstance(workload, Workload) and workload.steps else "requests"
    if arrivals.get("kind") == "closed":
        return f"{arrivals.get('clients')} clients"
    return f"{arrivals['rate']:g} {what}/s" if "rate" in arrivals else f"recorded arrivals of {what}"


def _count(workload: Workload, arrivals: Mapping[str, Any], duration_s: float | None) -> int:
    if duration_s is None:
        raise WorkloadError("a closed loop without a duration needs the number of its requests")
    calls = workload.steps.calls.low if workload.steps else 1
    return max(1, min(_MOST, math.ceil(int(arrivals.get("clients", 1)) * max(1.0, duration_s / _FASTEST_S / calls))))


def _without_files(found: Mapping[str, Any]) -> dict[str, Any]:
    """The plan less what is only on the node, so that it can be read here."""
    there = ("api_key_file", "api_key_env", "ca_file")
    return {**found, "target": {name: value for name, value in found["target"].items() if name not in there}}


def _enough(own: OwnRequests, found: Mapping[str, Any], closed: bool, count: int | None) -> None:
    """Whether each arrival finds a request; the engine would say so only on the node."""
    stand_in = {"kind": "generated", "vocabulary": [0, 1], "prompt_tokens": 1, "output_tokens": 1, "count": 1}
    read = parse({**_without_files(found), "requests": stand_in})
    if closed:
        arrivals = count or 1
    else:
        schedule = read.arrivals.load(read.seed_for("arrivals"))
        arrivals = len(getattr(schedule, "offsets_ns", ()))
    needed = read.warmup.requests + arrivals
    if needed > len(own.requests) and not own.reuse:
        raise WorkloadError(
            f"{own.name} has {len(own.requests)} requests, and {needed} are needed ({read.warmup.requests} to warm up, "
            f"{arrivals} for the stage): a shorter stage, a lower rate, more requests, or reuse, which measures the "
            "prefix cache"
        )


def preview(document: Mapping[str, Any], count: int) -> dict[str, Any]:
    """What the first `count` requests (or workflows) of a plan ask for, made here as the engine makes them there."""
    read, asked = parse(_without_files(document)), Asked()
    for _ in asked.meet(bodies.documents(read, "warmup", read.warmup.requests)):
        pass
    for _ in asked.count(bodies.documents(read, "scored", count)):
        pass
    return asked.document()


def describe(
    workload: Workload | OwnRequests | str,
    *,
    seed: int,
    facts: Facts | Mapping[str, Any],
    api: str = "completions",
    asked: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The part `workload` of a run document. `asked` is the part `requests` of an engine's result.

    Raises:
        WorkloadError: it does not fit the model.
    """
    workload = named(workload) if isinstance(workload, str) else workload
    measured = (asked or {}).get("shared_prefix_share")
    found: dict[str, Any] = {
        "name": workload.name,
        "seed": seed,
        "api": workload.api if isinstance(workload, OwnRequests) else api,
        "description": workload.description,
        "how": "illustrative" if isinstance(workload, Workload) else "measured",
    }
    if isinstance(workload, OwnRequests):
        lengths, share, cache, notices = workload.lengths(), None, _OWN, workload.notices
    else:
        fitted = fit(workload, Facts.of(facts), api)
        own, share, notices = fitted.workload, workload.shared_prefix_share, fitted.notices
        lengths = {"prompt_tokens": document(own.prompt_tokens), "output_tokens": document(own.output_tokens)}
        cache = _WARM if share else _COLD
        if own.steps:
            cache = _MIXED
            lengths |= {name: document(getattr(own.steps, name)) for name in ("new_tokens", "calls", "think_ms")}
    return {
        **found,
        "lengths": lengths,
        "lengths_measured": {name: (asked or {}).get(name) for name in ("prompt_tokens", "output_tokens")},
        "shared_prefix_share": {"asked": share, "measured": measured},
        "repeated_share": (asked or {}).get("repeated_share"),
        "block_tokens": BLOCK_TOKENS,
        "cache": cache.partition(":")[0],
        "cache_means": cache,
        "notices": list(notices),
    }
