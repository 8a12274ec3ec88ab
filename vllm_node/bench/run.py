"""A whole benchmark of one instance: facts, correctness, stages on both sides, verdict, document."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from vllm_node.bench import answers, outcome, provenance, server, workloads
from vllm_node.bench.facts import WorkloadError
from vllm_node.bench.generator import StageError, stage
from vllm_node.bench.stages import Turn, turns
from vllm_node.bench.window import Window
from vllm_node.load.definitions import DEFINITIONS, LABELS

_DEFINITIONS = {**server.DEFINITIONS, **DEFINITIONS}

SCHEMA = 1
# What a stage may take beside its own time: the warm-up, the last answers, and the reading of all of them.
_STAGE_MARGIN_S = 900
# A few requests a minute are those of a bring-up or of a check from outside, and nobody's work.
_CHECKS_PER_MINUTE = 10
# The last scrape of the window has to be in Prometheus before it is asked.
_SETTLE_SCRAPES = 2

Ask = Callable[..., dict[str, Any]]
"""Runs a module on the node by name with arguments, and gives its answer."""


class BenchmarkError(Exception):
    """The benchmark cannot be made; the text says why and what to do."""


@dataclass(frozen=True)
class Wanted:
    """What was asked for; the names are those of the role's variables without their prefix. Times in seconds."""

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
    kind: str = "benchmark"
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


class Benchmark:
    """Runs it; `document` can be asked for at any moment, also after something went wrong."""

    def __init__(self, wanted: Wanted, ask: Ask, show: Callable[[str], None]) -> None:
        """Nothing is asked yet."""
        self.wanted, self._ask, self._show = wanted, ask, show
        self.observed: dict[str, Any] = {}
        self.correctness: list[dict[str, Any]] = []
        self.done: list[tuple[Turn, dict[str, Any], dict[str, Any] | None]] = []
        self.partial: str | None = None
        self._started_at = datetime.now(UTC)

    def run(self) -> None:
        """All of it.

        Raises:
            BenchmarkError: it must not or cannot begin.
        """
        wanted = self.wanted
        asked = {"instance": wanted.instance["name"], "port": wanted.instance["port"]}
        asked["model_path"] = wanted.instance.get("model")
        self.observed = self._good("instance_facts", **asked, prometheus_url=wanted.prometheus)["facts"]
        self._must_not_disturb()
        self.correctness = self._good("smoke_check", url=wanted.url, model=wanted.model)["checks"]
        planned = turns(wanted.rates, wanted.clients, wanted.repeats, wanted.seed)
        try:
            plans = [self._plan(turn) for turn in planned]
        except WorkloadError as error:
            raise BenchmarkError(f"{wanted.host}: {error}") from error
        for number, (turn, plan) in enumerate(zip(planned, plans, strict=True), 1):
            name = f"stage {number} of {len(planned)} ({turn.name})"
            try:
                result = stage(
                    partial(self._ask, "load_run"),
                    plan,
                    lambda text, name=name: self._show(f"{name}, {text}"),  # type: ignore[misc]
                    reference=wanted.reference,
                    cpus=wanted.cpus,
                    limit_s=round(wanted.duration_s + _STAGE_MARGIN_S),
                )
            except StageError as error:
                self.partial = f"{name}: {error}"
                return
            self.done.append((turn, result, self._server(result)))
            self._show(f"{name}: {_line(result)}")
            if result["partial"]:
                self.partial = f"{name}: {result['stopped']}"
                return

    def document(self) -> dict[str, Any]:
        """The run document (schema 1) of what was done so far."""
        wanted = self.wanted
        found = outcome.steps(self.done)
        first = self.done[0][1] if self.done else {}
        facts = self._facts()
        origin, unobservable = provenance.collect(
            provenance.Facts(
                snapshot=wanted.snapshot,
                instance=wanted.instance,
                role_args=wanted.role_args,
                lock=wanted.lock,
                observed=self.observed or None,
                slo=wanted.slo,
                workload={"name": wanted.workload},
                seed=wanted.seed,
                definitions=_DEFINITIONS,
                selfcheck=[result["selfcheck"] for _, result, _ in self.done],
            )
        )
        for _, _, figures in self.done:
            unobservable += [one for one in (figures or {}).get("unobservable", []) if one not in unobservable]
        contradictions = [text for text in first.get("notices", []) if "contradicts" in text]
        return {
            "schema": SCHEMA,
            "kind": wanted.kind,
            "id": f"{self._started_at:%Y-%m-%dT%H:%M:%SZ}-{wanted.workload}",
            "host": wanted.host,
            "instance": wanted.instance["name"],
            "model": wanted.model,
            "started_at": self._started_at.isoformat(timespec="seconds"),
            "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "partial": self.partial,
            "workload": workloads.describe(wanted.workload, seed=wanted.seed, facts=facts, asked=first.get("requests")),
            "slo": dict(wanted.slo),
            "contradictions": contradictions,
            "verdict": outcome.verdict(found, self.correctness, self.partial),
            "steps": found,
            "workflow": first.get("workflow"),
            "correctness": self.correctness,
            "provenance": origin,
            "unobservable": unobservable,
            "definitions": _DEFINITIONS,
            "labels": LABELS,
        }

    def _good(self, module: str, **args: Any) -> dict[str, Any]:
        answer = self._ask(module, **args)
        if answer.get("failed"):
            raise BenchmarkError(f"{self.wanted.host}: {answer.get('msg')}")
        return answer

    def _must_not_disturb(self) -> None:
        """Nobody who is served now shall pay for a measurement that they did not ask for."""
        activity = self.observed.get("activity") or {}
        now = (activity.get("running") or 0) + (activity.get("waiting") or 0)
        lately = activity.get("finished_last_minute") or 0
        if (now > 0 or lately > _CHECKS_PER_MINUTE) and not self.wanted.approved:
            raise BenchmarkError(
                f"{self.wanted.host}: instance {self.wanted.instance['name']} serves others at the moment "
                f"({activity.get('running')} running, {activity.get('waiting')} waiting, "
                f"{activity.get('finished_last_minute')} finished in the last minute); a benchmark would slow them "
                "down, and they would spoil it. Wait, or set benchmark_approved and a low benchmark_max_in_flight"
            )

    def _facts(self) -> dict[str, Any]:
        """What the workload has to know of the model."""
        model = (self.observed.get("model") or {}).get("facts") or {}
        return {
            **model,
            "max_model_len": self.observed.get("max_model_len") or model.get("max_model_len"),
            "gpus": len(self.wanted.instance.get("gpus") or []) or None,
        }

    def _plan(self, turn: Turn) -> dict[str, Any]:
        wanted = self.wanted
        arrivals: dict[str, Any] = (
            {"kind": "poisson", "rate": turn.rate_per_s}
            if turn.rate_per_s is not None
            else {"kind": "closed", "clients": turn.clients}
        )
        return workloads.plan(
            wanted.workload,
            url=wanted.url,
            model=wanted.model,
            facts=self._facts(),
            arrivals=arrivals,
            duration_s=wanted.duration_s,
            seed=wanted.seed,
            repeat=turn.repeat,
            slo=wanted.slo,
            warmup={
                "requests": wanted.warmup_requests,
                "clients": min(4, max(1, wanted.warmup_requests)),
                **({"lead_in_s": wanted.lead_in_s} if turn.rate_per_s is not None else {}),
            },
            limits={"in_flight": wanted.max_in_flight, "errors": wanted.max_errors},
            metrics={"url": wanted.url + "/metrics"},
        )

    def _server(self, result: Mapping[str, Any]) -> dict[str, Any] | None:
        """What the server says about the same window; None where nobody could be asked."""
        wanted = self.wanted
        if wanted.prometheus is None:
            return None
        window = Window.of(result)
        time.sleep(max(0.0, window.end + _SETTLE_SCRAPES * wanted.scrape_interval_s - time.time()))
        queries = answers.queries(window, wanted.instance["name"], wanted.model, self.observed.get("version"))
        told = self._ask("prometheus_query", url=wanted.prometheus, queries=queries, at=window.end)
        if told.get("failed"):
            return None
        return server.figures(told["answers"], window, [str(gpu) for gpu in wanted.instance.get("gpus") or []])


def _line(result: Mapping[str, Any]) -> str:
    """One stage for people who watch."""
    verdict = result["verdict"]
    first = result["latency"]["ttft_scheduled_s"]["p95"]
    words = f"{first * 1000:.0f} ms" if isinstance(first, int | float) else str(first)
    why = f" ({verdict['reasons'][0]})" if verdict["reasons"] else ""
    return f"{verdict['verdict']}{why}; first token p95 {words}, {result['counts']['completed']} answers"
