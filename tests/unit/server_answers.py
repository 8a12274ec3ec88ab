"""Answers of Prometheus, and pages of metrics, of a server that did what a test says."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_node.bench.evidence import HISTOGRAMS, SERIES
from vllm_node.bench.window import Window
from vllm_node.metrics.dictionary import load

WINDOW = Window(1000.0, 1060.0)
EDGES = ("0.1", "0.25", "1.0", "+Inf")


def rows(*pairs: tuple[Mapping[str, str], float | str]) -> dict[str, Any]:
    return {"result": [{"labels": dict(labels), "value": value} for labels, value in pairs], "error": None}


def raw(*series: Sequence[tuple[float, float]]) -> dict[str, Any]:
    found = [
        {"labels": {"engine": str(engine)}, "values": [list(point) for point in points]}
        for engine, points in enumerate(series)
    ]
    return {"result": found, "error": None}


def steady(value: float, every_s: float = 5.0) -> list[tuple[float, float]]:
    return [(WINDOW.start + every_s * number, value) for number in range(1, int(WINDOW.seconds / every_s) + 1)]


def buckets(*counts: float) -> dict[str, Any]:
    """Not cumulative, for `EDGES`."""
    return rows(*(({"le": edge}, count) for edge, count in zip(EDGES, itertools.accumulate(counts), strict=True)))


def answers(**changes: Any) -> dict[str, Any]:
    """A server that finished 200 requests of 10 tokens in a minute; a change of None leaves an answer out."""
    found: dict[str, Any] = {
        "scrapes": rows(({}, 12.0)),
        "scrapes_failed": rows(({}, 0.0)),
        "restarts": rows(({}, 0.0)),
        "started": rows(({}, 500.0)),
        "resets_of_prompt_tokens": rows(({}, 0.0)),
        "resets_of_generation_tokens": rows(({}, 0.0)),
        "running": raw(steady(3.0), steady(1.0)),
        "waiting": raw(steady(0.0), [*steady(0.0)[:-1], (1060.0, 7.0)]),
        "kv_usage": raw(steady(0.5), steady(0.25)),
        "preemptions": raw([(1000.0 + 5 * step, 2.0 * step) for step in range(1, 13)]),
        "finished_count": rows(({"finished_reason": "stop"}, 150.0), ({"finished_reason": "length"}, 50.0)),
        "preemptions_count": rows(({}, 24.0)),
        "prefix_hits_count": rows(({}, 600.0)),
        "prefix_queries_count": rows(({}, 2000.0)),
        "prompt_by_source_count": rows(
            ({"source": "local_compute"}, 1400.0),
            ({"source": "local_cache_hit"}, 600.0),
            ({"source": "external_kv_transfer"}, 0.0),
        ),
        "generation_tokens_count": rows(({}, 2000.0)),
    }
    for name in HISTOGRAMS:
        found[f"{name}_buckets"] = buckets(100, 60, 40, 0)
        found[f"{name}_sum"] = rows(({}, 30.0))
    found.update(changes)
    return {name: answer for name, answer in found.items() if answer is not None}


def gpus(*, energy: bool = True, **changes: Any) -> dict[str, Any]:
    labels = [{"gpu": str(gpu), "UUID": f"GPU-{gpu}"} for gpu in range(3)]
    found = {
        "gpu_util": rows(*((one, 80.0 + 10 * number) for number, one in enumerate(labels))),
        "gpu_power": rows(*((one, 300.0) for one in labels)),
        "gpu_energy": rows(*((one, 20_000_000.0) for one in labels)) if energy else rows(),
        "gpu_energy_resets": rows(*((one, 0.0) for one in labels)) if energy else rows(),
    }
    return {**found, **changes}


def page(
    at_s: float,
    requests: float = 0.0,
    *,
    engines: int = 1,
    running: float = 0.0,
    waiting: float = 0.0,
    started: float = 500.0,
    preemptions: float = 0.0,
    version: str | None = None,
    without: Sequence[str] = (),
) -> dict[str, Any]:
    """A page after so many requests of 10 tokens in each engine, each with 0.2 s of every latency."""
    lines = [f"process_start_time_seconds {started}", "# HELP vllm:generation_tokens_total text"]

    def say(logical: str, value: float, suffix: str = "", **labels: str) -> None:
        name = load().name(logical, version)
        if name is not None and logical not in without:
            for engine in range(engines):
                said = {"engine": str(engine), "model_name": "tiny", **labels}
                braces = ",".join(f'{label}="{text}"' for label, text in said.items())
                lines.append(f"{name}{suffix}{{{braces}}} {value}")

    say("requests_running", running)
    say("requests_waiting", waiting)
    say("kv_usage", 0.5)
    say("preemptions", preemptions)
    say("requests_finished", requests, finished_reason="length")
    say("prefix_hits", 3 * requests)
    say("prefix_queries", 10 * requests)
    say("prompt_tokens", 10 * requests)
    say("generation_tokens", 10 * requests)
    say("prompt_tokens_by_source", 7 * requests, source="local_compute")
    say("prompt_tokens_by_source", 3 * requests, source="local_cache_hit")
    for logical in HISTOGRAMS.values():
        for edge in EDGES:
            say(logical, 0.0 if edge == "0.1" else requests, "_bucket", le=edge)
        say(logical, 0.2 * requests, "_sum")
        say(logical, requests, "_count")
    return {"at_ns": 0, "at_s": at_s, "text": "\n".join(lines) + "\n"}


def pages(**changes: Any) -> list[dict[str, Any]]:
    """From ten seconds before the window to ten after it, a page and five requests each second."""
    first = WINDOW.start - 10
    return [page(first + second, 5.0 * second, **changes) for second in range(81)]


assert set(SERIES) <= set(answers()), "a series is not answered"
