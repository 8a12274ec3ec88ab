"""The gateway's port, and what the node's firewall will do with it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_node.preflight.findings import Finding, fail, warn
from vllm_node.preflight.reading import Snapshot, at, listed, mapping, text, words
from vllm_node.preflight.wanted import Door, Wanted

_OPEN_TARGET = "ACCEPT"


def _zone(snapshot: Snapshot, door: Door) -> tuple[str | None, Mapping[str, Any]]:
    """Name and settings of the zone that rules go to; no settings where firewalld does not run or has no such zone."""
    name = door.zone or text(snapshot, "firewall", "zone")
    return name, mapping(snapshot, "firewall", "zones", name or "")


def zone(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """The zone exists."""
    zones = mapping(snapshot, "firewall", "zones")
    if wanted.door and zones and (name := _zone(snapshot, wanted.door)[0]) not in zones:
        yield fail(
            "firewall.zone",
            f"firewalld has no zone {name}; there are {listed(sorted(zones), most=20)}",
            "The rules for the gateway's port go to a zone.",
            "Correct firewall_zone, or leave it empty for the zone of the default route's interface.",
        )


def reach(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Who gets through firewalld to the gateway: nobody, or everybody, where that may not be meant."""
    if wanted.door is None:
        return
    door, (name, settings) = wanted.door, _zone(snapshot, wanted.door)
    if not settings:
        return
    opened = settings.get("target") == _OPEN_TARGET or any(
        _covers(each, door.port) for each in words(settings, "ports")
    )
    if opened:
        limits = " in spite of gateway_allowed_sources" if door.sources else ""
        yield warn(
            "firewall.open",
            f"zone {name} lets everybody reach port {door.port}{limits}",
            "What a zone lets through itself, no rule of the toolkit takes back.",
            f"Take the port out of the zone (firewall-cmd --permanent --zone={name} --remove-port={door.port}/tcp), or "
            "name another firewall_zone; leave it when everybody is meant.",
        )
    elif not door.sources:
        yield warn(
            "firewall.closed",
            f"gateway_allowed_sources is empty, and zone {name} does not let port {door.port} through",
            "The zone decides, and nothing is opened: nobody outside of the node reaches the gateway.",
            "Name the networks in gateway_allowed_sources.",
        )


def unmanaged(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """A firewall of another kind, which nobody but the site changes, or none."""
    chains = at(snapshot, "firewall", "input_chains")
    if wanted.door is None or text(snapshot, "firewall", "firewalld") == "active" or chains is None:
        return
    lines = [line for chain in words(snapshot, "firewall", "input_chains") for line in _lines(chain, wanted.door)]
    if lines:
        yield warn(
            "firewall.unmanaged",
            f"firewalld is not running, and rules of nftables or iptables judge what comes in: "
            f"{listed(words(snapshot, 'firewall', 'input_chains'))}",
            "The toolkit changes no rules that it does not know the keeper of: the gateway may not be reachable.",
            "Open the port by hand, and where the site keeps its rules: " + "; ".join(lines),
        )
    elif wanted.door.sources and not chains:
        yield warn(
            "firewall.absent",
            f"the node has no firewall, so gateway_allowed_sources ({listed(wanted.door.sources)}) keeps nobody out",
            "Only a key stands between the gateway and everybody who can reach the node.",
            "Start firewalld (systemctl enable --now firewalld) after its zone lets ssh through, or filter in the "
            "network.",
        )


def _covers(ports: str, number: int) -> bool:
    """Whether an entry of firewalld (`8443/tcp`, `8000-9000/tcp`) has a TCP port in it."""
    span, _, protocol = ports.partition("/")
    first, _, last = span.partition("-")
    if protocol != "tcp" or not first.isdigit() or not (last or first).isdigit():
        return False
    return int(first) <= number <= int(last or first)


def _lines(chain: str, door: Door) -> Iterator[str]:
    """Commands that let the networks through a chain (`inet filter input`), which may be of one family only."""
    family, table, name = (chain.split() + [""] * 3)[:3]
    for version, source in _networks(door):
        if {"ip": 4, "ip6": 6}.get(family, version) != version:
            continue
        if (table, name) == ("filter", "INPUT") and family in ("ip", "ip6"):
            program = "iptables" if family == "ip" else "ip6tables"
            who = f"-s {source} " if source else ""
            yield f"{program} -I INPUT {who}-p tcp --dport {door.port} -j ACCEPT"
        else:
            who = f"{'ip' if version == 4 else 'ip6'} saddr {source} " if source else ""
            yield f"nft insert rule {chain} {who}tcp dport {door.port} accept"


def _networks(door: Door) -> Iterator[tuple[int, str]]:
    """(IP version, network) of each source; without any, one for everybody. What is no network is told elsewhere."""
    if not door.sources:
        yield 4, ""
    for source in door.sources:
        try:
            network = ipaddress.ip_network(source)
        except ValueError:
            continue
        yield network.version, str(network)


CHECKS = (zone, reach, unmanaged)
