"""The GPUs that an instance is given: their memory, whether they are parts of GPUs, and how they reach each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vllm_node.fit.figures import Span, exactly
from vllm_node.preflight.devices import Device, aliases, used
from vllm_node.preflight.reading import Snapshot, number, rows, text
from vllm_node.preflight.wanted import Instance

Fabric = Literal["single", "nvswitch", "nvlink", "none"]


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a MIG device of one. Bytes; None where the driver does not tell."""

    name: str
    total_bytes: float | None
    reserved_bytes: float | None = None
    mig: bool = False
    product: str | None = None

    @property
    def usable(self) -> Span | None:
        """What a program sees as the whole memory: less than the driver's total."""
        if self.total_bytes is None:
            return None
        if self.reserved_bytes is not None:
            return exactly(self.total_bytes - self.reserved_bytes)
        # Without the driver's word on what it keeps: between nothing and two per cent.
        return Span(self.total_bytes * 0.98, self.total_bytes * 0.992, self.total_bytes)


@dataclass(frozen=True)
class Machine:
    """Where an instance runs.

    gpus: those it is given; empty for the CPU build, None where the node's devices are not known. present: whole GPUs
    that the node has. fabric: how those of the instance reach each other, None where that is not known. others: shares
    of memory that other instances take on the same GPUs, by name. memory_bytes: of the node.
    """

    gpus: tuple[Gpu, ...] | None
    present: int | None = None
    fabric: Fabric | None = None
    links: str = ""
    others: tuple[tuple[str, float], ...] = ()
    memory_bytes: float | None = None

    @property
    def cpu(self) -> bool:
        """Whether vLLM runs on the CPU there."""
        return self.gpus == ()

    @property
    def smallest(self) -> Gpu | None:
        """The GPU with the least memory: the others have to do with as much."""
        known = [gpu for gpu in self.gpus or () if gpu.usable is not None]
        return min(known, key=lambda gpu: gpu.usable.best if gpu.usable else 0.0) if known else None

    @property
    def in_parts(self) -> bool:
        """Whether a MIG device is among the GPUs."""
        return any(gpu.mig for gpu in self.gpus or ())


def of_instance(snapshot: Snapshot, instance: Instance, others: Sequence[tuple[Instance, float]] = ()) -> Machine:
    """The machine of one instance. `others`: further instances of the node with the share of memory that each takes."""
    memory = number(snapshot, "memory", "total_bytes")
    # The variable is the CPU build's own. In a lab such an instance is given a GPU all the same.
    if not instance.gpus or "VLLM_CPU_KVCACHE_SPACE" in instance.env:
        return Machine((), memory_bytes=memory)
    known = aliases(snapshot)
    if not known:
        return Machine(None, memory_bytes=memory)
    devices = used(known, instance.gpus)
    gpus = tuple(_gpu(snapshot, device) for device in sorted(devices, key=str))
    beside = tuple((other.name, share) for other, share in others if devices & used(known, other.gpus))
    fabric, links = _fabric(snapshot, sorted({index for index, _ in devices}))
    present = len(list(rows(snapshot, "gpu", "devices")))
    return Machine(gpus, present, fabric, links, beside, memory)


def alike(memory_bytes: float, count: int, product: str | None = None) -> Machine:
    """So many GPUs of one size on one fabric, for a plan without a node."""
    gpus = tuple(Gpu(str(index), memory_bytes, product=product) for index in range(count))
    return Machine(gpus, count, "single" if count == 1 else "nvlink", "taken for granted: there is no node to ask")


def _gpu(snapshot: Snapshot, device: Device) -> Gpu:
    index, mig = device
    row: Mapping[str, Any] = next(
        (row for row in rows(snapshot, "gpu", "devices") if number(row, "index") == index), {}
    )
    product = text(row, "name")
    if mig is not None:
        part = next((part for part in rows(row, "mig") if number(part, "index") == mig), {})
        return Gpu(f"{index}:{mig}", number(part, "memory_total_bytes"), 0.0, mig=True, product=product)
    return Gpu(
        str(index), number(row, "memory_total_bytes"), number(row, "memory_reserved_bytes"), product=product
    )


def _fabric(snapshot: Snapshot, indices: list[int]) -> tuple[Fabric | None, str]:
    if len(indices) < 2:
        return "single", "one GPU"
    pairs = snapshot.get("gpu", {}).get("links") if isinstance(snapshot.get("gpu"), Mapping) else None
    if isinstance(pairs, list):
        kinds = {
            f"{pair[0]} and {pair[1]}": str(pair[2])
            for pair in pairs
            if isinstance(pair, list) and len(pair) == 3 and {pair[0], pair[1]} <= set(indices)
        }
        apart = [f"{names} by {kind}" for names, kind in kinds.items() if not kind.startswith("NV")]
        if kinds:
            switches = number(snapshot, "gpu", "nvswitches")
            if apart:
                return "none", f"GPUs {', '.join(apart[:3])}{' and more' if len(apart) > 3 else ''}"
            return "nvswitch" if switches else "nvlink", "nvidia-smi topo -m"
    if number(snapshot, "gpu", "nvswitches"):
        return "nvswitch", "NVSwitches are there"
    return None, "nvidia-smi topo -m was not answered"
