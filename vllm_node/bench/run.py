"""A whole benchmark of one instance: facts, correctness, stages on both sides, verdict, document."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from vllm_node.bench import brought, outcome, provenance, server, workloads
from vllm_node.bench.brought import Brought
from vllm_node.bench.cross_check import Load, cross_check
from vllm_node.bench.facts import WorkloadError
from vllm_node.bench.generator import Staged, StageError, stage
from vllm_node.bench.own_requests import OwnRequests
from vllm_node.bench.stages import Turn, turns
from vllm_node.bench.wanted import Wanted
from vllm_node.bench.witness import Witness
from vllm_node.load.definitions import DEFINITIONS, LABELS
from vllm_node.load.plan import PlanError

_DEFINITIONS = {**server.DEFINITIONS, **DEFINITIONS}

__all__ = ["Benchmark", "BenchmarkError", "Wanted"]

SCHEMA = 1
# What a stage may take beside its own time: the warm-up, the last answers, and the reading of all of them.
_STAGE_MARGIN_S = 900
# A few requests a minute are those of a check from outside, and nobody's work; so are those of a bring-up, which makes
# sure that an instance is ready and answers as it has to.
_CHECKS_PER_MINUTE, _BRING_UP_PER_MINUTE = 10, 30
# After this time, a minute and a scrape, nothing that a server tells of its last minute is of a load of ours.
_FORGOTTEN_S = 75.0
_NAP_S = 0.5
_DURATION_S = 120.0
_RATES = (1.0,)

Ask = Callable[..., dict[str, Any]]
"""Runs a module on the node by name with arguments, and gives its answer."""


class BenchmarkError(Exception):
    """The benchmark cannot be made; the text says why and what to do."""


class Benchmark:
    """Runs it; `document` can be asked for at any moment, also after something went wrong.

    Once `stopped` says so, the stage that runs is ended, and no other one is begun.
    """

    def __init__(
        self, wanted: Wanted, ask: Ask, show: Callable[[str], None], stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Read what was brought along; no node is asked anything.

        Raises:
            BenchmarkError: it cannot be used.
        """
        self.wanted, self._ask, self._show, self._stopped = wanted, ask, show, stopped
        self.observed: dict[str, Any] = {}
        self.correctness: list[Mapping[str, Any]] = list(wanted.correctness or ())
        self.done: list[tuple[Turn, dict[str, Any], dict[str, Any] | None]] = []
        self.partial: str | None = None
        self.cross_check: dict[str, Any] | None = None
        self._unseen: list[dict[str, str]] = []
        self._started_at = datetime.now(UTC)
        self._brought = self._read()
        self._duration_s = wanted.duration_s or self._brought.span_s or _DURATION_S
        self._witness = Witness(
            ask,
            wanted.instance["name"],
            wanted.model,
            [str(gpu) for gpu in wanted.instance.get("gpus") or []],
            wanted.prometheus,
            wanted.scrape_interval_s,
            stopped,
        )

    def run(self) -> None:
        """All of it.

        Raises:
            BenchmarkError: it must not or cannot begin.
        """
        wanted = self.wanted
        self.observed = self._look()
        own_s = self.observed.get("own_load_s_ago")
        if not wanted.approved and self._lately() and not self._now() and own_s is not None and own_s < _FORGOTTEN_S:
            self._show(f"waits {_FORGOTTEN_S - own_s:.0f} s: the server's last minute is that of the last benchmark")
            self._wait(_FORGOTTEN_S - own_s)
            self.observed = self._look()
        self._must_not_disturb()
        if wanted.correctness is None:
            self.correctness = self._good("smoke_check", url=wanted.url, model=wanted.model)["checks"]
        traced = self._brought.trace is not None
        rates = wanted.rates or (() if traced or wanted.clients else _RATES)
        planned = turns(rates, wanted.clients, wanted.repeats, wanted.seed, trace=traced)
        own = [self._brought.workload(wanted.workload, number, len(planned)) for number in range(1, len(planned) + 1)]
        try:
            plans = [self._plan(turn, one) for turn, one in zip(planned, own, strict=True)]
        except (WorkloadError, PlanError) as error:
            raise BenchmarkError(f"{wanted.host}: {error}") from error
        for number, turn in enumerate(planned, 1):
            name = f"stage {number} of {len(planned)} ({turn.name})"
            if self._stopped():
                self.partial = f"interrupted before {name}"
                return
            if not self._stage(name, turn, *self._brought.sent(plans[number - 1], own[number - 1])):
                return
        if wanted.cross_check:
            self.cross_check = self._second_opinion()

    def document(self) -> dict[str, Any]:
        """The run document (schema 1) of what was done so far."""
        wanted = self.wanted
        found = outcome.steps(self.done)
        first = self.done[0][1] if self.done else {}
        workload = self._workload(first)
        origin, unobservable = provenance.collect(
            provenance.Facts(
                snapshot=wanted.snapshot,
                instance=wanted.instance,
                role_args=wanted.role_args,
                lock=wanted.lock,
                observed=self.observed or None,
                slo=wanted.slo,
                workload={"name": workload["name"], **self._brought.origin},
                seed=wanted.seed,
                definitions=_DEFINITIONS,
                selfcheck=[result["selfcheck"] for _, result, _ in self.done],
            )
        )
        unobservable += self._unseen
        for _, _, figures in self.done:
            unobservable += [one for one in (figures or {}).get("unobservable", []) if one not in unobservable]
        contradictions = [text for text in first.get("notices", []) if "contradicts" in text]
        name = re.sub(r"[^\w.-]+", "_", workload["name"])
        return {
            "schema": SCHEMA,
            "kind": wanted.kind,
            "id": f"{self._started_at:%Y-%m-%dT%H:%M:%SZ}-{name}",
            "host": wanted.host,
            "instance": wanted.instance["name"],
            "model": wanted.model,
            "started_at": self._started_at.isoformat(timespec="seconds"),
            "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "partial": self.partial,
            "workload": workload,
            "slo": dict(wanted.slo),
            "contradictions": contradictions,
            "verdict": outcome.verdict(found, self.correctness, self.partial),
            "steps": found,
            "workflow": first.get("workflow"),
            "correctness": self.correctness,
            "cross_check": self.cross_check,
            "provenance": origin,
            "unobservable": unobservable,
            "definitions": _DEFINITIONS,
            "labels": LABELS,
        }

    def _read(self) -> Brought:
        wanted = self.wanted
        try:
            return brought.read(
                requests=wanted.requests,
                reuse=wanted.requests_reuse,
                api=wanted.api,
                trace=wanted.trace,
                speed=wanted.trace_speed,
                parameters=wanted.parameters,
                rates=wanted.rates,
                clients=wanted.clients,
            )
        except WorkloadError as error:
            raise BenchmarkError(f"{wanted.host}: nothing was asked of the node: {error}") from error

    def _good(self, module: str, **args: Any) -> dict[str, Any]:
        answer = self._ask(module, **args)
        if answer.get("failed"):
            raise BenchmarkError(f"{self.wanted.host}: {answer.get('msg')}")
        return answer

    def _look(self) -> dict[str, Any]:
        """What the node tells of the instance."""
        wanted = self.wanted
        asked = {"instance": wanted.instance["name"], "port": wanted.instance["port"]}
        asked["model_path"] = wanted.instance.get("model")
        found: dict[str, Any] = self._good("instance_facts", **asked, prometheus_url=wanted.prometheus)["facts"]
        return found

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopped() and (left := until - time.monotonic()) > 0:
            time.sleep(min(_NAP_S, left))

    def _now(self) -> float:
        """Requests that run or wait."""
        activity = self.observed.get("activity") or {}
        return float((activity.get("running") or 0) + (activity.get("waiting") or 0))

    def _lately(self) -> bool:
        """Whether more requests ended in the last minute than checks make."""
        checks = _CHECKS_PER_MINUTE if self.wanted.correctness is None else _BRING_UP_PER_MINUTE
        return ((self.observed.get("activity") or {}).get("finished_last_minute") or 0) > checks

    def _must_not_disturb(self) -> None:
        """Nobody who is served now shall pay for a measurement that they did not ask for."""
        activity = self.observed.get("activity") or {}
        if (self._now() or self._lately()) and not self.wanted.approved:
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

    def _workload(self, first: Mapping[str, Any]) -> dict[str, Any]:
        """What the run document says of the requests; `first` is the result of the first stage."""
        wanted = self.wanted
        found = workloads.describe(
            self._brought.workload(wanted.workload),
            seed=wanted.seed,
            facts=self._facts(),
            api=wanted.api,
            asked=first.get("requests"),
        )
        return {**found, **self._brought.origin, "notices": [*found["notices"], *self._brought.notices]}

    def _plan(self, turn: Turn, workload: OwnRequests | str) -> dict[str, Any]:
        wanted = self.wanted
        if turn.rate_per_s is not None:
            arrivals: dict[str, Any] = {"kind": "poisson", "rate": turn.rate_per_s}
        elif turn.clients is not None:
            arrivals = {"kind": "closed", "clients": turn.clients}
        else:
            assert self._brought.trace is not None
            arrivals = self._brought.trace.arrivals()
        opened = {"lead_in_s": wanted.lead_in_s} if turn.clients is None else {}
        if opened and wanted.lead_in_s >= self._duration_s:
            raise WorkloadError(
                f"the first {wanted.lead_in_s:g} s of a stage are not scored (benchmark_lead_in_s, --lead-in), and a "
                f"stage of {self._duration_s:g} s has no more than that: a longer stage, or a shorter lead-in"
            )
        return workloads.plan(
            workload,
            url=wanted.url,
            model=wanted.model,
            facts=self._facts(),
            arrivals=arrivals,
            duration_s=self._duration_s,
            seed=wanted.seed,
            repeat=turn.repeat,
            slo=wanted.slo,
            api=wanted.api,
            warmup={
                "requests": wanted.warmup_requests,
                "clients": min(4, max(1, wanted.warmup_requests)),
                **opened,
            },
            limits={"in_flight": wanted.max_in_flight, "errors": wanted.max_errors},
            metrics={"url": wanted.url + "/metrics"},
            parameters=dict(wanted.parameters),
            count=None if turn.clients is None else self._brought.count(turn.clients, self._duration_s),
        )

    def _load(self, name: str, plan: Mapping[str, Any], seconds: float, files: Mapping[str, str]) -> Staged:
        """Run a plan on the node. Raises StageError."""
        return stage(
            partial(self._ask, "load_run"),
            plan,
            lambda text: self._show(f"{name}, {text}"),
            self._stopped,
            reference=self.wanted.reference,
            files=files,
            cpus=self.wanted.cpus,
            limit_s=round(seconds + _STAGE_MARGIN_S),
        )

    def _second_opinion(self) -> dict[str, Any]:
        """What another client says of the same instance."""
        wanted, facts = self.wanted, self._facts()
        load = Load.light(wanted.rates, facts["max_model_len"])
        return cross_check(
            self._ask,
            lambda plan, name: self._load(name, plan, load.seconds, {}).result,
            self._show,
            url=wanted.url,
            model=wanted.model,
            model_path=str(wanted.instance["model"]),
            reference=wanted.reference,
            version=self.observed.get("version"),
            facts=facts,
            load=load,
            seed=wanted.seed,
            cpus=wanted.cpus,
            stopped=self._stopped,
        )

    def _stage(self, name: str, turn: Turn, plan: Mapping[str, Any], files: Mapping[str, str]) -> bool:
        """Whether it came to its end."""
        try:
            found = self._load(name, plan, self._duration_s, files)
        except StageError as error:
            self.partial = f"{name}: {error}"
            return False
        result = found.result
        if result["partial"]:
            self.partial = f"interrupted in {name}" if self._stopped() else f"{name}: {result['stopped']}"
            if not result["window"]["seconds"]:
                self.partial += ", before its window had begun"
                return False
        self.done.append((turn, result, self._server(name, found)))
        self._show(f"{name}: {_line(result)}")
        return not result["partial"]

    def _server(self, name: str, staged: Staged) -> dict[str, Any] | None:
        """What the server says about the same window; None where nobody could tell."""
        found, why = self._witness.figures(staged, self.observed.get("version"))
        if found is None:
            self._unseen.append({"what": f"the server's own figures of {name}", "why": str(why)})
        if why is not None:
            self._show(f"{name}: {why}")
        return found


def _line(result: Mapping[str, Any]) -> str:
    """One stage for people who watch."""
    verdict = result["verdict"]
    first = result["latency"]["ttft_scheduled_s"]["p95"]
    words = f"{first * 1000:.0f} ms" if isinstance(first, int | float) else str(first)
    why = f" ({verdict['reasons'][0]})" if verdict["reasons"] else ""
    return f"{verdict['verdict']}{why}; first token p95 {words}, {result['counts']['completed']} answers"
