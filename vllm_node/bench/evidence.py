"""What is known of a server over a window, the same whether Prometheus or scraped pages told it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm_node.bench.buckets import Histogram

# Logical names of the dictionary by the names of our figures.
HISTOGRAMS = {
    "ttft": "ttft",
    "itl": "itl",
    "tpot": "tpot",
    "e2e": "e2e",
    "queue_time": "queue_time",
    "prefill_time": "prefill_time",
    "decode_time": "decode_time",
}
# With the label that tells its series apart, where that matters.
COUNTERS: Mapping[str, tuple[str, str | None]] = {
    "finished": ("requests_finished", "finished_reason"),
    "preemptions": ("preemptions", None),
    "prefix_hits": ("prefix_hits", None),
    "prefix_queries": ("prefix_queries", None),
    "prompt_by_source": ("prompt_tokens_by_source", "source"),
    "generation_tokens": ("generation_tokens", None),
}
# Over engines, requests are added up; the fullest cache is the one that preempts.
SERIES = {
    "running": "requests_running",
    "waiting": "requests_waiting",
    "kv_usage": "kv_usage",
    "preemptions": "preemptions",
}
FULLEST = frozenset({"kv_usage"})
# Both stand still only in a server that serves nobody, and both begin anew with its process.
RESETTABLE = ("prompt_tokens", "generation_tokens")
RESTARTED = "a counter was reset inside the window: the server, or one of its engines, was started again"


@dataclass(frozen=True)
class Gpu:
    """One GPU over the window; None is unobservable. util: percent; power: watts; energy: joules."""

    gpu: str
    uuid: str
    util: float | None = None
    power_w: float | None = None
    energy_j: float | None = None


@dataclass
class Evidence:
    """histograms, counters and series by the names above. unseen: why one of them is not there.

    counters: by label, "" where it has none; series: (seconds since 1970, value) of each scrape. seconds: the time
    that counters were counted over. exact: whether counts are differences of readings, not extrapolated.
    """

    source: str
    seconds: float
    exact: bool
    histograms: dict[str, Histogram] = field(default_factory=dict)
    counters: dict[str, dict[str, float]] = field(default_factory=dict)
    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    gpus: list[Gpu] = field(default_factory=list)
    unseen: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    refused: str | None = None

    def count(self, name: str) -> float | None:
        """A counter over all of its labels; None when it is not known."""
        found = self.counters.get(name)
        return None if found is None else sum(found.values())
