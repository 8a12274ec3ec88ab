"""The flags of an instance as preflight knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_node.serving.effective import Effective, effective
from vllm_node.serving.place import Place, declared_gpu, place_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_node.preflight.wanted import Instance, Wanted


def settings_of(instance: Instance, wanted: Wanted, snapshot: Mapping[str, Any]) -> Effective:
    """What the unit of an instance will hold."""
    return effective(_entry(instance), place(instance, wanted, snapshot))


def place(instance: Instance, wanted: Wanted, snapshot: Mapping[str, Any], *, declared: bool = True) -> Place:
    """Where it runs; with `declared` False only the snapshot is believed."""
    lock = {image.name: {"tag": image.tag} for image in wanted.images}
    told = declared_gpu(wanted.gpu_name, wanted.gpu_memory_gib) if declared else None
    return place_of(_entry(instance), lock, snapshot, told)


def _entry(instance: Instance) -> dict[str, Any]:
    return {
        "name": instance.name,
        "image": instance.image,
        "served_model_name": instance.served_model_name,
        "gpus": list(instance.gpus),
        "port": instance.port,
        "profile": instance.profile,
        "args": instance.args,
    }
