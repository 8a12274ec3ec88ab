"""What the types of the monitoring's variables leave open: names and numbers that do not exist, and what cannot fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_node import alerts, destinations
from vllm_node.dashboards import importing
from vllm_node.preflight.findings import Finding, fail, warn


def check(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings `inputs.alerts`, `inputs.dashboards`, `inputs.destinations` and `inputs.interval`."""
    yield from _alerts(values)
    yield from _dashboards(values)
    yield from _destinations(values)
    yield from _interval(values)


def _dashboards(values: Mapping[str, Any]) -> Iterator[Finding]:
    """What speaks against the dashboards that are to be imported."""
    for verdict in importing.from_variables(values):
        for reason in verdict.reasons:
            yield fail(
                "inputs.dashboards",
                f"{verdict.path} of grafana_dashboards_import: {reason}",
                "Grafana would leave the dashboard out, or show it without data.",
                "Mend the file (`vllm-node dashboards check FILE` says the same), or take it out of the list.",
            )
        for text in verdict.warnings:
            yield warn(
                "inputs.dashboards",
                f"{verdict.path} of grafana_dashboards_import: {text}",
                "The dashboard is imported, but something on it does not show what it says.",
                "Mend it where it matters to you.",
            )


def _alerts(values: Mapping[str, Any]) -> Iterator[Finding]:
    """What the type of `prometheus_alerts` cannot say: whether such an alert and such a number exist."""
    interval = str(values.get("prometheus_scrape_interval", "15s"))
    for problem in alerts.problems(values.get("prometheus_alerts") or {}, scrape_interval=interval):
        yield fail(
            "inputs.alerts",
            f"prometheus_alerts: {problem}",
            "The alert would go on as shipped, or Prometheus would refuse the rules.",
            "Correct it; each alert's page in docs/runbooks lists what can be set.",
        )


def _destinations(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Receivers and stores that cannot work as they are written."""
    for problem in destinations.problems(values):
        yield fail(
            "inputs.destinations",
            problem,
            "Alertmanager or Prometheus would refuse its configuration, or nobody would be told.",
            "Correct it in the inventory; secrets belong in its vault.",
        )


def _interval(values: Mapping[str, Any]) -> Iterator[Finding]:
    """An exporter of GPUs that samples less often than it is asked."""
    sampled_ms, asked = values.get("dcgm_exporter_interval_ms"), values.get("prometheus_scrape_interval")
    try:
        asked_s = alerts.seconds(str(asked or "15s"))
    except ValueError:
        return
    if isinstance(sampled_ms, int) and sampled_ms > asked_s * 1000:
        yield warn(
            "inputs.interval",
            f"dcgm_exporter_interval_ms is {sampled_ms}, and Prometheus asks every {asked_s:g} s",
            "Prometheus would store the same sample several times, and what is short would be missed all the same.",
            "Set dcgm_exporter_interval_ms to less than prometheus_scrape_interval.",
        )
