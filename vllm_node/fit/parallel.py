"""Which tensor-parallel sizes a model can be cut into."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_node.fit.settings import Settings
from vllm_node.fit.shape import Shape


@dataclass(frozen=True)
class Size:
    """A number of GPUs, and why it cannot be; None when it can."""

    tp: int
    why_not: str | None


def why_not(shape: Shape, tp: int, settings: Settings | None = None) -> str | None:
    """Why vLLM cannot cut this model into so many parts; None when it can."""
    if tp == 1:
        return None
    if shape.heads % tp:
        return f"{shape.heads} attention heads are not divisible by {tp}"
    if not shape.latent and shape.kv_heads % tp and tp % shape.kv_heads:
        return f"{shape.kv_heads} KV heads neither divide {tp} nor are divided by it"
    if shape.intermediate and shape.intermediate % tp:
        return f"intermediate_size {shape.intermediate} is not divisible by {tp}"
    experts_are_cut = shape.experts and not (settings and settings.expert_parallel)
    if shape.experts and experts_are_cut and shape.experts.intermediate % tp:
        return f"moe_intermediate_size {shape.experts.intermediate} is not divisible by {tp}"
    if shape.gdn and (shape.gdn[0] % tp or shape.gdn[1] % tp):
        return f"{shape.gdn[0]} and {shape.gdn[1]} heads of linear attention are not divisible by {tp}"
    return None


def sizes(shape: Shape, most: int, settings: Settings | None = None) -> list[Size]:
    """Each size up to `most` GPUs. The vocabulary does not matter: vLLM pads it."""
    return [Size(tp, why_not(shape, tp, settings)) for tp in range(1, most + 1)]


def possible(shape: Shape, most: int, settings: Settings | None = None) -> list[int]:
    """The sizes that are possible."""
    return [size.tp for size in sizes(shape, most, settings) if size.why_not is None]
