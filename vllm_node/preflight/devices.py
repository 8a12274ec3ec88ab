"""GPU names: which physical device an instance's `gpus` entry means.

A GPU can be asked for by index, by UUID, as "all", and a MIG device as GPU:MIG or by UUID. The same device
under two names is still one device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vllm_node.preflight.reading import Snapshot, at, rows

# (GPU index, MIG index or None for the whole GPU)
Device = tuple[int, int | None]


def aliases(snapshot: Snapshot) -> dict[str, Device] | None:
    """Every name of every device, None when the node's devices are not known."""
    if at(snapshot, "gpu", "devices") is None:
        return None
    names: dict[str, Device] = {}
    for gpu in rows(snapshot, "gpu", "devices"):
        index = gpu.get("index")
        if not isinstance(index, int):
            continue
        _name(names, (index, None), str(index), gpu.get("uuid"))
        for mig in rows(gpu, "mig"):
            number = mig.get("index")
            if isinstance(number, int):
                _name(names, (index, number), f"{index}:{number}", mig.get("uuid"))
    return names


def _name(names: dict[str, Device], device: Device, *known: Any) -> None:
    names.update({name: device for name in known if isinstance(name, str)})


def meant(names: dict[str, Device], gpus: Iterable[str]) -> set[Device]:
    """Devices that a list of names stands for; names of no device stand for nothing."""
    found: set[Device] = set()
    for gpu in gpus:
        if gpu == "all":
            found.update(names.values())
        elif gpu in names:
            found.add(names[gpu])
    return found


def used(names: dict[str, Device], gpus: Iterable[str]) -> set[Device]:
    """The same, less whole GPUs that are split: of these `all` means the parts."""
    asked = tuple(gpus)
    found = meant(names, asked)
    parted = {gpu for gpu, mig in found if mig is not None}
    return {(gpu, mig) for gpu, mig in found if not ("all" in asked and mig is None and gpu in parted)}
