"""The code of the snapshot, as its module sees it: `ansible.module_utils.snapshot_*`."""

from __future__ import annotations

from typing import Any

from tests.unit.role_code import ROOT, load, shared_code

__all__ = ["ROOT", "SHARED_SMI", "module", "utils"]

SHARED_SMI = ROOT.parent / "shared" / "data" / "nvidia-smi"


def utils(name: str) -> Any:
    """A file of `roles/node_snapshot/module_utils`."""
    return shared_code(name)


def module() -> Any:
    """The module node_snapshot itself."""
    return load("roles/node_snapshot/library/node_snapshot.py")
