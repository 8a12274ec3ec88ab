"""GPUs that several instances use, under whichever of their names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any

from vllm_node.preflight.devices import aliases, used
from vllm_node.preflight.findings import Finding, fail, warn
from vllm_node.preflight.reading import Snapshot, at, listed, number, rows
from vllm_node.preflight.wanted import Instance, Wanted
from vllm_node.serving.defaults import memory_share
from vllm_node.serving.site import settings_of

# Beside its share each instance needs room for the context of CUDA and its graphs.
_MOST_SHARED = 0.95
_CLOSED_MODES = ("Exclusive_Process", "Prohibited")


def shares(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Shares of one GPU's memory that do not add up, and shares that are measured while others load."""
    told: set[tuple[str, ...]] = set()
    for device, users in _shared(snapshot, wanted):
        names = tuple(each.name for each in users)
        taken = [_share(each, wanted, snapshot) for each in users]
        together = round(sum(share for share, _ in taken), 3)
        both = listed(f"{name} ({share:g}{of})" for name, (share, of) in zip(names, taken, strict=True))
        if names in told:
            continue
        if together > _MOST_SHARED:
            told.add(names)
            yield fail(
                "gpu.shared",
                f"instances {both} use {_told(device)} together: {together:g} of its memory",
                "A share is one of the whole GPU, whatever others took of it: who comes later finds too little free "
                "memory and ends.",
                "Give each instance GPUs of its own, split a GPU into MIG devices, or set gpu-memory-utilization in "
                f"args of each so that they add up to {_MOST_SHARED:g} at most: each one needs a little besides.",
            )
        elif not all(each.has_arg("kv-cache-memory-bytes") for each in users):
            told.add(names)
            yield warn(
                "gpu.shared_start",
                f"instances {both} start together on {_told(device)}, and not all have kv-cache-memory-bytes",
                "vLLM measures what is left for its KV cache, and takes what others take at that time for its own: the "
                "cache comes out smaller at one start than at another, or vLLM ends.",
                "Set kv-cache-memory-bytes in args of each (vLLM 0.10.2 and later), which is then not measured.",
            )


def split(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """A whole GPU for one instance, and a part of it for another."""
    known = aliases(snapshot) or {}
    for first, second in combinations(wanted.gpu_instances, 2):
        pairs = [
            (one, two)
            for one in used(known, first.gpus)
            for two in used(known, second.gpus)
            if one[0] == two[0] and (one[1] is None) != (two[1] is None)
        ]
        if pairs:
            yield fail(
                "gpu.split",
                f"instances {first.name} and {second.name} both use "
                f"{listed(sorted({f'GPU {one[0]}' for one, _ in pairs}))}, one as a whole and the other in parts",
                "A GPU that is split into MIG devices cannot be used as a whole: one of them does not start.",
                "Give each instance GPUs or MIG devices of its own.",
            )


def exclusive(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """GPUs that let one process in, and are to be shared."""
    modes = {number(row, "index"): at(row, "compute_mode") for row in rows(snapshot, "gpu", "devices")}
    for device, users in _shared(snapshot, wanted):
        mode = modes.get(device[0]) if isinstance(device, tuple) else None
        if mode in _CLOSED_MODES:
            yield fail(
                "gpu.exclusive",
                f"instances {listed(each.name for each in users)} share {_told(device)}, whose compute mode is {mode}",
                "The driver lets one process in; the others end with an error of CUDA.",
                f"Run nvidia-smi -i {device[0]} -c DEFAULT on the node, or give each instance GPUs of its own.",
            )


def _shared(snapshot: Snapshot, wanted: Wanted) -> list[tuple[Any, list[Instance]]]:
    """Devices that more than one instance uses; names, where the devices are not known."""
    known = aliases(snapshot)
    every = {gpu for each in wanted.gpu_instances for gpu in each.gpus}
    users: dict[Any, list[Instance]] = {}
    for each in wanted.gpu_instances:
        named = every if "all" in each.gpus else each.gpus
        found: Iterable[Any] = used(known, each.gpus) if known else set(named)
        for device in found:
            users.setdefault(device, []).append(each)
    return sorted(((device, each) for device, each in users.items() if len(each) > 1), key=lambda pair: str(pair[0]))


def _told(device: Any) -> str:
    if isinstance(device, str):
        return "all GPUs" if device == "all" else f"GPU {device}"
    gpu, mig = device
    return f"GPU {gpu}" if mig is None else f"MIG device {gpu}:{mig}"


def _share(instance: Instance, wanted: Wanted, snapshot: Snapshot) -> tuple[float, str]:
    """Share of each of its GPUs that an instance takes, and a word on where that comes from."""
    found = settings_of(instance, wanted, snapshot)
    try:
        if instance.has_arg("gpu-memory-utilization"):
            return float(found.value("gpu-memory-utilization")), ""
    except (TypeError, ValueError):
        pass  # its own finding tells that it is no number
    return memory_share(found.place.version), ", vLLM's default"


CHECKS = (shares, split, exclusive)
