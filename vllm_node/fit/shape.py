"""A model's shape out of its config.json: the numbers that memory depends on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_node.fit.layers import first, kinds_of, without

# Models that keep one compressed latent a token; others with kv_lora_rank expand it.
_LATENT = re.compile(
    r"deepseek_(v2|v3|v32|v4|mtp)|kimi_(k2|linear)|glm(5_next|_moe_dsa|4_moe_lite)|longcat_flash|pangu_ultra_moe|axk1"
    r"|bailing_hybrid|hy_v4|dots3"
)
_DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2, "half": 2, "float": 4}
# Of these forms of rotary positions the length in the config is already the scaled one; `default` has no factor.
_SCALED = re.compile(r"^(su|longrope|llama3|yarn|deepseek_yarn|deepseek_llama_scaling|default|mrope|proportional)$")
# vLLM's own choice for weights that are kept in 32 bits is a type of 16.
_ROUNDED = {"float32": "float16", "float": "float16"}


class ShapeError(ValueError):
    """A config that does not say what a plan needs; the text names what is missing."""


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: `count` in each layer, `chosen` for each token, of width `intermediate`."""

    count: int
    chosen: int
    intermediate: int


@dataclass(frozen=True)
class Shape:
    """Sizes in elements, lengths in tokens.

    kinds: layers by what they keep for each token: full, sliding (the last `window` tokens), chunked (one chunk),
    state (a fixed state for each request). latent: elements that MLA keeps a token and layer, None for other models.
    index: elements of the indexer of sparse MLA, 0 without one. state_bytes: of one state layer on one GPU, by TP.
    """

    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    kinds: Mapping[str, int]
    intermediate: int | None = None
    vocab: int | None = None
    context: int | None = None
    dtype: str = "bfloat16"
    window: int | None = None
    chunk: int | None = None
    latent: int | None = None
    index: int = 0
    global_head_dim: int | None = None
    global_kv_heads: int | None = None
    experts: Experts | None = None
    quantization: str | None = None
    kv_dtype: str | None = None
    tied: bool = False
    sees: bool = False
    gdn: tuple[int, int, int, int, int] | None = None
    untold: tuple[str, ...] = field(default=())

    @property
    def dtype_bytes(self) -> int:
        """Bytes of an element that is not quantised."""
        return _DTYPES.get(self.dtype, 2)


def read(config: Mapping[str, Any] | None) -> Shape:
    """The shape, out of a whole config.json or the part of it that a snapshot holds.

    Raises:
        ShapeError: layers, heads or hidden size are missing, or there is no config at all.
    """
    if not config:
        raise ShapeError("config.json of the model was not read")
    text: Mapping[str, Any] = next((config[name] for name in _PARTS if isinstance(config.get(name), Mapping)), {})
    if isinstance(text.get("text_config"), Mapping):
        text = text["text_config"]
    both = {**config, **text}
    layers = first(both, "num_hidden_layers", "n_layer", "num_layers")
    hidden = first(both, "hidden_size", "n_embd", "d_model")
    heads = first(both, "num_attention_heads", "n_head")
    missing = [
        name
        for name, value in (("num_hidden_layers", layers), ("hidden_size", hidden), ("num_attention_heads", heads))
        if not value
    ]
    if missing or not layers or not hidden or not heads:
        raise ShapeError(f"config.json does not tell {', '.join(missing)}")
    model_type = str(both.get("model_type") or "")
    kinds, untold = kinds_of(both, model_type, layers)
    latent = _latent(both, model_type)
    quantization = both.get("quantization_config")
    quantization = quantization if isinstance(quantization, Mapping) else {}
    if both.get("compress_ratios"):
        untold.append("the compressed attention of this model: its KV cache is not of a form that is known here")
    if both.get("num_kv_shared_layers"):
        shared = min(first(both, "num_kv_shared_layers") or 0, layers - 1)
        kinds = without(kinds, shared, layers)
        untold.append(f"which {shared} layers share the KV cache of others; they are taken to be of each kind alike")
    return Shape(
        model_type=model_type,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(both, heads),
        head_dim=first(both, "head_dim") or hidden // heads,
        kinds=kinds,
        intermediate=first(both, "intermediate_size", "ffn_hidden_size", "n_inner"),
        vocab=first(both, "vocab_size"),
        context=_context(both, model_type),
        dtype=_dtype(both),
        window=first(both, "sliding_window", "sliding_window_size"),
        chunk=first(both, "attention_chunk_size"),
        latent=latent,
        index=(first(both, "index_head_dim") or 0) if latent else 0,
        global_head_dim=first(both, "global_head_dim"),
        global_kv_heads=first(both, "num_global_key_value_heads"),
        experts=_experts(both),
        quantization=_method(quantization),
        kv_dtype=_kv_dtype(quantization),
        tied=bool(both.get("tie_word_embeddings", False)),
        sees=bool(config.get("vision_config") or config.get("audio_config")),
        gdn=_gdn(both),
        untold=tuple(untold),
    )


_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")


def _kv_heads(config: Mapping[str, Any], heads: int) -> int:
    # Falcon: one for all of them, unless it says that it has the newer form.
    if config.get("multi_query") is True and not config.get("new_decoder_architecture"):
        return 1
    return first(config, "num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv") or heads


def _latent(config: Mapping[str, Any], model_type: str) -> int | None:
    rank = first(config, "kv_lora_rank")
    if not rank or not _LATENT.match(model_type):
        return None
    return rank + (first(config, "qk_rope_head_dim") or 0)


def _context(config: Mapping[str, Any], model_type: str) -> int | None:
    """The length that vLLM takes when it is told none."""
    lengths = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length")
    known = [length for name in lengths if (length := first(config, name))]
    length = min(known, default=None)
    ropes = [config.get(name) for name in ("rope_parameters", "rope_scaling")]
    rope = next((one for one in ropes if isinstance(one, Mapping) and (one.get("rope_type") or one.get("type"))), {})
    kind, factor = rope.get("rope_type") or rope.get("type"), rope.get("factor")
    if kind == "longrope":
        return first(config, "original_max_position_embeddings") or length
    if length is None or not isinstance(factor, int | float) or _SCALED.match(str(kind)) or "gemma3" in model_type:
        return length
    return int(length * factor)


def _dtype(config: Mapping[str, Any]) -> str:
    said = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    return _ROUNDED.get(said, said if said in _DTYPES else "bfloat16")


def _experts(config: Mapping[str, Any]) -> Experts | None:
    count = first(config, "num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
    width = first(config, "moe_intermediate_size", "intermediate_size", "ffn_hidden_size")
    if not count or count < 2 or not width:
        return None
    return Experts(count, first(config, "num_experts_per_tok", "moe_k") or 2, width)


def _method(quantization: Mapping[str, Any]) -> str | None:
    method = quantization.get("quant_method")
    if method is None and quantization.get("load_in_4bit"):
        return "bitsandbytes"
    return str(method) if method else None


def _kv_dtype(quantization: Mapping[str, Any]) -> str | None:
    """What `auto` means for the KV cache of such a checkpoint: only ModelOpt's say so in a form that vLLM obeys."""
    if not str(quantization.get("quant_method") or "").startswith("modelopt"):
        return None
    said = str(quantization.get("kv_cache_quant_algo") or "").lower()
    scheme = quantization.get("kv_cache_scheme")
    if isinstance(scheme, Mapping) and scheme.get("type") == "float" and scheme.get("num_bits") in (8, 4):
        said = "fp8" if scheme["num_bits"] == 8 else "nvfp4"
    return said if said in ("fp8", "nvfp4") else None


def _gdn(config: Mapping[str, Any]) -> tuple[int, int, int, int, int] | None:
    """Key heads, value heads, key size, value size and kernel of gated delta net layers."""
    names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
    found = [first(config, f"linear_{name}") for name in names]
    return None if None in found else (found[0] or 0, found[1] or 0, found[2] or 0, found[3] or 0, found[4] or 0)
