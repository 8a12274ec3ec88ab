"""What a dashboard of ours must be: each rule gives sentences that name the panel."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from vllm_node.dashboards import queries, store
from vllm_node.dashboards.panel_types import complaint
from vllm_node.metrics import dictionary
from vllm_node.metrics.promql import RATES, selectors
from vllm_node.metrics.uses import recorded

plugins.register_default_plugins()

Model = dict[str, Any]
UNITS = {
    *("s", "none", "short", "percent", "percentunit", "reqps", "ops"),
    *("celsius", "watt", "joule", "hertz", "Bps"),
}
# An uncorrected error is a level on purpose: a counter that is born at 1 has no increase.
RAW = {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"}


def complaints(board: Model, uids: set[str]) -> list[str]:
    """All complaints about a dashboard whose thresholds are numbers; `uids` are those of all dashboards."""
    return [
        *_whole(board, uids),
        *(f"{panel.get('title')}: {text}" for panel in store.panels(board) for text in _panel(panel)),
    ]


def _whole(board: Model, uids: set[str]) -> Iterator[str]:
    text = json.dumps(board)
    if board.get("id", 0) is not None:
        yield "id is not null"
    if not re.fullmatch(r"vllm-node-[a-z-]{3,30}", str(board.get("uid"))):
        yield f"uid {board.get('uid')}"
    if not isinstance(board.get("schemaVersion"), int) or board["schemaVersion"] < 36:
        yield "schemaVersion"
    if "__inputs" in board or re.search(r"\$\{?DS_", text):
        yield "it waits for an import that nobody does"
    if not board.get("description"):
        yield "no description"
    for kind in ("id", "title"):
        seen = [panel.get(kind) for panel in store.panels(board)]
        if len(seen) != len(set(seen)):
            yield f"{kind} of a panel is there twice"
    for uid in re.findall(r"/d/([\w-]+)", text):
        if uid not in uids:
            yield f"links to {uid}, which is not there"
    yield from _overlaps(board)
    declared = {entry["name"] for entry in board["templating"].get("list", [])}
    for name in set(re.findall(r"\$\{?(\w+)", json.dumps(board["panels"]))) - declared:
        if not name.startswith("__"):
            yield f"the variable {name} is not declared"
    found = queries.judge_variables(board)
    yield from [*found.unknown, *found.broken]
    if json.loads(json.dumps(model.Dashboard.from_json(board), cls=JSONEncoder)) != {
        key: value for key, value in board.items() if key != "id"
    }:
        yield "the official models lose something of it"


def _overlaps(board: Model) -> Iterator[str]:
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        if cells & taken or place["x"] + place["w"] > 24:
            yield f"{panel['title']}: it lies over another panel, or beyond the edge"
        taken |= cells


def _panel(panel: Model) -> Iterator[str]:
    if text := complaint(panel.get("type")):
        yield text
    if len(str(panel.get("description") or "")) < 20:
        yield "no description"
    if panel.get("type") == "text":
        return
    defaults = panel["fieldConfig"]["defaults"]
    if defaults.get("unit") not in UNITS:
        yield f"the unit is {defaults.get('unit')}"
    for step in defaults.get("thresholds", {}).get("steps", []):
        if isinstance(step["value"], str):
            yield f"the threshold {step['value']} is no number"
    if panel.get("datasource") != {"type": "prometheus", "uid": "${datasource}"}:
        yield "its data source is not the chosen one"
    if not panel.get("targets"):
        yield "no query"
    for target in panel.get("targets") or []:
        yield from _query(target["expr"])


def _query(expr: str) -> Iterator[str]:
    for range_ in re.findall(r"(?:rate|increase)\([^()]*\[([^\]]+)\]", expr):
        if range_ != "$__rate_interval":
            yield f"a rate over {range_}"
    try:
        found = selectors(expr)
    except ValueError as error:
        yield f"no PromQL: {error}"
        return
    for use in found:
        metric = dictionary.load().known(use.called)
        if metric is None:
            if use.called not in recorded():
                yield f"there is no metric {use.called}"
            continue
        if metric.grows() and not use.ranged and use.called not in RAW:
            yield f"{use.called} is shown as it is"
        if not metric.grows() and use.ranged and use.functions[0] in RATES:
            yield f"{use.functions[0]}() of the gauge {use.called}"
        if use.called.endswith("_sum") and use.ranged and not use.divided:
            yield f"{use.called} is no latency"
        if use.called.endswith("_bucket") and "histogram_quantile" in use.functions and "sum" not in use.functions:
            yield f"a quantile over {use.called} without a sum by le"
        if metric.named(use.called).until is not None:
            yield f"{use.called} is no more"
        for label in use.labels:
            if not metric.may_have(label):
                yield f"{use.called} has no label {label}"
