"""A control group of its own for each node.

systemd-nspawn makes its node's groups below the group that it is started in. Started in the same one, two nodes would
share `system.slice/vllm-….service`, and each would see, and stop, the other's processes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


def make(machine: str) -> list[Path]:
    """Make the node's group in each hierarchy that systemd uses; returns the folders."""
    folders = [root / f"vllm-node-{machine}" for root in _hierarchies()]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    return folders


def remove(machine: str, limit_s: float = 5) -> None:
    """Remove the node's groups, waiting for its last processes; one that stays is no harm and is used again."""
    for root in _hierarchies():
        end = time.monotonic() + limit_s
        while (root / f"vllm-node-{machine}").exists() and time.monotonic() < end:
            if not _remove_tree(root / f"vllm-node-{machine}"):
                time.sleep(0.05)


def _remove_tree(group: Path) -> bool:
    for folder, _, _ in os.walk(group, topdown=False):
        try:
            Path(folder).rmdir()
        except OSError:
            return False  # a process is still on its way out
    return True


def _hierarchies() -> list[Path]:
    """Mount points of cgroup v2 and of systemd's own v1 hierarchy, whichever this machine has."""
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, target, kind, options, *_ = line.split()
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options.split(",")):
            found.append(Path(target))
    return found
