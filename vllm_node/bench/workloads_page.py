"""The tables of `docs/workloads.md`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vllm_node.bench.presets import PRESETS, Workload
from vllm_node.load.lengths import Lengths

_HEAD = ("workload", "of what", "p50", "p95", "p99", "at least", "at most")


def page(path: Path, between: Callable[[Path, str], str], table: Callable[..., str]) -> dict[Path, str]:
    """The page as it should be; nothing where there is none. `between` and `table` are those of `vllm_node.docs`."""
    if not path.exists():
        return {}
    rows = [row for workload in PRESETS.values() for row in _rows(workload)]
    what = [(f"`{one.name}`", f"{one.description}.", f"{one.shared_prefix_share:.0%}") for one in PRESETS.values()]
    head = ("workload", "what it stands for", "shared prefix")
    return {path: between(path, f"{table(head, what)}\n{table(_HEAD, rows)}")}


def _rows(workload: Workload) -> list[tuple[str, ...]]:
    found = [("prompt, tokens", workload.prompt_tokens), ("answer, tokens", workload.output_tokens)]
    if steps := workload.steps:
        found[0] = ("first prompt, tokens", workload.prompt_tokens)
        found += [("new in each call, tokens", steps.new_tokens), ("between calls, ms", steps.think_ms)]
        found += [("calls", steps.calls)]
    return [(f"`{workload.name}`", what, *_percentiles(lengths)) for what, lengths in found]


def _percentiles(lengths: Lengths) -> tuple[str, ...]:
    if lengths.p50 is None:
        return "evenly", "", "", str(lengths.low), str(lengths.high)
    return (*map(str, (lengths.p50, lengths.p95, lengths.p99)), str(lengths.low), str(lengths.high))
