"""Ports and the way to the internal registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_node.preflight.findings import Finding, Level, finding, warn
from vllm_node.preflight.reading import Snapshot, at, installed, listed, mapping, rows, text
from vllm_node.preflight.wanted import Wanted

_EVERYWHERE = {"*", "0.0.0.0", "::", "127.0.0.1", "::1", "localhost"}  # noqa: S104 - addresses to recognise


def ports(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Ports that somebody else listens on."""
    for port in wanted.ports:
        others = [
            row
            for row in rows(snapshot, "ports")
            if row.get("protocol") == "tcp" and row.get("port") == port.number and _in_the_way(row, wanted)
        ]
        if others:
            other = others[0]
            known = other.get("unit") or other.get("process")
            yield finding(
                "fail" if known else "warn",
                "port.taken",
                f"port {port.number} ({port.variable}) is taken by {_who(other)}",
                f"{port.unit} could not listen there.",
                f"Stop that process, or set {port.variable} to a free port.",
            )


def _in_the_way(row: Mapping[str, Any], wanted: Wanted) -> bool:
    # One of our own units is never in the way: it holds its own port, or gives one up to another of ours.
    if text(row, "unit") in wanted.components:
        return False
    address = str(row.get("address"))
    return address in _EVERYWHERE or address.startswith("127.")


def _who(row: Mapping[str, Any]) -> str:
    process = f"{row.get('process') or 'an unknown process'} (pid {row.get('pid') or '?'}"
    return f"{process}, {row.get('unit') or 'unit not seen'}) on {row.get('address')}"


def registry(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """The registry: reachable, trusted, letting us in."""
    found = mapping(snapshot, "registry")
    if wanted.registry is None or not found:
        return
    address = text(found, "address") or wanted.registry
    error = text(found, "error") or "no answer"
    needed = _needed(snapshot, wanted)
    level: Level = "fail" if needed else "warn"
    why = (
        "Images come from there only."
        if needed
        else "All images are on the node; the next change of one needs it."
    )
    if found.get("auth") == "refused":
        yield finding(
            level,
            "registry.auth",
            f"{address}: {error}",
            why,
            "Correct container_host_registry_username and container_host_registry_password.",
        )
    elif text(found, "tls") not in (None, "ok"):
        yield finding(
            level,
            "registry.untrusted",
            f"{address}: {error}",
            why,
            "Set container_host_registry_ca to the certificate authority that signed the registry's "
            "certificate; its "
            "name must be the one in container_host_registry_address.",
        )
    elif found.get("reachable") is False:
        yield finding(
            level,
            "registry.unreachable",
            f"{address}: {error}",
            why,
            f"Start the registry; check from the node: curl -v https://{address}/v2/ (name, route, "
            "firewall).",
        )
    elif text(found, "error"):
        yield finding(
            level,
            "registry.answer",
            f"{address}: {error}",
            why,
            "Check container_host_registry_address: host and port of a registry that speaks the version 2 "
            "API by TLS.",
        )


def _needed(snapshot: Snapshot, wanted: Wanted) -> bool:
    """A node that holds every image that it runs, or gets them from a bundle, can do without a registry."""
    run = [image for image in wanted.images if image.name in wanted.image_users]
    return not wanted.image_bundle and any(not installed(snapshot, image.reference) for image in run)


def unprobed(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """A registry whose probe gave no answer at all."""
    gone = [row for row in rows(snapshot, "unseen") if at(row, "what") == "registry"]
    if wanted.registry and gone:
        yield finding(
            "fail" if _needed(snapshot, wanted) else "warn",
            "registry.unreachable",
            f"{wanted.registry}: {text(gone[0], 'why')}",
            "Images come from there only.",
            f"Check from the node: curl -v https://{wanted.registry}/v2/ (name, route, firewall).",
        )


def beyond_loopback(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Instances that listen to the network."""
    exposed = [f"{each.name} on {each.beyond_loopback}" for each in wanted.instances if each.beyond_loopback]
    if not exposed:
        return
    firewall = text(snapshot, "firewall", "firewalld")
    yield warn(
        "network.exposed",
        f"not only on loopback: {listed(exposed)}; firewalld is {firewall or 'not installed'}",
        "vLLM asks for a key on /v1 only, at best; /metrics, /health and others answer everybody.",
        "Leave host at 127.0.0.1 and let a gateway speak to the outside, or restrict the sources in the "
        "firewall.",
    )


CHECKS = (ports, registry, unprobed, beyond_loopback)
