"""The snapshot on a real node: quick, complete, and not to be stopped by what hangs."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.labs import Nodes
from vllm_node.lab.node import Spec
from vllm_node.paths import project_root

pytestmark = pytest.mark.node
NODE = "seen"


@pytest.fixture(scope="module")
def seen(nodes: Nodes) -> Iterator[Nodes]:
    """A node with eight GPU stand-ins."""
    nodes.make(Spec(NODE))
    yield nodes
    nodes.lab.remove(NODE)


def snapshot(nodes: Nodes, *words: str, time_limit_s: int = 8) -> dict[str, Any]:
    """What the module tells, called as an operator would call it."""
    arguments = f"time_limit_s={time_limit_s}"
    argv = ["ansible", NODE, "-i", "inventories/lab", "-m", "node_snapshot", "-a", arguments, *words]
    done = subprocess.run(
        argv,
        cwd=project_root(),
        env={**nodes.environment(), "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1", "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    result = json.loads(done.stdout)["plays"][0]["tasks"][0]["hosts"][NODE]
    assert "snapshot" in result, result
    found: dict[str, Any] = result["snapshot"]
    return found


def test_it_changes_nothing_not_even_podmans_storage(seen: Nodes) -> None:
    storage = "find /var/lib/containers"
    before, stored = seen.tree(NODE), seen.shell(NODE, storage)
    snapshot(seen)
    assert seen.tree(NODE) == before
    assert seen.shell(NODE, storage) == stored


def test_it_sees_the_node(seen: Nodes) -> None:
    found = snapshot(seen)
    assert found["schema"] == 1
    assert found["unseen"] == []
    assert found["cgroup"]["version"] == 2
    assert found["podman"]["version"].startswith("5.4.")
    assert len(found["gpu"]["devices"]) == 8
    assert found["gpu"]["nvswitches"] == 4
    assert found["gpu"]["driver"]["loaded"] == "570.86.15"
    assert found["took_s"] < 10  # generous: the machine may be busy


def test_a_hanging_nvidia_smi_is_left_behind_and_said(seen: Nodes) -> None:
    seen.shell(NODE, "touch /run/standin-nvidia/hang")
    try:
        started = time.monotonic()
        found = snapshot(seen, time_limit_s=3)
        took_s = time.monotonic() - started
    finally:
        seen.shell(NODE, "rm /run/standin-nvidia/hang")
    assert took_s < 30
    assert found["gpu"]["devices"] is None
    assert any(one["what"].startswith("gpu") and "3 s" in one["why"] for one in found["unseen"])
    assert found["podman"]["version"]


def test_without_root_it_says_what_it_could_not_see(seen: Nodes) -> None:
    seen.shell(NODE, "useradd --create-home visitor; cp -r /root/.ssh /home/visitor/; chown -R visitor /home/visitor/.ssh")
    try:
        found = snapshot(seen, "-e", "ansible_user=visitor")
    finally:
        seen.shell(NODE, "userdel --force --remove visitor")
    assert found["root"] is False
    assert found["os"]["id"] == "debian"
    assert len(found["gpu"]["devices"]) == 8
    assert found["unseen"] != []


def test_a_lost_gpu_is_said(seen: Nodes) -> None:
    seen.shell(NODE, "echo 3 > /run/standin-nvidia/lost")
    try:
        found = snapshot(seen)
    finally:
        seen.shell(NODE, "rm /run/standin-nvidia/lost")
    assert found["gpu"]["error"]
