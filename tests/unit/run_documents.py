"""Run documents for tests of the reports; the client's part is made by the engine's own code, out of records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tests.unit.load_values import NS, record
from vllm_node.bench.report import spread
from vllm_node.load.definitions import DEFINITIONS, LABELS, Figures, Window
from vllm_node.load.distribution import Distribution
from vllm_node.load.records import Record
from vllm_node.load.selfcheck import SelfCheck
from vllm_node.load.slo import Slo
from vllm_node.load.timeline import Timeline
from vllm_node.load.verdict import judge

SLO = Slo(ttft_p95_s=0.5, tpot_p95_s=0.05, error_rate=0.01)
STARTED_AT_S = 1_796_000_000.0


def answers(count: int, ttft_s: float = 0.1) -> list[Record]:
    """Records of one a second, none of them like another."""
    return [
        record(index=one, ttft_s=ttft_s + one * 0.001, gaps_s=(0.02, 0.03), scheduled_s=1.0 + one * 0.1, rest_s=0.001)
        for one in range(count)
    ]


def client(
    records: Sequence[Record] | None = None,
    *,
    seconds: float = 15.0,
    start: float = STARTED_AT_S,
    slo: Slo = SLO,
    late_s: float = 0.001,
    waiting: Sequence[tuple[float, float]] | None = None,
) -> dict[str, Any]:
    """A result of the engine."""
    window = Window(NS // 2, NS // 2 + round(seconds * NS))
    figures, timeline = Figures(window, slo), Timeline(window.start_ns)
    for one in answers(120) if records is None else records:
        figures.add(one)
        timeline.add(one)
    lateness = Distribution()
    lateness.extend([round(late_s * 1e6)] * 10)
    check = SelfCheck(lateness, Distribution(), cpu_share=0.2, offered_per_s=8.0, achieved_per_s=8.0)
    found = {
        "schema": 1,
        "name": "stage",
        "partial": False,
        "stopped": None,
        "verdict": judge(figures, void=check.reasons(), waiting=waiting).document(),
        "selfcheck": check.document(),
        "window": {"start_unix_s": start, "end_unix_s": start + seconds, "seconds": seconds},
        **figures.document(),
        "timeline": timeline.document(),
        "server": None,
        "load": "open",
        "slo": asdict(slo),
        "definitions": DEFINITIONS,
        "labels": LABELS,
    }
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def server(seconds: int = 15, **figures: Any) -> dict[str, Any]:
    """The server's figures of a window."""
    own = {
        "running_mean": 2.5,
        "waiting_mean": 0.0,
        "waiting_max": 1.0,
        "kv_usage_mean": 0.25,
        "kv_usage_max": 0.42,
        "preemptions_per_request": 0.0125,
        "prefix_hit_ratio": 0.31,
        "queue_time_p95_s": 0.012,
        **figures,
    }
    every = range(seconds)
    return {
        "window": {"start": STARTED_AT_S, "end": STARTED_AT_S + seconds},
        "source": "prometheus",
        "figures": {name: {"value": value, "how": "measured", "samples": seconds} for name, value in own.items()},
        "gpus": [],
        "timeline": {
            "t_s": [at + 0.25 for at in every],
            "running": [2.0 + at % 3 for at in every],
            "waiting": [float(at == 7) for at in every],
            "kv_usage": [0.2 + 0.01 * at for at in every],
            "preemptions": [None, *[float(at == 9) for at in every[1:]]],
        },
        "refused": None,
        "notices": [],
        "unobservable": [],
    }


def step(rate_per_s: float | None, results: Sequence[dict[str, Any]], servers: Sequence[Any] | None = None, **other: Any) -> dict[str, Any]:
    """A step with its repeats, and the summary of these."""
    servers = [server() for _ in results] if servers is None else servers
    repeats = [
        {"repeat": number, "order": number, "client": one, "server": servers[number - 1]}
        for number, one in enumerate(results, 1)
    ]
    found: dict[str, Any] = {"rate_per_s": rate_per_s, "clients": None, "repeats": repeats, **other}
    return {**found, "summary": spread.summary(found)}


def repeated(ttft_s: Sequence[float], start: float = STARTED_AT_S) -> list[dict[str, Any]]:
    """Results of one repeat for each of these first tokens, one after the other."""
    return [client(answers(120, one), start=start + 20 * number) for number, one in enumerate(ttft_s)]


def run(steps: Sequence[dict[str, Any]] | None = None, **other: Any) -> dict[str, Any]:
    """A run document: two steps of three repeats unless told otherwise."""
    if steps is None:
        steps = [
            step(2.0, repeated((0.10, 0.11, 0.12))),
            step(4.0, repeated((0.20, 0.22, 0.21), STARTED_AT_S + 60)),
        ]
    return {
        "schema": 1,
        "kind": "benchmark",
        "id": "2026-11-30T02:45:00Z-chat",
        "host": "gpu1",
        "instance": "tiny",
        "model": "tiny-model",
        "started_at": "2026-11-30T02:45:00Z",
        "ended_at": "2026-11-30T02:47:00Z",
        "partial": None,
        "workload": {
            "name": "chat",
            "seed": 1,
            "api": "completions",
            "description": "short questions",
            "lengths": {"prompt_tokens": {"p50": 300, "p95": 1500, "max": 4000}},
            "shared_prefix_share": {"asked": 0.3, "measured": 0.28},
            "cache": "cold",
        },
        "slo": asdict(SLO),
        "contradictions": [],
        "verdict": {
            "verdict": "pass",
            "reasons": [],
            "sustainable_rate_per_s": 4.0,
            "how": "measured: the highest step that held in all repeats",
        },
        "steps": list(steps),
        "workflow": None,
        "correctness": [{"check": "a wrong key is refused", "outcome": "pass", "seen": "401"}],
        "provenance": {"toolkit": {"version": "0.1.0"}, "images": {"vllm": "sha256:" + "a" * 64}},
        "unobservable": [{"what": "GPU power", "why": "there is no GPU"}],
        "definitions": DEFINITIONS,
        "labels": LABELS,
        **other,
    }
