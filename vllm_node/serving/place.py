"""Where an instance runs, as far as its flags depend on it: which vLLM, and on which GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_node.serving.defaults import OLDEST, Gpu, Tier, tier_of
from vllm_node.serving.flags.known import NEWEST, Version, version_of, written

_CPU_BUILD = re.compile(r"(?:^|[^a-z0-9])cpu(?:$|[^a-z0-9])")
_GIB = 1 << 30


@dataclass(frozen=True)
class Place:
    """`version` and `gpu` are None where nobody tells them; `cpu` is True for an instance that uses no GPU."""

    tag: str | None = None
    version: Version | None = None
    gpu: Gpu | None = None
    cpu: bool = False

    @property
    def tier(self) -> Tier | None:
        """What vLLM's defaults go by; None where it is not known."""
        if self.version is None:
            return None
        if self.cpu:
            return "cpu"
        return tier_of(self.gpu, self.version) if self.gpu else None

    @property
    def told(self) -> tuple[str, str]:
        """The version and the GPU for people."""
        known = self.version is not None
        version = f"vLLM {written(self.version)} (tag {self.tag})" if known else f"a vLLM whose tag is {self.tag}"
        if self.cpu:
            return version, "on the CPU"
        if self.gpu is None:
            return version, "on a GPU that is not known"
        size = self.gpu.memory_bytes
        memory = f"{size / _GIB:.1f} GiB" if size is not None else "memory not known"
        return version, f"on {self.gpu.name or 'a GPU'} ({memory})"

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is not known, and what follows from that."""
        found = []
        if self.version is None:
            found.append(
                f"The tag {self.tag!r} of the image lock tells no version of vLLM that is known, from "
                f"{written(OLDEST)} on. Nothing is assumed of it: no profile is applied, and no defaults are listed."
            )
        elif self.version[:2] > NEWEST:
            found.append(
                f"vLLM {written(self.version)} is newer than {written(NEWEST)}, the newest that was looked at; it is "
                "taken to do as that one."
            )
        if self.version is not None and self.tier is None:
            found.append(
                "The GPU is not known, so nothing is written that depends on its size. A bring-up reads it from the "
                "node; without a node, set vllm_gpu_name and vllm_gpu_memory_gib."
            )
        return tuple(found)


def place_of(
    entry: Mapping[str, Any],
    lock: Mapping[str, Any] | None,
    snapshot: Mapping[str, Any] | None = None,
    declared: Gpu | None = None,
) -> Place:
    """Where an entry of `vllm_instances` runs.

    lock: `images_lock`. snapshot: of `node_snapshot`, where there is one. declared: what the inventory says of the
    node's GPUs; it wins over the snapshot, so that a unit is the same with and without one.
    """
    image = (lock or {}).get(str(entry.get("image") or "vllm"))
    tag = image.get("tag") if isinstance(image, Mapping) else None
    version = version_of(tag) if isinstance(tag, str) else None
    names = entry.get("gpus")
    names = [str(name) for name in names] if isinstance(names, list | tuple) else []
    cpu = not names or (isinstance(tag, str) and _CPU_BUILD.search(tag.lower()) is not None)
    return Place(
        tag=tag if isinstance(tag, str) else None,
        version=version if version is not None and version >= OLDEST else None,
        gpu=None if cpu else declared or gpu_of(names, snapshot or {}),
        cpu=cpu,
    )


def declared_gpu(name: object, memory_gib: object) -> Gpu | None:
    """A GPU out of `vllm_gpu_name` and `vllm_gpu_memory_gib`; None where the second is not set."""
    try:
        size = float(str(memory_gib or 0))
    except ValueError:
        return None
    return Gpu(str(name) if name else None, round(size * _GIB)) if size > 0 else None


def gpu_of(names: Iterable[str], snapshot: Mapping[str, Any]) -> Gpu | None:
    """The smallest of the devices that are asked for by their CDI names: its memory is what all of them have."""
    # Not above: that package begins with its checks, which ask for the flags of instances.
    from vllm_node.preflight.devices import aliases, used

    known = aliases(snapshot)
    devices = used(known, names) if known else set()
    found = [_device(snapshot, index, mig) for index, mig in devices]
    sizes = [each for each in found if each is not None and (each.memory_bytes or "gb10" in (each.name or "").lower())]
    return min(sizes, key=lambda each: each.memory_bytes or 0, default=None)


def _device(snapshot: Mapping[str, Any], index: int, mig: int | None) -> Gpu | None:
    from vllm_node.preflight.reading import rows

    for gpu in rows(snapshot, "gpu", "devices"):
        if gpu.get("index") != index:
            continue
        if mig is None:
            return _gpu(gpu, gpu)
        part = next((one for one in rows(gpu, "mig") if one.get("index") == mig), None)
        return _gpu(gpu, part) if part is not None else None
    return None


def _gpu(gpu: Mapping[str, Any], holder: Mapping[str, Any]) -> Gpu:
    size = holder.get("memory_total_bytes")
    name = gpu.get("name")
    return Gpu(name if isinstance(name, str) else None, size if isinstance(size, int) else None)
