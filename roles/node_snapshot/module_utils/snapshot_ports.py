"""Ports that something listens on, with the process and the unit behind each."""

from __future__ import annotations

import re
from typing import Any

from ansible.module_utils.snapshot_gpu import unit_of

_USER = re.compile(r'\("((?:[^"\\]|\\.)*)",pid=(\d+)')


def probe(host: Any) -> list[dict[str, Any]] | None:
    """Listening TCP and UDP ports, sorted; None when ss gives no list."""
    answer = host.run("ss", "-H", "-lntup")
    if not answer.ok:
        host.unseen("ports", answer.trouble)
        return None
    if not host.is_root:
        host.unseen("ports.pid", "only root sees which process listens")
    found = ports_from_ss(answer.out)
    units: dict[int, str | None] = {}
    for port in found:
        pid = port["pid"]
        if pid is not None and pid not in units:
            units[pid] = unit_of(host.read(f"/proc/{pid}/cgroup"))
        port["unit"] = units.get(pid)
    return found


def ports_from_ss(text: str) -> list[dict[str, Any]]:
    """Ports out of `ss -H -lntup`. Addresses lose their brackets and zone, "*" stays as it is."""
    found = []
    for line in text.splitlines():
        fields = line.split(None, 6)
        if len(fields) < 5 or fields[0] not in ("tcp", "udp"):
            continue
        address, _, port = fields[4].rpartition(":")
        if not port.isdigit():
            continue
        user = _USER.search(fields[6]) if len(fields) > 6 else None
        found.append(
            {
                "protocol": fields[0],
                "address": address.split("%", 1)[0].strip("[]"),
                "port": int(port),
                "pid": int(user.group(2)) if user else None,
                "process": user.group(1) if user else None,
                "unit": None,
            }
        )
    return sorted(found, key=lambda each: (each["protocol"], each["port"], each["address"], each["pid"] or 0))
