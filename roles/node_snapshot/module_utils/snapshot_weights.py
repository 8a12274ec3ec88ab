"""Bytes of a model's weights, by what tensor parallelism does with them and by type: read from safetensors headers."""

from __future__ import annotations

import re
from typing import Any

# The order matters: the first that fits names the kind. Names are those that public checkpoints use.
_KINDS = (
    ("vision", re.compile(r"(^|\.)(vision|visual|audio|multi_modal|mm_)[a-z_]*\.|(^|\.)(image|patch)_\w+\.")),
    ("mtp", re.compile(r"(^|\.)mtp(_layers)?\.")),
    ("head", re.compile(r"(^|\.)(lm_head|embed_out|output_layer)\.")),
    ("embedding", re.compile(r"(^|\.)(embed_tokens|wte|word_embeddings|tok_embeddings|embed_in)\.")),
    ("expert", re.compile(r"\.experts\.")),
    # A gate that chooses experts; an MLP's own gate is called gate_proj.
    ("router", re.compile(r"\.(gate|router|shared_expert_gate)(\.|$)")),
    ("latent", re.compile(r"\.(kv_a_proj_with_mqa|kv_a_proj|q_a_proj|fused_qkv_a_proj|indexer)\.")),
    ("latent_up", re.compile(r"\.kv_b_proj\.")),
    ("kv", re.compile(r"\.(k_proj|v_proj|wk|wv)\.")),
    ("qkv", re.compile(r"\.(qkv_proj|query_key_value|Wqkv|c_attn|qkv)\.")),
)
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")


class Tally:
    """Adds up tensors, file by file. `layers`: how many the model has; those beyond are for predicting ahead."""

    def __init__(self, layers: int | None) -> None:
        self._layers = layers
        self._kinds: dict[str, dict[str, int]] = {}
        self._tensors = 0

    def add(self, tensors: dict[str, Any]) -> None:
        """Tensors of one header, name → {dtype, shape, data_offsets}."""
        for name, entry in tensors.items():
            begin, end = entry["data_offsets"]
            kinds = self._kinds.setdefault(self._kind(name, entry.get("shape") or []), {})
            dtype = str(entry.get("dtype"))[:16]
            kinds[dtype] = kinds.get(dtype, 0) + int(end) - int(begin)
            self._tensors += 1

    def _kind(self, name: str, shape: list[int]) -> str:
        kind = next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")
        if kind in ("vision", "mtp"):
            return kind
        layer = _LAYER.search(name)
        if layer and self._layers is not None and int(layer.group(1)) >= self._layers:
            return "mtp"
        # Norms, biases and scales of a whole tensor: every GPU holds them.
        return "flat" if len(shape) < 2 and kind != "expert" else kind

    def result(self) -> dict[str, Any] | None:
        """{bytes, tensors, by_dtype, by_kind: {kind: {dtype: bytes}}}; None when there was no tensor."""
        if not self._tensors:
            return None
        by_dtype: dict[str, int] = {}
        for kinds in self._kinds.values():
            for dtype, size in kinds.items():
                by_dtype[dtype] = by_dtype.get(dtype, 0) + size
        return {
            "bytes": sum(by_dtype.values()),
            "tensors": self._tensors,
            "by_dtype": by_dtype,
            "by_kind": self._kinds,
        }
