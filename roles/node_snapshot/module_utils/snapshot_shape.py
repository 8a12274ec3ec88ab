"""What a fit plan has to know out of a model's config.json: the few numbers, nothing else, and never much of it.

A config may hold thousands of lines (ids of labels, maps of modules); a snapshot is kept and compared.
"""

from __future__ import annotations

from typing import Any

_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
_NUMBERS = (
    "num_hidden_layers", "n_layer", "num_layers", "hidden_size", "n_embd", "d_model",
    "num_attention_heads", "n_head", "num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv",
    "head_dim", "global_head_dim", "num_global_key_value_heads", "intermediate_size", "ffn_hidden_size", "n_inner",
    "vocab_size", "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
    "original_max_position_embeddings",
    "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "q_lora_rank", "index_head_dim",
    "sliding_window", "sliding_window_size", "sliding_window_pattern", "_sliding_window_pattern",
    "max_window_layers", "attention_chunk_size", "interleave_moe_layer_step",
    "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok", "moe_k",
    "moe_intermediate_size", "n_shared_experts", "shared_expert_intermediate_size", "first_k_dense_replace",
    "num_nextn_predict_layers", "num_kv_shared_layers", "full_attention_interval",
    "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
    "linear_conv_kernel_dim",
)  # fmt: skip
_WORDS = ("model_type", "torch_dtype", "dtype")
_SWITCHES = ("tie_word_embeddings", "use_sliding_window", "multi_query", "new_decoder_architecture")
_PRESENT = ("vision_config", "audio_config", "compress_ratios", "mamba_config", "ssm_cfg")
_ROPE = ("rope_type", "type", "factor", "original_max_position_embeddings")
_QUANTIZATION = ("quant_method", "bits", "w_bit", "group_size", "quant_algo", "kv_cache_quant_algo", "load_in_4bit")
_LONGEST_WORD = 64
_MOST_KINDS = 16


def part(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that a fit plan reads; what holds the text model lies below `text_config`."""
    found = _part(config)
    for name in _PARTS:
        nested = config.get(name)
        # Qwen's omni models keep the text model one level further down.
        if isinstance(nested, dict):
            inner = nested.get("text_config")
            found["text_config"] = _part(inner if isinstance(inner, dict) else nested)
            break
    return found


def _part(config: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _NUMBERS:
        value = config.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found[name] = value
    found.update({name: config[name][:_LONGEST_WORD] for name in _WORDS if isinstance(config.get(name), str)})
    found.update({name: config[name] for name in _SWITCHES if isinstance(config.get(name), bool)})
    found.update({name: True for name in _PRESENT if config.get(name)})
    kinds = layer_kinds(config.get("layer_types"))
    if kinds:
        found["layer_types"] = kinds
    for name in ("rope_scaling", "rope_parameters"):
        rope = _picked(config.get(name), _ROPE)
        if rope:
            found[name] = rope
    quantization = _quantization(config.get("quantization_config"))
    if quantization:
        found["quantization_config"] = quantization
    return found


def layer_kinds(types: Any) -> dict[str, int]:
    """How many layers are of which kind; the order of the layers does not matter to a plan."""
    counts: dict[str, int] = {}
    for kind in types if isinstance(types, list) else []:
        if isinstance(kind, str) and (kind in counts or len(counts) < _MOST_KINDS):
            counts[kind[:_LONGEST_WORD]] = counts.get(kind[:_LONGEST_WORD], 0) + 1
    return counts


def _picked(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {}
    found: dict[str, Any] = {}
    for name in names:
        one = value.get(name)
        if isinstance(one, str):
            found[name] = one[:_LONGEST_WORD]
        elif isinstance(one, (int, float)):
            found[name] = one
    return found


def _quantization(value: Any) -> dict[str, Any]:
    found = _picked(value, _QUANTIZATION)
    if isinstance(value, dict):
        inner = value.get("quantization")
        schemes = [value.get("kv_cache_scheme")]
        if isinstance(inner, dict):
            found.update({key: one for key, one in _picked(inner, _QUANTIZATION).items() if key not in found})
            schemes.append(inner.get("kv_cache_scheme"))
        scheme = next((_picked(one, ("type", "num_bits", "dynamic")) for one in schemes if isinstance(one, dict)), {})
        if scheme:
            found["kv_cache_scheme"] = scheme
    return found
