"""The server's own figures over the scored window, in the form of the run document.

Ask `queries` at the end of the window, all in one call of the module `prometheus_query`, and give the answers to
`figures`; or give the pages that the measuring engine kept to `figures_from_scrapes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from vllm_node.bench import answers as prometheus
from vllm_node.bench import pages as scrapes
from vllm_node.bench.agreement import agree
from vllm_node.bench.answers import expressions, queries
from vllm_node.bench.evidence import HISTOGRAMS, Evidence, Gpu
from vllm_node.bench.pages import read_pages
from vllm_node.bench.window import Window
from vllm_node.load.distribution import INSUFFICIENT

__all__ = ["DEFINITIONS", "Window", "agree", "expressions", "figures", "figures_from_scrapes", "queries", "read_pages"]

QUANTILES = (0.5, 0.95, 0.99)
# A mean of one look is no mean.
_LOOKS_NEEDED = 2
DEFINITIONS = {
    "server window": "the scored window of the stage. Prometheus extrapolates counts to its ends; kept pages are "
    "compared at the two that are nearest to its ends",
    "server quantiles": "of the histogram of all engines together, interpolated inside of the bucket that is given",
    "server ttft, e2e": "from the arrival of a request at the server; what ended in the window counts, so that "
    "requests of before are in it and the last ones are not",
    "server tpot": "one value a request; an answer of one token counts as 0 and pulls it down",
    "queue_time": "the first edge is 0.3 s, so a small quantile is interpolation and no more",
    "running, waiting": "requests over all engines, as scrapes saw them; between two scrapes there may have been more",
    "kv_usage": "share of the KV cache in use, of the engine that is fullest",
    "preemptions_per_request": "preemptions by finished requests; in the timeline, preemptions since the scrape before",
    "prefix_hit_ratio": "prompt tokens found in the prefix cache by those looked up",
    "prompt_tokens_computed, prompt_tokens_cached": "prompt tokens by where they came from",
    "gpu_util_mean": "share of time with at least one kernel, of the GPUs allocated to the instance; it says nothing "
    "on how full they are",
    "energy_per_token_j": "energy of the allocated GPUs by generated tokens",
}


def figures(answers: Mapping[str, Mapping[str, Any]], window: Window, gpus: Sequence[str] = ()) -> dict[str, Any]:
    """Figures out of the `answers` of `prometheus_query`. gpus: those allocated to the instance, as CDI names them."""
    return document(prometheus.read(answers, window, gpus), window)


def figures_from_scrapes(
    pages: Iterable[Mapping[str, Any]], window: Window, *, model: str | None = None, version: str | None = None
) -> dict[str, Any]:
    """Figures out of the pages of `metrics.jsonl.gz`; see `read_pages`."""
    return document(scrapes.read(pages, window, model=model, version=version), window)


def document(evidence: Evidence, window: Window) -> dict[str, Any]:
    """The server's part of a repeat. Figures of a window with a reset would be of two servers: there are none."""
    made = _Figures(evidence)
    if evidence.refused is None:
        made.make()
    return {
        "window": window.document(),
        "source": evidence.source,
        "figures": made.figures,
        "gpus": [] if evidence.refused else [_gpu(one) for one in evidence.gpus],
        "timeline": _timeline(evidence, window),
        "refused": evidence.refused,
        "notices": evidence.notices,
        "unobservable": [{"what": what, "why": why} for what, why in made.unobservable.items()],
    }


class _Figures:
    """Figures by name, and why some are not there. Whatever is divided by nothing is unobservable, and not zero."""

    def __init__(self, evidence: Evidence) -> None:
        self.figures: dict[str, dict[str, Any]] = {}
        self.unobservable: dict[str, str] = {}
        self._evidence = evidence

    def make(self) -> None:
        for name in HISTOGRAMS:
            self._latency(name)
        self._looks()
        self._counts()
        self._gpus()

    def _put(self, name: str, value: float | str | None, how: str, samples: int, why: str = "", **more: Any) -> None:
        self.figures[name] = {"value": value, "how": how, "samples": samples, **more}
        if value is None:
            self.unobservable[name] = why

    def _unseen(self, *names: str) -> str:
        return next((self._evidence.unseen[name] for name in names if name in self._evidence.unseen), "it is not known")

    def _latency(self, name: str) -> None:
        histogram = self._evidence.histograms.get(name)
        if histogram is None:
            for what in (*(f"p{quantile * 100:.0f}" for quantile in QUANTILES), "mean"):
                self._put(f"{name}_{what}_s", None, "derived", 0, self._unseen(name))
            return
        for quantile in QUANTILES:
            one = histogram.quantile(quantile)
            bucket = None if one.low is None else [one.low, one.high]
            self._put(
                f"{name}_p{quantile * 100:.0f}_s", one.value, "derived", one.samples, one.why or "", bucket=bucket
            )
        samples = round(histogram.n)
        self._put(f"{name}_mean_s", histogram.mean(), "derived", samples, "nothing was observed in the window")

    def _looks(self) -> None:
        for name in ("running", "waiting", "kv_usage"):
            values = [value for _, value in self._evidence.series.get(name, [])]
            for what in ("mean", "max"):
                value: float | str | None = None
                if values:
                    value = max(values) if what == "max" else sum(values) / len(values)
                    value = INSUFFICIENT if len(values) < _LOOKS_NEEDED else value
                self._put(f"{name}_{what}", value, "measured", len(values), self._unseen(name))

    def _counts(self) -> None:
        evidence = self._evidence
        how = "measured" if evidence.exact else "derived"
        finished, tokens = evidence.count("finished"), evidence.count("generation_tokens")
        n = round(finished or 0)
        reasons = evidence.counters.get("finished", {})
        self._put("requests_finished", finished, how, n, self._unseen("finished"), by_reason=reasons)
        self._put("preemptions", evidence.count("preemptions"), how, n, self._unseen("preemptions"))
        self._ratio("preemptions_per_request", "preemptions", "finished", "no request finished in the window")
        self._ratio("prefix_hit_ratio", "prefix_hits", "prefix_queries", "no prompt token was looked up in the window")
        source = evidence.counters.get("prompt_by_source")
        computed = None if source is None else source.get("local_compute", 0.0)
        cached = None if source is None else sum(source.values()) - (computed or 0.0)
        for name, value in (("prompt_tokens_computed", computed), ("prompt_tokens_cached", cached)):
            self._put(name, value, how, n, self._unseen("prompt_by_source"))
        self._put("generation_tokens", tokens, how, n, self._unseen("generation_tokens"))
        rate = None if tokens is None else tokens / evidence.seconds
        self._put("generation_tokens_per_s", rate, "derived", n, self._unseen("generation_tokens"))

    def _ratio(self, name: str, above: str, below: str, nothing: str) -> None:
        count, whole = self._evidence.count(above), self._evidence.count(below)
        if count is None or whole is None:
            self._put(name, None, "derived", 0, self._unseen(above, below))
        else:
            self._put(name, count / whole if whole > 0 else None, "derived", round(whole), nothing)

    def _gpus(self) -> None:
        gpus = self._evidence.gpus
        why = self._unseen("gpus") if not gpus else "the DCGM exporter does not tell it of every GPU"
        utils = [gpu.util for gpu in gpus if gpu.util is not None]
        powers = [gpu.power_w for gpu in gpus if gpu.power_w is not None]
        full = bool(gpus) and len(utils) == len(gpus)
        self._put("gpu_util_mean", sum(utils) / len(utils) if full else None, "measured", len(utils), why)
        full = bool(gpus) and len(powers) == len(gpus)
        self._put("gpu_power_mean_w", sum(powers) / len(powers) if full else None, "measured", len(powers), why)
        self._energy(why)

    def _energy(self, why: str) -> None:
        gpus, tokens = self._evidence.gpus, self._evidence.count("generation_tokens")
        joules = [gpu.energy_j for gpu in gpus]
        how = "derived"
        if gpus and None in joules:
            # Not every part counts its energy; mean power by time is nearly as good.
            joules = [None if gpu.power_w is None else gpu.power_w * self._evidence.seconds for gpu in gpus]
            how = "inferred"
        total = sum(one for one in joules if one is not None)
        value = None
        if "gpus_alone" in self._evidence.unseen:
            why = self._evidence.unseen["gpus_alone"]
        elif tokens is None:
            why = self._unseen("generation_tokens")
        elif tokens <= 0:
            why = "no token was generated in the window"
        elif gpus and None not in joules:
            value = total / tokens
        self._put("energy_per_token_j", value, how, round(tokens or 0), why)


def _gpu(one: Gpu) -> dict[str, Any]:
    return {
        "gpu": one.gpu,
        "uuid": one.uuid,
        "util_mean": one.util,
        "power_mean_w": one.power_w,
        "energy_j": one.energy_j,
    }


def _timeline(evidence: Evidence, window: Window) -> dict[str, list[float | None]]:
    """One row a scrape; seconds count from the start of the window."""
    columns = {name: dict(points) for name, points in evidence.series.items()}
    preemptions = evidence.series.get("preemptions", [])
    columns["preemptions"] = {after[0]: max(0.0, after[1] - before[1]) for before, after in pairwise(preemptions)}
    times = sorted({at for points in evidence.series.values() for at, _ in points})
    return {
        "t_s": [round(at - window.start, 3) for at in times],
        **{
            name: [columns.get(name, {}).get(at) for at in times]
            for name in ("running", "waiting", "kv_usage", "preemptions")
        },
    }
