"""Where things lie on the control host: the project's playbooks, the user's caches and state."""

from __future__ import annotations

import os
from pathlib import Path

APP = "vllm-node"


def project_root() -> Path:
    """Folder that holds `playbooks/`, `roles/` and `ansible.cfg`: a checkout, or the copy inside the wheel."""
    package = Path(__file__).resolve().parent
    checkout = package.parent
    return checkout if (checkout / "playbooks").is_dir() else package / "project"


def cache_dir() -> Path:
    """Folder for what is slow to make and can be made again (XDG_CACHE_HOME)."""
    return _xdg("XDG_CACHE_HOME", ".cache") / APP


def state_dir() -> Path:
    """Folder for what describes things that exist now, such as running labs (XDG_STATE_HOME)."""
    return _xdg("XDG_STATE_HOME", ".local/state") / APP


def runs_dir(output: str = "") -> Path:
    """Folder of benchmarks, with a folder for each node below it; `output` is the role's `benchmark_output`."""
    return Path(output) if output else state_dir() / "bench"


def _xdg(variable: str, default: str) -> Path:
    value = os.environ.get(variable)
    return Path(value) if value else Path.home() / default
