"""Weights on one GPU: what tensor parallelism cuts, and what every GPU holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_node.fit.figures import NOTHING, Span, exactly
from vllm_node.fit.settings import Settings
from vllm_node.fit.shape import Shape

_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
# Shares by which 16-bit layers shrink when vLLM quantises them while it loads: best, most.
_ON_LOADING = {
    "fp8": (0.5, 0.53), "fp8_per_tensor": (0.5, 0.53), "fp8_per_block": (0.5, 0.53), "ptpc_fp8": (0.5, 0.53),
    "experts_int8": (0.5, 0.53), "bitsandbytes": (0.28, 0.34),
}  # fmt: skip
_KEPT = ("flat", "router", "head", "embedding", "vision")
_GRACE = 32 << 20


@dataclass(frozen=True)
class Weights:
    """`gpu`: bytes on the GPU that holds most; None where nothing tells them. `how` in words, `untold` beside it."""

    gpu: Span | None
    how: str
    untold: tuple[str, ...] = ()


def per_gpu(shape: Shape, counted: Mapping[str, Any] | None, files: float | None, settings: Settings) -> Weights:
    """Bytes on one GPU. `counted`: tensors, as the snapshot found them; `files`: bytes of the model's files."""
    kinds = (counted or {}).get("by_kind")
    if not isinstance(kinds, Mapping) or not kinds:
        if files is None:
            return Weights(None, "neither tensors nor files of the model are known", ("the size of the weights",))
        # Another format: the files are weights for the most part, and how they are cut is a guess.
        best = files / settings.tp / settings.pp
        rough = Span(best * 0.85, best, best * 1.15)
        return Weights(
            _offloaded(rough, settings),
            "size of the files, divided by the GPUs: there are no safetensors headers to read",
            ("which weights are cut and which are held by every GPU",),
        )
    untold: list[str] = []
    parts = {
        kind: _size(shape, settings, str(kind), sizes, untold)
        for kind, sizes in kinds.items()
        if isinstance(sizes, Mapping)
    }
    layered, ends = NOTHING, [NOTHING]
    for kind, size in parts.items():
        share = _share(shape, settings, str(kind))
        part = Span(size.low * share.low, size.best * share.best, size.high * share.high)
        if kind in ("head", "embedding"):
            ends.append(part)
        else:
            layered += part
    stage = layered.times(1 / settings.pp)
    # With pipeline stages the first holds the embedding and the last the head.
    edge = sum(ends, NOTHING) if settings.pp == 1 else max(ends, key=lambda one: one.best)
    low, high = (0.95, 1.08) if shape.quantization or settings.quantization else (0.99, 1.03)
    whole = stage + edge
    if shape.latent and shape.quantization and "latent_up" in kinds:
        # Kept once more, in 16 bits, so that attention works on the latent itself.
        count = sum(float(size) for size in kinds["latent_up"].values())
        whole += exactly(2 * count / settings.tp / settings.pp)
    found = Span(whole.low * low, whole.best, whole.high * high + _GRACE)
    how = "safetensors headers; layers, embedding and head divided by tensor-parallel-size, norms and routers not"
    return Weights(_offloaded(found, settings), how, tuple(dict.fromkeys(untold)))


def total(weights: Mapping[str, Any] | None) -> float | None:
    """Bytes of all tensors as they lie in the files."""
    value = (weights or {}).get("bytes")
    return float(value) if isinstance(value, int | float) else None


def _size(shape: Shape, settings: Settings, kind: str, sizes: Mapping[str, Any], untold: list[str]) -> Span:
    if kind == "mtp" or (kind == "head" and shape.tied) or (kind == "vision" and settings.text_only):
        return NOTHING  # not loaded
    found = 0.0
    for dtype, size in sizes.items():
        width = _BYTES.get(str(dtype))
        # Types of 16 bits and more take the type of the model, unless they are scales of a quantised one.
        plain = width is not None and not (shape.quantization and width > 2)
        found += float(size) * (_dtype_bytes(shape, settings) / width if plain and width else 1)
    if not settings.quantization or shape.quantization or kind in _KEPT:
        return exactly(found)
    if settings.quantization in _ON_LOADING:
        best, most = _ON_LOADING[settings.quantization]
        return Span(found * best, found * best, found * most)
    untold.append(f"what quantization {settings.quantization} makes of weights that are not quantised in their files")
    return Span(found * 0.25, found, found)


def _dtype_bytes(shape: Shape, settings: Settings) -> int:
    if settings.dtype is None:
        return shape.dtype_bytes
    return 4 if settings.dtype in ("float32", "float") else 2


def _share(shape: Shape, settings: Settings, kind: str) -> Span:
    """Share of a kind of tensors that one GPU holds."""
    tp, whole = settings.tp, exactly(1.0)
    if kind in ("flat", "router", "latent"):
        return whole
    kv = max(1, shape.kv_heads // tp) / shape.kv_heads
    if kind == "kv":
        return exactly(max(kv, 1 / tp))
    if kind == "qkv":
        ours = 2 * shape.kv_heads / (shape.heads + 2 * shape.kv_heads)
        return exactly((1 - ours) / tp + ours * max(kv, 1 / tp))
    if kind == "expert" and settings.expert_parallel:
        return exactly(1 / (tp * settings.dp))
    if kind == "vision":
        # Some encoders are cut, some are held whole by every GPU.
        return whole if settings.encoder_data_parallel else Span(1 / tp, 1 / tp, 1.0)
    return exactly(1 / tp)


def _offloaded(found: Span, settings: Settings) -> Span:
    """Less what cpu-offload-gb keeps in the node's memory."""
    off = settings.offload_bytes
    return Span(max(0.0, found.low - off), max(0.0, found.best - off), max(0.0, found.high - off))
