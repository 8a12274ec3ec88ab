"""Who keeps the node's firewall, and what it lets in: the rules of the kernel, and the zones of firewalld."""

from __future__ import annotations

import hashlib
import re
from typing import Any

_FIREWALLD_CONF = "/etc/firewalld/firewalld.conf"
_LISTED = ("interfaces", "ports", "services")


def probe_ruleset(host: Any) -> dict[str, Any] | None:
    """{sha256, input_chains} of the kernel's rules; None when they cannot be listed."""
    if not host.which("nft"):
        host.unseen("firewall.ruleset_sha256", "nft is not installed")
        return None
    if not host.is_root:
        host.unseen("firewall.ruleset_sha256", "only root can list the rules")
        return None
    answer = host.run("nft", "-s", "list", "ruleset")
    if not answer.ok:
        host.unseen("firewall.ruleset_sha256", answer.trouble)
        return None
    return {"sha256": ruleset_hash(answer.out), "input_chains": input_chains(answer.out)}


def ruleset_hash(text: str) -> str:
    """Hash of `nft list ruleset`, blind to what moves by itself: counters, expiry times, handles."""
    still = re.sub(r"counter packets \d+ bytes \d+", "counter", text)
    still = re.sub(r"\s(expires|used) [\w.]+", "", still)
    still = re.sub(r" # handle \d+", "", still)
    return hashlib.sha256(still.strip().encode("utf-8")).hexdigest()


def input_chains(text: str) -> list[str]:
    """`family table chain` of each chain that can refuse what comes in, as `nft` takes it."""
    tables = re.findall(r"^table (.+?) \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    return [
        f"{table} {chain}"
        for table, chains in tables
        for chain, body in re.findall(r"^\tchain (.+?) \{\n(.*?)^\t\}", chains, re.MULTILINE | re.DOTALL)
        # Others only count or let through, such as podman's own.
        if re.search(r"type filter hook input ", body) and re.search(r"\b(drop|reject|jump|goto|queue)\b", body)
    ]


def probe_zones(host: Any) -> dict[str, Any] | None:
    """{zones, default_zone, zone} of a firewalld that runs, else None; `zone` has the default route's interface."""
    if not host.which("firewall-cmd"):
        return None
    answer = host.run("firewall-cmd", "--list-all-zones")
    if not answer.ok:
        if "not running" not in answer.trouble:
            host.unseen("firewall.zones", answer.trouble)
        return None
    zones = parse_zones(answer.out)
    configured = re.search(r"^DefaultZone\s*=\s*(\S+)", host.read(_FIREWALLD_CONF) or "", re.MULTILINE)
    default = configured.group(1) if configured else "public"
    interface = default_interface(host.read("/proc/net/route"), host.read("/proc/net/ipv6_route"))
    bound = [name for name, zone in zones.items() if interface in zone["interfaces"]]
    return {"zones": zones, "default_zone": default, "zone": bound[0] if bound else default}


def parse_zones(text: str) -> dict[str, dict[str, Any]]:
    """{name: {target, interfaces, ports, services}} out of `firewall-cmd --list-all-zones`."""
    zones: dict[str, dict[str, Any]] = {}
    zone: dict[str, Any] = {}
    for line in text.splitlines():
        name = re.match(r"(\S+)( \(.*\))?$", line)
        field = re.match(r"  ([a-z]+): *(.*)$", line)
        if name:
            zone = zones[name.group(1)] = {"target": None, **{each: [] for each in _LISTED}}
        elif field and field.group(1) == "target":
            zone["target"] = field.group(2)
        elif field and field.group(1) in _LISTED:
            zone[field.group(1)] = field.group(2).split()
    return zones


def default_interface(ipv4: str | None, ipv6: str | None) -> str | None:
    """Interface of the default route out of /proc/net/route, else of /proc/net/ipv6_route; None without one."""
    routes = []
    for line in (ipv4 or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[1] == "00000000" and fields[7] == "00000000":
            routes.append((int(fields[6]), fields[0]))
    if not routes:
        for line in (ipv6 or "").splitlines():
            fields = line.split()
            # The kernel keeps an entry of its own that refuses what no route takes; it is bound to lo.
            if len(fields) > 9 and fields[0] == "0" * 32 and fields[1] == "00" and fields[9] != "lo":
                routes.append((int(fields[5], 16), fields[9]))
    return min(routes)[1] if routes else None
