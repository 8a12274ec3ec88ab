"""A plan for a folder on this machine, without a node."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_node.fit import machine, settings, shape
from vllm_node.fit.plan import Plan, make
from vllm_node.fit.reckoning import Case
from vllm_node.models.shared import shared
from vllm_node.serving.flags.known import Version

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(G|GB|GiB|M|MB|MiB)?", re.IGNORECASE)


def memory_bytes(words: str) -> int:
    """Bytes of "80GiB", "80G", "81559MiB"; a bare number is GiB. GB and GiB mean the same, as in the names of GPUs.

    Raises:
        ValueError: it is no size, or none that a GPU has.
    """
    match = _SIZE.fullmatch(words.strip())
    if not match:
        raise ValueError(f"{words!r} is no size of memory such as 80GiB or 81559MiB")
    found = int(float(match.group(1)) * (1 << (20 if (match.group(2) or "g")[0] in "mM" else 30)))
    if not 1 << 30 <= found <= 4 << 40:
        raise ValueError(f"{words!r} is not the memory of a GPU")
    return found


def plan_folder(
    folder: Path,
    args: Mapping[str, Any] | None = None,
    env: Mapping[str, Any] | None = None,
    *,
    gpu_bytes: float | None = None,
    gpus: int = 1,
    node_bytes: float | None = None,
    version: Version | None = None,
) -> Plan:
    """The plan of a model's folder on this machine. `gpu_bytes` None: the CPU build, on a node of `node_bytes`.

    Raises:
        ValueError: a setting that is no number, or a folder whose config.json does not tell the model's shape.
    """
    found = shared("snapshot_model").inspect(folder.name, str(folder))
    if found["exists"] is False:
        raise ValueError(f"{folder} does not exist")
    try:
        model = shape.read(found["config"])
    except shape.ShapeError as error:
        why = "; ".join(found["problems"])
        raise ValueError(f"{folder}: {error}{f' ({why})' if why else ''}") from error
    place = (
        machine.Machine((), memory_bytes=node_bytes) if gpu_bytes is None else machine.alike(gpu_bytes, gpus)
    )
    case = Case(model, settings.read(args or {}, env), place, found["weights"], found["bytes"], version)
    return make(folder.name, case)
