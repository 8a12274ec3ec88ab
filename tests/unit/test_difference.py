"""The difference of two snapshots: empty for an untouched node, and never silent about what is left."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.factories import GIB, changed, disk, port, snapshot
from vllm_node.difference import UNSEEN, difference

LEFT_OVER: list[tuple[str, str, Any]] = [
    ("unit files", "units/installed", ["/etc/systemd/system/gpu-cdi-ready.service"]),
    ("units", "units/toolkit", [{"name": "vllm-a.service", "load": "loaded", "active": "failed"}]),
    ("services", "units/watched", {"nvidia-persistenced.service": {"active": "active"}}),
    ("failed units", "units/failed", ["vllm-a.service"]),
    ("files", "files", {"/etc/hosts": "sha256:00 0644 0 0", "/etc/cdi/x.yaml": "sha256:11 0644 0 0"}),
    ("files", "files", {"/etc/hosts": "sha256:99 0644 0 0"}),
    ("files", "files", {}),
    ("containers", "containers", [{"id": "1", "name": "vllm-a", "image": "x", "state": "exited"}]),
    ("images", "images", [{"id": "1", "digests": ["r/x@sha256:1"], "names": []}]),
    ("volumes", "volumes", [{"name": "prometheus-data", "labels": {}}]),
    ("networks", "networks", [{"name": "podman", "driver": "bridge"}, {"name": "x", "driver": "bridge"}]),
    ("secrets", "secrets", ["grafana-admin"]),
    ("ports", "ports", [port(22, "sshd", "sshd.service", "0.0.0.0"), port(8000, "vllm", None)]),
    ("links", "links", ["eth0", "lo", "podman0"]),
    ("firewall", "firewall/ruleset_sha256", "bb"),
    ("sysctl", "sysctl/net.ipv4.ip_forward", "1"),
    ("swap", "swap", [{"name": "/swapfile", "type": "file", "size_bytes": GIB}]),
    ("selinux", "selinux/booleans/container_use_xserver_devices", True),
    ("gpu processes", "gpu/processes", [{"pid": 1, "name": "VLLM::EngineCore", "gpu_uuid": "GPU-1"}]),
    ("cdi specs", "cdi/specs", []),
]


@pytest.mark.parametrize(("area", "path", "value"), LEFT_OVER)
def test_what_is_left_is_told_in_both_directions(area: str, path: str, value: Any) -> None:
    before, after = snapshot(), changed(snapshot(), path, value)
    for first, second in ((before, after), (after, before)):
        found = difference(first, second)
        assert {entry.area for entry in found.left_over} == {area}
        assert not found.clean


def test_an_untouched_node_differs_in_nothing() -> None:
    after = snapshot()
    moved = {
        "taken_at": 1_800_009_999.0,
        "took_s": 0.4,
        "time": {"epoch": 1.0, "synchronized": True},
        "memory/available_bytes": 1,
        "disks": [disk("/", 1)],
        "models": [],
        "registry": None,
        "as_found": True,
        "ports/0/pid": 4711,
        "gpu/devices/0/memory_used_bytes": 9,
    }
    for path, value in moved.items():
        after = changed(after, path, value)
    found = difference(snapshot(), after)
    assert found.clean
    assert found.kept == ()


def test_order_does_not_matter() -> None:
    both = [port(22, "sshd", None), port(80, "httpd", None)]
    before, after = changed(snapshot(), "ports", both), changed(snapshot(), "ports", both[::-1])
    assert difference(before, after).clean


def test_a_clients_udp_socket_is_no_left_over() -> None:
    client = {**port(45_000, "chronyd", None), "protocol": "udp"}
    server = {**port(323, "chronyd", None), "protocol": "udp"}
    assert difference(snapshot(), changed(snapshot(), "ports", [*snapshot()["ports"], client])).clean
    assert not difference(snapshot(), changed(snapshot(), "ports", [*snapshot()["ports"], server])).clean


def test_an_own_tcp_port_counts_even_when_it_is_high() -> None:
    high = port(45_000, "python3", None)
    assert not difference(snapshot(), changed(snapshot(), "ports", [*snapshot()["ports"], high])).clean


def test_what_is_kept_on_purpose_is_shown_apart() -> None:
    after = changed(snapshot(), "volumes", [{"name": "prometheus-data"}, {"name": "grafana-data"}])
    found = difference(snapshot(), after, kept=["volumes:prometheus-*"])
    assert [entry.item for entry in found.kept] == ["prometheus-data"]
    assert [entry.item for entry in found.left_over] == ["grafana-data"]
    assert found.as_dict()["clean"] is False


@pytest.mark.parametrize("side", ["before", "after", "both"])
def test_what_could_not_be_seen_is_no_clean_node(side: str) -> None:
    blind = changed(snapshot(), "ports", None)
    before = blind if side in ("before", "both") else snapshot()
    after = blind if side in ("after", "both") else snapshot()
    (entry,) = difference(before, after).left_over
    assert entry.area == "ports"
    assert UNSEEN in (entry.as_found, entry.now)


def test_a_node_that_never_shows_its_firewall_can_be_clean() -> None:
    blind = changed(snapshot(), "firewall/ruleset_sha256", None)
    assert difference(blind, blind).clean
    assert not difference(snapshot(), blind).clean


def test_a_second_process_of_one_name_is_noticed() -> None:
    one = [{"pid": 1, "name": "python3", "gpu_uuid": "GPU-1"}]
    before = changed(snapshot(), "gpu/processes", one)
    after = changed(snapshot(), "gpu/processes", [{**one[0], "pid": 7}, {**one[0], "pid": 8}])
    assert difference(before, changed(snapshot(), "gpu/processes", [{**one[0], "pid": 9}])).clean
    assert not difference(before, after).clean
