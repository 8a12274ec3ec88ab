"""Makes the code that runs on a node importable as its module sees it: `ansible.module_utils.snapshot_*`."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SHARED_SMI = ROOT.parent / "shared" / "data" / "nvidia-smi"


def utils(name: str) -> Any:
    """A file of `roles/node_snapshot/module_utils`."""
    package: Any = importlib.import_module("ansible.module_utils")
    place = str(ROOT / "roles/node_snapshot/module_utils")
    if place not in package.__path__:
        package.__path__.append(place)
    return importlib.import_module(f"ansible.module_utils.{name}")


def module() -> Any:
    """The module node_snapshot itself."""
    utils("snapshot_host")
    path = ROOT / "roles/node_snapshot/library/node_snapshot.py"
    spec = importlib.util.spec_from_file_location("node_snapshot", path)
    assert spec is not None
    assert spec.loader is not None
    found: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found
