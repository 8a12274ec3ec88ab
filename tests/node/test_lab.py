"""Nodes of a lab are machines of their own, and leave nothing behind on this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.labs import Nodes
from vllm_node.lab.node import Spec

pytestmark = pytest.mark.node
SPECS = (Spec("left", gpu="none"), Spec("right", gpu="none", podman="5.8"))


def _traces(machine: str) -> list[str]:
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if f"/{machine}/" in line]
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/vllm-node-*-{machine}")]
    commands = [path.read_bytes().decode() for path in Path("/proc").glob("[0-9]*/cmdline") if _readable(path)]
    return mounts + groups + [command for command in commands if f"/nodes/{machine}/root" in command]


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


def test_two_nodes_do_not_see_each_others_processes_and_go_without_a_trace(nodes: Nodes) -> None:
    nodes.make(*SPECS)
    for spec in SPECS:
        nodes.shell(spec.name, "systemd-run --quiet --unit same sleep 300")
    seen = {
        spec.name: nodes.shell(spec.name, "cat /sys/fs/cgroup/system.slice/same.service/cgroup.procs").split()
        for spec in SPECS
    }
    assert all(len(pids) == 1 and pids != ["0"] for pids in seen.values()), seen
    nodes.shell("left", "systemctl stop same")
    assert nodes.host("right").service("same").is_running
    assert all(_traces(spec.name) for spec in SPECS)
    for spec in SPECS:
        nodes.lab.remove(spec.name)
        assert _traces(spec.name) == []


def test_an_address_is_not_used_again_at_once(nodes: Nodes) -> None:
    addresses = set()
    for _ in range(2):
        nodes.make(SPECS[0])
        member = nodes.lab.member("left")
        assert member is not None
        addresses.add(nodes.lab.place(member).address)
        nodes.lab.remove("left")
    assert len(addresses) == 2
