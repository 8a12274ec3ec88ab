"""systemd units: the failed ones, our own, and those that a GPU node depends on."""

from __future__ import annotations

import re
from typing import Any

WATCHED = (
    "NetworkManager-wait-online.service",
    "chronyd.service",
    "crio.service",
    "containerd.service",
    "docker.service",
    "firewalld.service",
    "kubelet.service",
    "netavark-firewalld-reload.service",
    "nvidia-cdi-refresh.path",
    "nvidia-cdi-refresh.service",
    "nvidia-dcgm.service",
    "nvidia-fabricmanager.service",
    "nvidia-persistenced.service",
)
_OURS = re.compile(
    r"(vllm-[\w.@-]+\.service|vllm-node\.target|gpu-cdi-ready\.service"
    r"|(dcgm-exporter|node-exporter|prometheus|alertmanager|grafana)\.service)$"
)
_OUR_NAMES = (
    "vllm-node.target",
    "gpu-cdi-ready.service",
    "dcgm-exporter.service",
    "node-exporter.service",
    "prometheus.service",
    "alertmanager.service",
    "grafana.service",
)
_PROPERTIES = "Id,LoadState,ActiveState,SubState,Result,FragmentPath,SourcePath,After"
UNIT_FOLDERS = ("/etc/systemd/system", "/etc/containers/systemd")


def probe(host: Any) -> dict[str, Any] | None:
    """{failed, toolkit, watched}, or None when systemd does not answer."""
    quadlets = [
        name.rsplit(".", 1)[0] + ".service"
        for name in host.names("/etc/containers/systemd")
        if name.endswith(".container")
    ]
    files = [name for name in host.names("/etc/systemd/system") if name.endswith((".service", ".target"))]
    ours = sorted({*(name for name in quadlets + files if _OURS.match(name)), *_OUR_NAMES})
    # The patterns add units that are loaded although their file is already gone.
    answer = host.run(
        "systemctl",
        "show",
        "--no-pager",
        "--property=" + _PROPERTIES,
        "--",
        *WATCHED,
        *ours,
        "vllm-*.service",
    )
    if not answer.ok:
        host.unseen("units", answer.trouble)
        return None
    shown = units_from_show(answer.out)
    failed = host.run("systemctl", "list-units", "--failed", "--plain", "--no-legend", "--no-pager", "--full")
    if not failed.ok:
        host.unseen("units.failed", failed.trouble)
    return {
        "failed": failed_from_list(failed.out) if failed.ok else None,
        "toolkit": [
            _short(unit)
            for name, unit in sorted(shown.items())
            # A unit whose file was removed while it ran stays "not-found active": it must be seen.
            if _OURS.match(name) and (unit["load"] != "not-found" or unit["active"] != "inactive")
        ],
        "watched": {
            name: shown[name] for name in WATCHED if name in shown and shown[name]["load"] != "not-found"
        },
    }


def _short(unit: dict[str, Any]) -> dict[str, Any]:
    return {key: unit[key] for key in ("name", "load", "active", "sub", "unit_file")}


def units_from_show(text: str) -> dict[str, dict[str, Any]]:
    """Units by name out of `systemctl show`: one block of KEY=VALUE lines a unit, an empty line between."""
    found = {}
    for block in re.split(r"\n\s*\n", text):
        fields = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if fields.get("Id"):
            found[fields["Id"]] = {
                "name": fields["Id"],
                "load": fields.get("LoadState") or None,
                "active": fields.get("ActiveState") or None,
                "sub": fields.get("SubState") or None,
                "result": fields.get("Result") or None,
                "unit_file": fields.get("SourcePath") or fields.get("FragmentPath") or None,
                "after": sorted(fields.get("After", "").split()),
            }
    return found


def failed_from_list(text: str) -> list[str]:
    """Names of failed units out of `systemctl list-units --failed --plain --no-legend`."""
    rows = [line.replace("\u25cf", " ").split() for line in text.splitlines()]
    return sorted(row[0] for row in rows if row)
