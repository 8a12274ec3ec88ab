"""What `vllm-node explain` says of an instance that runs on a lab node."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.labs import Nodes


@dataclass(frozen=True)
class Explained:
    """`settings` and `origins` by flag; `reported` are the values that vLLM told of a flag, place → value."""

    settings: Mapping[str, Any]
    origins: Mapping[str, str]
    reported: Mapping[str, Mapping[str, Any]]
    differences: list[Mapping[str, Any]]
    observed: int


def explained(nodes: Nodes, host: str, instance: str, variables: Mapping[str, Any] | None = None) -> Explained:
    """Ask the node what runs, and hold it against the lab's inventory with `variables` over it.

    Fails when vLLM was not seen at all: no difference would then be a difference.
    """
    argv = [sys.executable, "-m", "vllm_node", "explain", host, instance, "-i", "inventories/lab", "--json"]
    done = nodes.program(*argv, *(["-e", json.dumps(variables)] if variables else []))
    assert done.returncode == 0, done.stdout + done.stderr
    (told,) = json.loads(done.stdout)["hosts"][host]["explanations"]
    running = told["running"]
    assert running is not None, told["silent"]
    return Explained(
        settings={row["flag"]: row["value"] for row in told["settings"]},
        origins={row["flag"]: row["origin"] for row in told["settings"]},
        reported=running["reported"],
        differences=running["differences"],
        observed=running["observed"],
    )
