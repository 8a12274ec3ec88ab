"""A plan held against what vLLM itself says once it runs: labels of `vllm:cache_config_info`, and lines of its log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from vllm_node.fit.plan import Plan

# A plan that is nearer than this is as good as one can be before the start.
CLOSE = 5.0
_METRIC = "vllm:cache_config_info"
_LOG: tuple[tuple[str, re.Pattern[str], float], ...] = (
    ("tokens", re.compile(r"KV cache size: ([\d,]+) tokens"), 1),
    ("max_model_len", re.compile(r"Maximum concurrency for ([\d,]+) tokens per request"), 1),
    ("requests", re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"), 1),
    ("weights_bytes", re.compile(r"(?:Model loading|Loading model weights) took ([\d.]+) Gi?B"), 1 << 30),
    ("kv_bytes", re.compile(r"Available KV cache memory: ([\d.]+) GiB"), 1 << 30),
    ("kv_bytes", re.compile(r"(?:Explicitly set|Auto set) \(([\d.]+)/"), 1 << 30),
)


@dataclass(frozen=True)
class Seen:
    """What a running vLLM tells. Tokens, GPU blocks and bytes on one GPU; None for what it did not tell."""

    blocks: int | None = None
    block_size: int | None = None
    tokens: int | None = None
    requests: float | None = None
    max_model_len: int | None = None
    kv_bytes: float | None = None
    weights_bytes: float | None = None

    @classmethod
    def of_labels(cls, labels: Mapping[str, Any] | None, max_model_len: int | None = None) -> Seen:
        """Out of the labels of `vllm:cache_config_info`. An older vLLM tells blocks only, and no tokens."""
        given = labels or {}
        # With the number of blocks given outright the memory is what they take, not what is told here.
        kv_bytes = None if _whole(given.get("num_gpu_blocks_override")) else _number(given.get("kv_cache_memory_bytes"))
        return cls(
            blocks=_whole(given.get("num_gpu_blocks")),
            block_size=_whole(given.get("block_size")),
            tokens=_whole(given.get("kv_cache_size_tokens")),
            requests=_number(given.get("kv_cache_max_concurrency")),
            max_model_len=max_model_len,
            kv_bytes=kv_bytes,
        )

    @classmethod
    def of_page(cls, page: str, max_model_len: int | None = None) -> Seen:
        """Out of a page of metrics. The first engine speaks for all.

        Raises:
            ValueError: the page is none of vLLM, or has no such metric.
        """
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name == _METRIC:
                    return cls.of_labels(sample.labels, max_model_len)
        raise ValueError(f"the page has no {_METRIC}; it is there once vLLM has loaded its model")

    @classmethod
    def of_log(cls, log: str) -> Seen:
        """Out of lines of vLLM's log; the last one of a kind counts, as a restart writes them again."""
        found: dict[str, float] = {}
        for name, pattern, factor in _LOG:
            told = pattern.findall(log)
            if told:
                found[name] = float(told[-1].replace(",", "")) * factor
        return cls(
            tokens=_whole(found.get("tokens")),
            requests=found.get("requests"),
            max_model_len=_whole(found.get("max_model_len")),
            kv_bytes=found.get("kv_bytes"),
            weights_bytes=found.get("weights_bytes"),
        )

    def and_also(self, other: Seen) -> Seen:
        """Both together; what this one tells wins."""
        ours = {field.name: getattr(self, field.name) for field in fields(self)}
        return Seen(**{name: getattr(other, name) if value is None else value for name, value in ours.items()})


@dataclass(frozen=True)
class Difference:
    """One figure twice. percent: how far the plan is above (positive) or below vLLM's own figure."""

    name: str
    unit: str
    planned: float | None
    seen: float | None
    percent: float | None
    words: str

    @property
    def close(self) -> bool | None:
        """Whether the plan is within 5 per cent; None where one of the two is not known."""
        return None if self.percent is None else abs(self.percent) <= CLOSE

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "close": self.close}


_COMPARED = (
    ("weights_gpu", "weights_bytes", "weights on a GPU"),
    ("kv_memory", "kv_bytes", "memory for the KV cache"),
    ("blocks", "blocks", "blocks"),
    ("block_size", "block_size", "tokens in a block"),
    ("kv_tokens", "tokens", "tokens that fit"),
    ("full_requests", "requests", "requests of full length that fit"),
    ("max_model_len", "max_model_len", "longest request"),
)


def held(plan: Plan, seen: Seen) -> list[Difference]:
    """Differences between a plan and a vLLM that runs, one a figure that both should know."""
    found = []
    for name, field, title in _COMPARED:
        figure = plan.figure(name)
        found.append(_difference(title, name, figure.unit, figure.value, getattr(seen, field), figure.low, figure.high))
    return found


def _difference(
    title: str, name: str, unit: str, planned: float | None, seen: float | None, low: float | None, high: float | None
) -> Difference:
    if planned is None or seen is None:
        who = "neither the plan nor vLLM" if planned is None and seen is None else ""
        who = who or ("the plan" if planned is None else "vLLM")
        verb = "tells" if who.startswith("neither") else "does not tell"
        return Difference(name, unit, planned, seen, None, f"{title}: {who} {verb} it")
    if not seen:
        return Difference(name, unit, planned, seen, None, f"{title}: vLLM has none")
    percent = (planned - seen) / seen * 100
    if abs(percent) < 0.05:
        words = f"{title}: as planned"
    else:
        words = f"{title}: planned {abs(percent):.1f} % {'more' if percent > 0 else 'fewer'} than vLLM has"
    if abs(percent) > CLOSE and low is not None and high is not None and low != high:
        inside = low <= seen <= high
        words += ", " + ("within" if inside else "outside of") + " the range that the plan gave"
    return Difference(name, unit, planned, seen, percent, words)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def journal(unit: str, since: object = None) -> list[str]:
    """The command that shows those lines of a unit's log, of its present life if `since` (ISO 8601) tells its begin."""
    found = re.match(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d+)?\s*(Z|[+-]\d\d:?\d\d)?", str(since or ""))
    begin = []
    if found:
        moment = datetime.fromisoformat(f"{found[1]}T{found[2]}{found[3] or 'Z'}")
        begin = [f"--since=@{moment.timestamp():.0f}"]
    pattern = "KV cache size|Maximum concurrency|Model loading took|Available KV cache memory|for KV cache on node"
    shown = ("--grep", pattern, "--output=cat", "--no-pager", "--lines=200")
    return ["journalctl", f"--unit={unit}", "--boot", *begin, *shown]
