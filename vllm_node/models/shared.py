"""Code that nodes and the control host share lies in the roles' `module_utils`, and is read from there by both."""

from __future__ import annotations

import importlib
from typing import Any

from vllm_node.paths import project_root

_ROLES = ("node_snapshot", "quadlet", "model_store")


def shared(name: str) -> Any:
    """The module `ansible.module_utils.NAME` of those roles, found as Ansible finds it for a node."""
    package: Any = importlib.import_module("ansible.module_utils")
    for role in _ROLES:
        place = str(project_root() / "roles" / role / "module_utils")
        if place not in package.__path__:
            package.__path__.append(place)
    return importlib.import_module(f"ansible.module_utils.{name}")
