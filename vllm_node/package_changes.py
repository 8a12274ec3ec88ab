"""What packages have changed on a node, so that a certificate can tell it from what was left over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_node.difference import difference

# What a package brings shows in these areas of a snapshot; in the others live things move by themselves.
_AREAS = ("unit files", "services", "files", "sysctl", "selinux", "cdi specs")


def brought(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, str]:
    """What the packages that were installed between two snapshots have changed: `area:item` → its state now."""
    found = difference(before, after).left_over
    return {f"{entry.area}:{entry.item}": entry.now for entry in found if entry.area in _AREAS and entry.item != "*"}
