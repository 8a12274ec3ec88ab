"""All dashboards as the text that is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import dashboard as building
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from vllm_node.dashboards import fleet, gpu, kv_cache, overview, requests, runbooks, scheduler
from vllm_node.dashboards.vocabulary import WIDTH, Board, Panel, Row, go, variables

TAG = "vllm-node"


def boards() -> list[Board]:
    """In the order in which a person looks at them."""
    modules = (overview, requests, scheduler, kv_cache, gpu, fleet, runbooks)
    return [module.build() for module in modules]


def documents() -> dict[str, str]:
    """Text of each stored dashboard by its uid."""
    alerts = runbooks.alerts_by_panel()
    return {board.uid: text(board, alerts) for board in boards()}


def text(board: Board, alerts: Mapping[tuple[str, str], Sequence[str]]) -> str:
    """A dashboard as JSON. `alerts` names those whose home is a panel, by uid and title."""
    builder = (
        building.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .readonly()
        .timezone("browser")
        .refresh(board.refresh)
        .time("now-1h", "now")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .variables(variables(*board.variables))
        .link(
            building.DashboardLink("vLLM node")
            .type(model.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .keep_time(True)
            .include_vars(True)
        )
    )
    for panel, place in _places(board.rows):
        panel.builder.grid_pos(place)
        links = [
            runbook_link(name) for name in dict.fromkeys([*alerts.get((board.uid, panel.title), ()), *panel.alerts])
        ]
        if links:
            panel.builder.links(links)
        builder.with_panel(panel.builder)
    # Written out, as a provisioned dashboard may carry no id of another Grafana.
    content: dict[str, Any] = {"id": None, **json.loads(json.dumps(builder.build(), cls=JSONEncoder))}
    return json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def runbook_link(alert: str) -> building.DashboardLink:
    """From a panel to what is to be done about an alert."""
    return go(f"Runbook: {alert}", runbooks.path(alert), "What the alert means, and what to do")


def _places(rows: Sequence[Row]) -> Iterator[tuple[Panel, model.GridPos]]:
    """Where each panel stands: rows one below the other, in each the panels from left to right."""
    y = 0
    for row in rows:
        widths = row.widths or (WIDTH // len(row.panels),) * len(row.panels)
        x = 0
        for panel, width in zip(row.panels, widths, strict=True):
            yield panel, model.GridPos(h=row.height, w=width, x=x, y=y)
            x += width
        assert x <= WIDTH, [panel.title for panel in row.panels]
        y += row.height


def write(folder: Path) -> list[Path]:
    """Store all of them in `folder`, and remove those that are no more."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {folder / f"{uid}.json": content for uid, content in documents().items()}
    for path in set(folder.glob("*.json")) - set(wanted):
        path.unlink()
    for path, content in wanted.items():
        path.write_text(content)
    return sorted(wanted)
