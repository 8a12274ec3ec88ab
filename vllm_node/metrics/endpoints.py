"""Which pages of metrics a node has, out of its variables: one for each target that its Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# job, instance, and the role whose `_enabled` and `_port` say where it is.
_COMPONENTS = (
    ("prometheus", "prometheus", "prometheus"),
    ("alertmanager", "alertmanager", "alertmanager"),
    ("node", "node-exporter", "node_exporter"),
    ("dcgm", "dcgm-exporter", "dcgm_exporter"),
)
VARIABLES = (
    "vllm_instances",
    "prometheus_alerts",
    *(f"{role}_{what}" for _, _, role in _COMPONENTS for what in ("enabled", "port")),
)


def endpoints(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """job, instance, url and enabled of each; `values` are `VARIABLES` with their defaults."""
    found = [
        _endpoint(job, instance, values[f"{role}_port"], values.get(f"{role}_enabled", True))
        for job, instance, role in _COMPONENTS
    ]
    instances = values.get("vllm_instances") or []
    return [*found, *(_endpoint("vllm", str(one["name"]), one["port"], True) for one in instances)]


def unit(job: str, instance: str) -> str:
    """The systemd unit behind an endpoint."""
    return f"vllm-{instance}.service" if job == "vllm" else f"{instance}.service"


def _endpoint(job: str, instance: str, port: object, enabled: object) -> dict[str, Any]:
    # Ansible hands on what -e says as text.
    off = str(enabled).lower() in ("false", "no", "off", "0")
    return {"job": job, "instance": instance, "url": f"http://127.0.0.1:{port}/metrics", "enabled": not off}
