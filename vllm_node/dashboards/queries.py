"""What is wrong with the queries of a dashboard from elsewhere: names nobody has, numbers that mean nothing."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_node.metrics import dictionary
from vllm_node.metrics.dictionary import Metric
from vllm_node.metrics.grafana import variable_query
from vllm_node.metrics.promql import RATES, Selector, selectors
from vllm_node.metrics.uses import recorded

# Functions and aggregations for which the height of a counter is not what is asked.
_ONLY_PRESENCE = frozenset(
    ("absent", "absent_over_time", "count", "group", "timestamp", "resets", "changes", "count_values")
)


@dataclass
class Findings:
    """Texts about one panel. `unknown`: no such metric; `broken`: no PromQL; `doubtful`: not what it says."""

    unknown: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)


def judge_panel(panel: Mapping[str, Any]) -> Findings:
    """Findings on all queries of a panel."""
    found = Findings()
    for target in panel.get("targets") or []:
        if isinstance(target, Mapping) and isinstance(target.get("expr"), str) and target["expr"].strip():
            _judge(found, target["expr"])
    return found


def judge_variables(board: Mapping[str, Any]) -> Findings:
    """Findings on the queries by which variables get their values, and on those of annotations."""
    found = Findings()
    for place, label in (("templating", "variable"), ("annotations", "annotation")):
        holder = board.get(place)
        for entry in (holder.get("list") if isinstance(holder, Mapping) else None) or []:
            own = Findings()
            for expr, label_values in _exprs(entry):
                _judge(own, expr, only_presence=label_values)
            for kind in ("unknown", "broken", "doubtful"):
                getattr(found, kind).extend(f"{label} {entry.get('name')}: {text}" for text in getattr(own, kind))
    return found


def _exprs(entry: Any) -> Iterator[tuple[str, bool]]:
    """PromQL of a variable's query, in any of the forms in which it is stored, or of an annotation.

    With it: whether only labels are wanted, so that the values do not matter.
    """
    if not isinstance(entry, Mapping):
        return
    if isinstance(entry.get("expr"), str) and entry["expr"].strip():
        yield entry["expr"], False
    query = entry.get("query")
    if isinstance(query, Mapping):
        query = query.get("query")
    if entry.get("type") != "query" or not isinstance(query, str):
        return
    expr, label = variable_query(query)
    if expr:
        yield expr, label is not None


def _judge(found: Findings, expr: str, *, only_presence: bool = False) -> None:
    try:
        found_in = selectors(expr)
    except ValueError as error:
        found.broken.append(f"the query is no PromQL ({_short(str(error))}): {_short(expr)}")
        return
    for use in found_in:
        if not use.called:
            continue
        metric = dictionary.load().known(use.called)
        if metric is None and use.called not in recorded():
            found.unknown.append(_stranger(use.called))
        elif metric is not None:
            _judge_use(found, replace(use, functions=("count",)) if only_presence else use, metric)


def _judge_use(found: Findings, use: Selector, metric: Metric) -> None:
    own = metric.named(use.called)
    if own.until is not None:
        now = metric.name(None)
        better = f"it is called {now} now" if now and now != own.name else "nothing has taken its place"
        found.unknown.append(f"{use.called} ended with version {own.until}: {better}")
        return
    if metric.when:
        found.doubtful.append(f"{use.called} may be empty: {metric.when}")
    rated = use.ranged and any(function in RATES for function in use.functions[:1])
    if rated and not metric.grows():
        found.doubtful.append(f"{use.functions[0]}() of {use.called}, a gauge: it says nothing, use the gauge itself")
    if metric.grows() and not use.ranged and not _ONLY_PRESENCE & set(use.functions):
        found.doubtful.append(f"{use.called} is used as it is, and only ever grows: use rate() or increase() of it")
    if use.called.endswith("_sum") and rated and not use.divided:
        found.doubtful.append(f"{use.functions[0]}() of {use.called} alone is no mean: divide it by that of the count")
    for label in sorted(use.labels):
        if not metric.may_have(label):
            found.doubtful.append(f"{use.called} has no label {label} here")


def _stranger(name: str) -> str:
    known = dictionary.load()
    if name in known.mistaken:
        instead, why = known.mistaken[name]
        return f"there is no metric {name} ({why}); use {instead}"
    near = difflib.get_close_matches(name, [*known.series_names(), *recorded()], n=1, cutoff=0.7)
    return f"there is no metric {name} on a node" + (f"; did you mean {near[0]}?" if near else "")


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 120 else words[:117] + "…"
