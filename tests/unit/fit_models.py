"""Models by their public shapes, written small: configs of our own, and how many bytes their tensors take."""

from __future__ import annotations

from typing import Any

from vllm_node.fit import settings, shape
from vllm_node.fit.machine import Machine, alike
from vllm_node.fit.plan import Plan, make
from vllm_node.fit.reckoning import Case, Sum, reckon

GIB = 1 << 30

# Eight billion parameters, four query heads for each KV head.
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
# Seventy billion.
LARGE: dict[str, Any] = {
    **LLAMA,
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "intermediate_size": 28672,
    "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
}
LATENT: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3"},
}
# Five layers with a window for each that has none.
HYBRID: dict[str, Any] = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 48,
        "hidden_size": 3840,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "intermediate_size": 15360,
        "sliding_window": 1024,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 8,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
    },
    "vision_config": {"hidden_size": 1152},
    "torch_dtype": "bfloat16",
}
EXPERTS: dict[str, Any] = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 40960,
}


def weights(**kinds: dict[str, int]) -> dict[str, Any]:
    """What the snapshot counts, from {kind: {dtype: bytes}}."""
    by_dtype: dict[str, int] = {}
    for sizes in kinds.values():
        for dtype, size in sizes.items():
            by_dtype[dtype] = by_dtype.get(dtype, 0) + size
    return {"bytes": sum(by_dtype.values()), "tensors": len(kinds), "by_dtype": by_dtype, "by_kind": kinds}


def dense(config: dict[str, Any]) -> dict[str, Any]:
    """Weights in 16 bits of a model without experts, from its shape."""
    hidden, layers, wide = config["hidden_size"], config["num_hidden_layers"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    kv = 2 * hidden * config["num_key_value_heads"] * head_dim
    queries = 2 * hidden * config["num_attention_heads"] * head_dim
    ends = config["vocab_size"] * hidden
    return weights(
        embedding={"BF16": 2 * ends},
        head={"BF16": 2 * ends},
        kv={"BF16": 2 * layers * kv},
        other={"BF16": 2 * layers * (queries + 3 * hidden * wide)},
        flat={"BF16": 2 * (2 * layers + 1) * hidden},
    )


def case(
    config: dict[str, Any],
    counted: dict[str, Any] | None = None,
    *,
    gpu_gib: float = 80,
    gpus: int | None = None,
    machine: Machine | None = None,
    version: tuple[int, ...] | None = (0, 32, 0),
    **args: Any,
) -> Case:
    """A case on GPUs of one size, as many as the settings need; underscores in `args` stand for dashes."""
    asked = settings.read(args)
    place = machine or alike(gpu_gib * GIB, gpus or asked.gpus)
    return Case(shape.read(config), asked, place, counted, None, version)


def summed(config: dict[str, Any], counted: dict[str, Any] | None = None, **more: Any) -> Sum:
    return reckon(case(config, counted, **more))


def planned(config: dict[str, Any], counted: dict[str, Any] | None = None, **more: Any) -> Plan:
    return make("chat", case(config, counted, **more))
