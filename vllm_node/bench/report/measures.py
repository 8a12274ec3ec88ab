"""The figures of a step that reports show: where they stand in a repeat, their unit, how they were obtained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vllm_node.bench.report.numbers import unit_of
from vllm_node.bench.report.page import resolve


@dataclass(frozen=True)
class Measure:
    """One figure. `better` is the direction in which a service improves; None where neither is good as such.

    `optional`: not every workload has it, so that where it is missing nothing is unobservable.
    """

    key: str
    title: str
    path: tuple[str, ...]
    unit: str = ""
    how: str = "measured"
    better: Literal["lower", "higher"] | None = None
    optional: bool = False

    @property
    def of_server(self) -> bool:
        """Whether the server said it, not the client."""
        return self.path[0] == "server"

    @property
    def beside(self) -> tuple[str, ...]:
        """The server's figure with its samples and its bucket; empty for the client's."""
        return self.path[:-1] if self.of_server else ()

    def how_in(self, repeat: Mapping[str, Any]) -> str:
        """How it was obtained; the server's figures say that themselves."""
        if self.of_server:
            return str(resolve(repeat, (*self.beside, "how")) or self.how).split(":")[0]
        return self.how


def _latencies() -> Iterator[Measure]:
    for key, title, name, how in (
        ("ttft", "TTFT from the scheduled arrival", "ttft_scheduled_s", "measured"),
        ("ttft_sent", "TTFT from the send", "ttft_sent_s", "measured"),
        ("tpot", "TPOT", "tpot_s", "derived"),
        ("itl", "ITL", "itl_s", "measured"),
        ("e2e", "E2E from the scheduled arrival", "e2e_scheduled_s", "measured"),
    ):
        for at in ("p50", "p95", "p99"):
            yield Measure(f"{key}_{at}_s", f"{title}, {at}", ("client", "latency", name, at), "s", how, "lower")
        yield Measure(f"{key}_samples", f"{title}, samples", ("client", "latency", name, "n"))


def _workflows() -> Iterator[Measure]:
    """What only a workload of workflows has."""
    of = ("client", "workflow")
    for at in ("p50", "p95", "p99"):
        key, title = f"workflow_e2e_{at}_s", f"E2E of a workflow, {at}"
        yield Measure(key, title, (*of, "e2e_s", at), "s", "measured", "lower", optional=True)
    for key, title, path, unit, how in (
        ("samples", "E2E of a workflow, samples", ("e2e_s", "n"), "", "measured"),
        ("runs", "Workflows", ("runs",), "", "measured"),
        ("complete", "Workflows, complete", ("complete",), "", "measured"),
        ("failed", "Workflows, failed", ("failed",), "", "measured"),
        ("calls_mean", "Calls per workflow, mean", ("calls_per_run", "mean"), "", "derived"),
        ("in_calls_share", "Share of a workflow spent in calls", ("in_calls_share",), "share", "derived"),
    ):
        yield Measure(f"workflow_{key}", title, (*of, *path), unit, how, optional=True)


def _asked() -> Iterator[Measure]:
    """What the requests themselves turned out to be, where the engine counted it."""
    of = ("client", "requests")
    for key, title in (("prompt_tokens", "Prompt tokens asked for"), ("output_tokens", "Output tokens asked for")):
        for at in ("p50", "p95", "p99"):
            yield Measure(f"asked_{key}_{at}", f"{title}, {at}", (*of, key, at), optional=True)
    for key, title in (
        ("shared_prefix_share", "Shared prefix, counted"),
        ("repeated_share", "Prompt tokens met before, counted"),
    ):
        yield Measure(f"asked_{key}", title, (*of, key), "share", optional=True)


def _rate(key: str, title: str, unit: str = "/s", better: Literal["higher"] | None = None) -> Measure:
    return Measure(key, title, ("client", "rates", key), unit, "derived", better)


def _count(key: str, title: str, better: Literal["lower"] | None = None) -> Measure:
    return Measure(key, title, ("client", "counts", key), better=better)


def _server(
    key: str, title: str, unit: str = "", how: str = "measured", better: Literal["lower", "higher"] | None = None
) -> Measure:
    # Both sides have a ttft_p95_s; the keys of a step are told apart by a prefix.
    return Measure(f"server_{key}", title, ("server", "figures", key, "value"), unit, how, better)


MEASURES: tuple[Measure, ...] = (
    _rate("offered_per_s", "Offered requests"),
    _rate("admitted_per_s", "Admitted requests"),
    _rate("completed_per_s", "Completed requests", better="higher"),
    _rate("output_tokens_per_s", "Output tokens", "tokens/s", "higher"),
    *_latencies(),
    *_workflows(),
    _rate("goodput_requests_per_s", "Goodput", better="higher"),
    _rate("goodput_tokens_per_s", "Goodput in tokens", "tokens/s", "higher"),
    Measure("goodput_share", "Goodput of the offered", ("client", "goodput_share"), "share", "derived", "higher"),
    Measure("error_rate", "Error rate", ("client", "error_rate"), "share", "derived", "lower"),
    _count("errors", "Errors", "lower"),
    _count("timeouts", "Time-outs", "lower"),
    _count("refused", "Refused (429, 503)", "lower"),
    _count("cancelled", "Cancelled by the run"),
    _count("held_back", "Held back by a limit"),
    Measure("queue_slope", "Queue slope", ("client", "verdict", "queue", "slope"), "/s", "inferred", "lower"),
    *_asked(),
    _server("queue_time_p95_s", "Queue time, p95", "s", "derived", "lower"),
    _server("running_mean", "Running requests, mean"),
    _server("waiting_mean", "Waiting requests, mean", better="lower"),
    _server("waiting_max", "Waiting requests, maximum", better="lower"),
    _server("kv_usage_mean", "KV cache use, mean", "share"),
    _server("kv_usage_max", "KV cache use, maximum", "share"),
    _server("preemptions_per_request", "Preemptions per request", how="derived", better="lower"),
    _server("prefix_hit_ratio", "Prefix cache hits over queries", "share", "derived"),
    _server("prompt_tokens_computed", "Prompt tokens computed"),
    _server("prompt_tokens_cached", "Prompt tokens from the cache"),
    _server("ttft_p95_s", "TTFT by the server's histogram, p95", "s", "derived", "lower"),
    _server("tpot_p95_s", "TPOT by the server's histogram, p95", "s", "derived", "lower"),
    _server("itl_p95_s", "ITL by the server's histogram, p95", "s", "derived", "lower"),
    _server("e2e_p95_s", "E2E by the server's histogram, p95", "s", "derived", "lower"),
    _server("gpu_util_mean", "GPU use, mean", "%"),
    _server("gpu_power_mean_w", "GPU power, mean", "W"),
    _server("energy_per_token_j", "Energy per output token", "J", "derived", "lower"),
)
BY_KEY: Mapping[str, Measure] = {one.key: one for one in MEASURES}
OVERVIEW = (
    "ttft_p95_s",
    "tpot_p95_s",
    "e2e_p95_s",
    "goodput_requests_per_s",
    "error_rate",
    "queue_slope",
    "server_kv_usage_max",
    "server_preemptions_per_request",
    "server_prefix_hit_ratio",
)


def of_step(step: Mapping[str, Any]) -> list[Measure]:
    """The known measures that this step may have, and after them what else the server's figures hold."""
    known = {one.path for one in MEASURES}
    extra = {
        name
        for repeat in step["repeats"]
        for name in (repeat.get("server") or {}).get("figures", {})
        if ("server", "figures", name, "value") not in known
    }
    there = [one for one in MEASURES if not one.optional or any(_has(repeat, one) for repeat in step["repeats"])]
    return [*there, *(_server(name, name.replace("_", " "), unit_of(name)) for name in sorted(extra))]


def _has(repeat: Mapping[str, Any], one: Measure) -> bool:
    return resolve(repeat, one.path) is not None
