"""The flags of an instance, for the role `vllm`: `vllm_node.serving` decides them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def vllm_settings(
    instance: Mapping[str, Any],
    *,
    lock: Mapping[str, Any],
    drain_s: int,
    snapshot: Mapping[str, Any] | None = None,
    gpu_name: str = "",
    gpu_memory_gib: float = 0,
) -> dict[str, Any]:
    """Flags of an entry of `vllm_instances` as `vllm_args` takes them."""
    # Ansible loads this file in nearly every task's process, and one of them needs what is behind it.
    from vllm_node.serving.effective import effective
    from vllm_node.serving.place import declared_gpu, place_of

    place = place_of(instance, lock, snapshot, declared_gpu(gpu_name, gpu_memory_gib))
    return effective(instance, place, drain_s).args


class FilterModule:
    """Names that the role uses."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → function."""
        return {"vllm_settings": vllm_settings}
