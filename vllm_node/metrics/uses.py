"""Every expression that something of ours asks: in rules, in dashboards, in diagnosis."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from vllm_node import alerts
from vllm_node.dashboards import store
from vllm_node.metrics.grafana import variable_query
from vllm_node.paths import project_root

RECORDING = "roles/prometheus/files/recording.yml"
ALERTS = "roles/prometheus/files/alerts"
DASHBOARDS = "roles/grafana/files/dashboards"
# module and function of whatever else asks Prometheus: name → expression.
_ASKING = (
    ("vllm_node/bench/answers.py", "vllm_node.bench.answers", "expressions"),
    ("vllm_node/diagnosis/signals.py", "vllm_node.diagnosis.signals", "expressions"),
    ("vllm_node/diagnosis/hypotheses.py", "vllm_node.diagnosis.hypotheses", "next_queries"),
)


@dataclass(frozen=True)
class Use:
    """One expression, and where it stands. `label`: the label whose values a dashboard's variable takes from it."""

    file: str
    place: str
    expression: str
    label: str | None = None

    def __str__(self) -> str:
        """For people."""
        return f"{self.file}: {self.place}"


def all_uses(overrides: Mapping[str, Any] | None = None, *, disabled: bool = False) -> list[Use]:
    """Everything that ships, as `prometheus_alerts` (`overrides`) changes it; with `disabled`, alerts that are off too.

    Raises:
        ValueError: the overrides, or a file that ships, are wrong.
    """
    root = project_root()
    found = [*recording_uses(root / RECORDING), *alert_uses(overrides or {}, disabled=disabled)]
    numbers = store.numbers(overrides or {})
    for path in store.paths():
        found += dashboard_uses(json.loads(store.text(path, numbers)), f"{DASHBOARDS}/{path.name}")
    for file, module, function in _ASKING:
        asked: Mapping[str, str] = getattr(importlib.import_module(module), function)()
        found += [Use(file, name, expression) for name, expression in asked.items()]
    return found


@cache
def recorded() -> frozenset[str]:
    """Names of the series that the recording rules make."""
    return frozenset(rule["record"] for rule in _rules(project_root() / RECORDING))


def recording_uses(path: Path) -> list[Use]:
    """Expressions of the recording rules."""
    return [Use(RECORDING, f"rule {rule['record']}", rule["expr"]) for rule in _rules(path)]


def alert_uses(overrides: Mapping[str, Any], *, disabled: bool = False) -> list[Use]:
    """Expressions of the alerts, both forms of one that has two."""
    found = []
    for alert in alerts.in_force(overrides).values():
        if alert.enabled or disabled:
            texts = dict.fromkeys([alerts.expression(alert), alerts.expression(alert, gpus=1)])
            found += [Use(f"{ALERTS}/{alert.component}.yml", f"alert {alert.name}", text) for text in texts]
    return found


def dashboard_uses(board: Mapping[str, Any], name: str) -> list[Use]:
    """Expressions of a dashboard: of panels, those in rows too, of variables and of annotations."""
    found = [
        Use(name, f'panel "{panel.get("title") or panel.get("id")}"', target["expr"])
        for panel in store.panels(dict(board))
        for target in panel.get("targets") or []
        if target.get("expr")
    ]
    for variable in (board.get("templating") or {}).get("list") or []:
        query = variable.get("query")
        text = query.get("query") if isinstance(query, Mapping) else query
        if variable.get("type") == "query" and isinstance(text, str):
            expression, label = variable_query(text)
            if expression:
                found.append(Use(name, f"variable {variable.get('name')}", expression, label))
    annotations = (board.get("annotations") or {}).get("list") or []
    asked = [Use(name, f"annotation {one.get('name')}", one["expr"]) for one in annotations if one.get("expr")]
    return [*found, *asked]


def _rules(path: Path) -> list[Mapping[str, Any]]:
    groups = yaml.safe_load(path.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]
