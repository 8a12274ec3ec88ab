"""Runs a plan: makes the requests, warms up, runs the stage, reads the answers, and writes the result."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vllm_node.load import answer, bodies, spool
from vllm_node.load.arrivals import NS, ClosedLoop, Schedule
from vllm_node.load.asked import Asked
from vllm_node.load.bodies import Bodies
from vllm_node.load.definitions import DEFINITIONS, LABELS, Figures
from vllm_node.load.framing import Backend, backend
from vllm_node.load.plan import Plan, PlanError
from vllm_node.load.progress import Progress, tell
from vllm_node.load.records import RecordWriter
from vllm_node.load.scrape import Scraper
from vllm_node.load.slo import contradictions
from vllm_node.load.stage import Outcome, Stage
from vllm_node.load.timeline import Timeline
from vllm_node.load.verdict import judge
from vllm_node.load.wire import Client, Exchange
from vllm_node.load.workflows import Workflows

SCHEMA = 1
CLOSED_LOOP_HIDES = (
    "closed loop: a slow server slows its clients down, so overload does not show in these figures; they say nothing "
    "about capacity"
)
# A warm-up request has a number below zero, so that no log takes it for a scored one.
_WARM = -1_000_000_000


def run(plan: Plan, out: Path, *, handle_signals: bool = True) -> dict[str, Any]:
    """Run a plan and write `result.json` and `records.bin` to `out`; gives the result.

    SIGINT and SIGTERM end the stage early, with a result that says so.

    Raises:
        PlanError: the requests cannot be made, or the back end is not there.
        OSError: the name of the server is unknown, or a file cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    allow_many_connections()
    try:
        chosen = backend(plan.backend)
    except ValueError as error:
        raise PlanError([f"backend: {error}"]) from None
    arrivals = plan.arrivals.load(plan.seed_for("arrivals"))
    count = len(arrivals.offsets_ns) if isinstance(arrivals, Schedule) else plan.requests.count
    with contextlib.ExitStack() as stack:
        asked = Asked()
        before = bodies.documents(plan, "warmup", plan.warmup.requests) if plan.warmup.requests else ()
        warm = stack.enter_context(Bodies(out / "warmup.bodies", asked.meet(before)))
        wanted = bodies.documents(plan, "scored", count, skip=plan.warmup.requests)
        scored = stack.enter_context(Bodies(out / "scored.bodies", asked.count(wanted)))
        warnings = contradictions(plan.slo, scored.output_tokens)
        tell(event="start", name=plan.name, requests=len(scored), backend=chosen.name, contradictions=warnings)
        loop = chosen.new_loop()
        try:
            outcome, scraper = loop.run_until_complete(
                _Session(plan, chosen, out).run(warm, scored, arrivals, handle_signals)
            )
        finally:
            loop.close()
        result = _result(plan, chosen, out, outcome, scraper, arrivals, warnings, scored, asked)
    for name in ("warmup.bodies", "scored.bodies", *(() if plan.keep_raw else ("raw.spool",))):
        (out / name).unlink()
    temporary = out / ".result.json"
    temporary.write_text(json.dumps(result, indent=1) + "\n")
    temporary.rename(out / "result.json")
    tell(event="end", verdict=result["verdict"]["verdict"], reasons=result["verdict"]["reasons"])
    return result


def allow_many_connections() -> None:
    """Take as many open files as this process may have; shells give a thousand by default."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _Session:
    """The part of a run that lives in the event loop."""

    def __init__(self, plan: Plan, chosen: Backend, out: Path) -> None:
        self._plan = plan
        self._backend = chosen
        self._out = out
        self._stage: Stage | None = None
        self._stopped: str | None = None

    async def run(
        self, warm: Bodies, scored: Bodies, arrivals: Schedule | ClosedLoop, handle_signals: bool
    ) -> tuple[Outcome, Scraper | None]:
        """Warm up and run the stage."""
        plan = self._plan
        with self._signals() if handle_signals else contextlib.nullcontext():
            writer = spool.SpoolWriter(self._out / "raw.spool")
            address = (plan.target.address(), plan.target.port)
            client = Client(
                address,
                plan.target.head(plan.api, plan.connections.keep_alive),
                plan.timeouts,
                self._finished,
                tls=plan.target.tls_context(),
                server_name=plan.target.server_name or plan.target.host,
                keep_alive=plan.connections.keep_alive,
                idle_s=plan.connections.idle_s,
                spill=writer.put,
            )
            scraper = None
            try:
                if len(warm):
                    await self._warm_up(client, warm)
                clients = arrivals.clients if isinstance(arrivals, ClosedLoop) else 0
                await client.open(max(plan.connections.open_first, clients))
                if plan.metrics.url:
                    scraper = Scraper(plan.metrics.url, plan.metrics.every_s, self._out / "metrics.jsonl.gz")
                outcome = await self._score(client, scored, arrivals, writer, scraper)
            finally:
                await client.close()
                if scraper:
                    scraper.close()
                writer.close()
            return outcome, scraper

    async def _warm_up(self, client: Client, warm: Bodies) -> None:
        tell(event="warmup", requests=len(warm))
        loop = ClosedLoop(min(self._plan.warmup.clients, len(warm)))
        stage = Stage(client, warm, loop, self._backend.framing, lambda _exchange: None, first_index=_WARM)
        self._begin(stage)
        await stage.run()
        if stage.watch.failed:
            tell(event="warmup_failed", failed=stage.watch.failed, of=len(warm))

    async def _score(
        self,
        client: Client,
        scored: Bodies,
        arrivals: Schedule | ClosedLoop,
        writer: spool.SpoolWriter,
        scraper: Scraper | None,
    ) -> Outcome:
        lead_in_ns = round(self._plan.warmup.lead_in_s * NS)
        stage = Stage(
            client,
            scored,
            arrivals,
            self._backend.framing,
            writer.put,
            limits=self._plan.limits,
            lead_in_ns=lead_in_ns,
        )
        self._begin(stage)
        planned_s = (arrivals.duration_ns - lead_in_ns) / NS if isinstance(arrivals, Schedule) else arrivals.duration_s
        progress = Progress(stage, self._backend.framing, planned_s, len(scored), scraper)
        try:
            return await stage.run()
        finally:
            progress.close()

    def _begin(self, stage: Stage) -> None:
        self._stage = stage
        if self._stopped:
            asyncio.get_running_loop().call_soon(stage.stop, self._stopped)

    def _finished(self, exchange: Exchange) -> None:
        assert self._stage is not None
        self._stage.finished(exchange)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        caught = (signal.SIGINT, signal.SIGTERM)
        for one in caught:
            loop.add_signal_handler(one, self._stop, f"{one.name} was received")
        try:
            yield
        finally:
            for one in caught:
                loop.remove_signal_handler(one)

    def _stop(self, reason: str) -> None:
        self._stopped = reason
        if self._stage is not None:
            self._stage.stop(reason)


def _result(
    plan: Plan,
    chosen: Backend,
    out: Path,
    outcome: Outcome,
    scraper: Scraper | None,
    arrivals: Schedule | ClosedLoop,
    warnings: list[str],
    scored: Bodies,
    asked: Asked,
) -> dict[str, Any]:
    """The document of a run, and its records on the way."""
    window = outcome.window
    figures = Figures(window, plan.slo, plan.gpus)
    timeline = Timeline(window.start_ns)
    workflows = Workflows(scored.calls) if plan.requests.calls else None
    with RecordWriter(out / "records.bin") as writer:
        for record in answer.records(spool.read(out / "raw.spool"), chosen.framing):
            if workflows is not None:
                record.workflow, record.call = scored.workflow(record.index)
                workflows.add(record)
            writer.write(record)
            figures.add(record)
            timeline.add(record)
    waiting = scraper.waiting(window.start_ns, window.end_ns) if scraper else None
    check = outcome.selfcheck
    open_loop = isinstance(arrivals, Schedule)
    verdict = judge(
        figures,
        void=check.reasons(),
        stopped=outcome.stopped,
        waiting=waiting,
        open_loop=open_loop,
        workflow_e2e=workflows.e2e() if workflows else None,
    )
    document = figures.document()
    document["notices"] += [*warnings, *([] if open_loop else [CLOSED_LOOP_HIDES])]
    if asked.cut:
        document["notices"].append(_cut(plan, asked.cut))
    # The arrivals of a stage with workflows are those of workflows; its requests come when the server has answered.
    document["rates"]["achieved_per_s"] = None if workflows else check.achieved_per_s
    if check.offered_per_s is not None and not workflows:
        document["rates"]["offered_per_s"] = check.offered_per_s
    return {
        "schema": SCHEMA,
        "name": plan.name,
        "partial": outcome.stopped is not None,
        "stopped": outcome.stopped,
        "verdict": verdict.document(),
        "selfcheck": check.document(),
        "window": {
            "start_unix_s": outcome.started_at_s,
            "end_unix_s": outcome.started_at_s + window.seconds,
            "seconds": window.seconds,
            "start_monotonic_ns": window.start_ns,
            "end_monotonic_ns": window.end_ns,
        },
        **document,
        "requests": asked.document(),
        "workflow": workflows.document(window) if workflows else None,
        "timeline": timeline.document(),
        "server": _server(scraper, window.start_ns),
        "load": "open" if open_loop else "closed",
        "slo": asdict(plan.slo),
        "plan": plan.source,
        "generator": {
            "backend": chosen.name,
            "python": sys.version.split()[0],
            "connections_made": outcome.connections_made,
        },
        "definitions": DEFINITIONS,
        "labels": LABELS,
    }


def _cut(plan: Plan, count: int) -> str:
    what = "workflows were ended early or begun with a shorter prompt" if plan.requests.calls else "prompts were cut"
    return f"{count} {what} to fit a context of {plan.requests.context_tokens} tokens"


def _server(scraper: Scraper | None, start_ns: int) -> dict[str, Any] | None:
    """What the server said of itself while the stage ran; None when nobody asked."""
    if scraper is None:
        return None
    return {
        "second": [round((at - start_ns) / NS, 3) for at, _, _ in scraper.samples],
        "running": [running for _, running, _ in scraper.samples],
        "waiting": [waiting for _, _, waiting in scraper.samples],
        "failures": scraper.failures,
        "error": scraper.error,
    }
