"""What each alert means and what to do about it, as panels: the same pages as in `docs/runbooks`, also offline."""

from __future__ import annotations

import zlib
from itertools import islice

from vllm_node.alerts import Alert, load_catalogue
from vllm_node.dashboards.vocabulary import Board, Panel, Row, prose, row
from vllm_node.runbooks import runbook_markdown

UID = "vllm-node-runbooks"
_BESIDE = 2


def build() -> Board:
    """The dashboard, in the order of the catalogue."""
    panels = [_panel(alert) for alert in load_catalogue().values()]
    return Board(
        uid=UID,
        title="vLLM node: runbooks",
        description="What each alert means, what it is not, and what to do. The same pages are in the project's docs.",
        rows=tuple(_rows(panels)),
        variables=(),
        refresh="",
    )


def _rows(panels: list[Panel]) -> list[Row]:
    left = iter(panels)
    rows = []
    while beside := tuple(islice(left, _BESIDE)):
        rows.append(row(16, *beside, widths=[12] * len(beside)))
    return rows


def _panel(alert: Alert) -> Panel:
    return prose(
        number(alert.name),
        alert.name,
        f"{alert.severity.capitalize()} alert of {alert.component}, from the catalogue of alerts.",
        runbook_markdown(alert),
    )


def number(alert: str) -> int:
    """Id of an alert's panel: from its name, so that it stays when alerts come and go before it."""
    return 1 + zlib.crc32(alert.encode()) % 1_000_000


def path(alert: str) -> str:
    """Address of an alert's page, below that of Grafana."""
    return f"/d/{UID}?viewPanel={number(alert)}"


def alerts_by_panel() -> dict[tuple[str, str], list[str]]:
    """Names of the alerts whose home is a panel, by dashboard and title."""
    found: dict[tuple[str, str], list[str]] = {}
    for alert in load_catalogue().values():
        found.setdefault((alert.dashboard, alert.panel), []).append(alert.name)
    return found
