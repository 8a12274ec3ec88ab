"""Who changes a node, in what kind of run: what the history of a node says of each generation."""

from __future__ import annotations

import getpass
import importlib.metadata
import socket
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FACT = "_generation_run"
"""Fact that carries the run's id from task to task, so that all that one run installs is one generation."""

# Where the verb has another name than its playbook.
_VERBS = {"site": "up"}


def run_id(variables: Mapping[str, Any]) -> str:
    """The id of this run on a host: the one that an earlier task chose, else a new one."""
    return str(variables.get(FACT) or uuid.uuid4().hex)


def described(run: str, playbooks: Sequence[str]) -> dict[str, str]:
    """`id`, `verb`, `who` and `toolkit` for the history, from the playbooks on Ansible's command line."""
    verb = Path(playbooks[0]).stem if playbooks else "a playbook"
    return {"id": run, "verb": _VERBS.get(verb, verb), "who": _who(), "toolkit": _toolkit()}


def _who() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        user = "an unnamed user"
    return f"{user} at {socket.gethostname()}"


def _toolkit() -> str:
    try:
        return importlib.metadata.version("vllm-node")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
