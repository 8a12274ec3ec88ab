"""What a diagnosis asks of a node, out of its variables and of what the operator wants to know."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_node import alerts
from vllm_node.diagnosis import client as clients
from vllm_node.diagnosis.facts import Facts, instances
from vllm_node.diagnosis.signals import DEFAULT_WINDOW, expressions
from vllm_node.diagnosis.window import SHORTEST_S, duration, moment, seconds

VARIABLES = (
    "prometheus_enabled",
    "prometheus_port",
    "prometheus_scrape_interval",
    "prometheus_alerts",
    "vllm_instances",
)


@dataclass(frozen=True)
class Request:
    """module_args: arguments of the module `prometheus_query`; the rest is what its answer is judged with."""

    host: str
    module_args: dict[str, Any]
    window_s: int
    values: Mapping[str, Any]
    client: clients.Client | None
    alerts: Mapping[str, float] = field(default_factory=dict)

    def facts(self, answer: Mapping[str, Any], snapshot: Mapping[str, Any]) -> Facts:
        """Everything together, once Prometheus has answered."""
        return Facts(
            host=self.host,
            at=float(answer["at"]),
            window_s=self.window_s,
            answers=answer["answers"],
            instances=instances(self.values.get("vllm_instances")),
            snapshot=snapshot,
            client=self.client,
            alerts=self.alerts,
            scrape_interval_s=_interval(self.values.get("prometheus_scrape_interval")),
            prometheus_url=self.module_args["url"],
        )


def build(host: str, values: Mapping[str, Any], asked: Mapping[str, Any]) -> Request:
    """A request for one node.

    values: `VARIABLES` with their defaults; asked: window, at, client and time_limit_s. Raises ValueError for what
    cannot be used, and where the node has no Prometheus of its own.
    """
    if not values.get("prometheus_enabled", True):
        raise ValueError(
            "Prometheus is off on this node (prometheus_enabled is false), so there is nothing to diagnose from; "
            "next: set it to true and run vllm-node up"
        )
    client = clients.read(asked["client"]) if asked.get("client") else None
    window_s, at = _time(asked, client)
    overrides = values.get("prometheus_alerts") or {}
    complaints = alerts.problems(overrides)
    if complaints:
        raise ValueError(f"prometheus_alerts cannot be used: {complaints[0]}")
    arguments: dict[str, Any] = {
        "url": f"http://127.0.0.1:{values['prometheus_port']}",
        "queries": expressions(duration(window_s)),
        "time_limit_s": asked.get("time_limit_s") or 30,
    }
    if at is not None:
        arguments["at"] = at
    return Request(host, arguments, window_s, values, client, alerts.thresholds(overrides))


def variables(window: str | None, at: str | None, client: Path | None) -> dict[str, object]:
    """Variables of the role for what is given on the command line. Raises ValueError for what cannot be used."""
    found: dict[str, object] = {}
    if window:
        seconds(window)
        found["diagnose_window"] = window
    if at:
        found["diagnose_at"] = str(moment(at))
    if client:
        try:
            document = json.loads(client.read_text(encoding="utf-8"))
            clients.read(document)
        except (OSError, ValueError) as error:
            raise ValueError(f"{client}: {error}") from None
        found["diagnose_client"] = document
    return found


def _time(asked: Mapping[str, Any], client: clients.Client | None) -> tuple[int, float | None]:
    """Window and end. A client that says when it measured is looked at in just that time, unless asked otherwise."""
    window, at = str(asked.get("window") or ""), str(asked.get("at") or "")
    end = moment(at) if at else None
    if client is not None and client.end is not None and client.window_s is not None and not at:
        # Rates need a minute, however short the client's run was.
        window, end = window or duration(max(SHORTEST_S, client.window_s)), client.end
    return seconds(window or DEFAULT_WINDOW), end


def _interval(text: Any) -> float | None:
    match = re.fullmatch(r"(\d+)(s|m)", str(text or ""))
    return float(match.group(1)) * (60 if match.group(2) == "m" else 1) if match else None
