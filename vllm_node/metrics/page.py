"""The tables of `docs/metrics.md`, out of the dictionary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vllm_node.metrics.dictionary import Metric, load

_TITLES = {
    "vllm": "vLLM",
    "dcgm": "GPUs, by the DCGM exporter",
    "node": "The node, by the node exporter",
    "prometheus": "Prometheus itself",
    "alertmanager": "Alertmanager",
    "common": "What several jobs have, and what Prometheus makes",
}


def page(path: Path, between: Callable[[Path, str], str], table: Callable[..., str]) -> dict[Path, str]:
    """The page as it should be; nothing where there is none. `between` and `table` are those of `vllm_node.docs`."""
    if not path.exists():
        return {}
    head = ("name on the wire", "type, unit", "labels", "meaning")
    parts = [
        f"### {title}\n\n{table(head, [_row(metric) for metric in load() if metric.source == source])}"
        for source, title in _TITLES.items()
    ]
    return {path: between(path, "\n".join(parts))}


def _row(metric: Metric) -> tuple[str, ...]:
    labels = sorted(metric.labels) + [f"({label})" for label in sorted(metric.labels_when)]
    meaning = metric.means + (f" Condition: {metric.when}." if metric.when else "")
    return _names(metric), f"{metric.type}, {metric.unit}", ", ".join(labels) or "-", meaning.replace("|", "\\|")


def _names(metric: Metric) -> str:
    logical = "" if metric.logical == metric.names[0].name else f" ({metric.logical})"
    spans = [f"`{name.name}`" + ("" if name.span() == "always" else f" {name.span()}") for name in metric.names]
    return "; ".join(spans) + logical
