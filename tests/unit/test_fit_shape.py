"""A model's shape out of its config: of each kind of model that is served, and of configs that say too little."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.fit_models import EXPERTS, HYBRID, LARGE, LATENT, LLAMA
from tests.unit.node_code import utils
from vllm_node.fit import shape

part = utils("snapshot_shape").part
MODELS = {"llama": LLAMA, "large": LARGE, "latent": LATENT, "hybrid": HYBRID, "experts": EXPERTS}


@pytest.mark.parametrize("name", MODELS)
def test_the_part_that_a_snapshot_keeps_says_the_same_as_the_whole_config(name: str) -> None:
    whole = {**MODELS[name], "id2label": {str(number): "x" for number in range(1000)}}
    kept = json.loads(json.dumps(part(whole)))
    assert shape.read(kept) == shape.read(whole)
    assert len(json.dumps(kept)) < 2000


def test_grouped_heads() -> None:
    found = shape.read(LLAMA)
    assert (found.layers, found.heads, found.kv_heads, found.head_dim) == (32, 32, 8, 128)
    assert found.kinds == {"full": 32}
    assert found.context == 8192
    assert found.dtype_bytes == 2


def test_a_latent_is_one_for_all_heads() -> None:
    found = shape.read(LATENT)
    assert found.latent == 576
    assert found.context == 163840
    assert found.experts == shape.Experts(256, 8, 2048)
    assert found.quantization == "fp8"


def test_a_model_with_a_low_rank_of_another_kind_has_no_latent() -> None:
    assert shape.read({**LLAMA, "kv_lora_rank": 512}).latent is None


def test_layers_with_a_window_beside_full_ones_below_text_config() -> None:
    found = shape.read(HYBRID)
    assert found.kinds == {"sliding": 40, "full": 8}
    assert (found.window, found.head_dim, found.sees) == (1024, 256, True)


WINDOW: dict[str, Any] = {**LLAMA, "sliding_window": 4096}


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        (LLAMA, {"full": 32}),
        (WINDOW, {"sliding": 32}),
        ({**WINDOW, "use_sliding_window": False}, {"full": 32}),
        ({**WINDOW, "use_sliding_window": True, "max_window_layers": 20}, {"full": 20, "sliding": 12}),
        ({**WINDOW, "use_sliding_window": True, "max_window_layers": 32}, {"full": 32}),
        ({**WINDOW, "sliding_window": None}, {"full": 32}),
        ({**WINDOW, "sliding_window": 0}, {"full": 32}),
        ({**WINDOW, "model_type": "gemma2"}, {"full": 16, "sliding": 16}),
        ({**WINDOW, "model_type": "gemma3_text", "sliding_window_pattern": 4}, {"full": 8, "sliding": 24}),
        ({**LLAMA, "layer_types": ["sliding_attention"] * 32}, {"full": 32}),
        ({**LLAMA, "layer_types": ["chunked_attention"] * 24 + ["full_attention"] * 8, "attention_chunk_size": 8192},
         {"chunked": 24, "full": 8}),
        ({**LLAMA, "layer_types": ["linear_attention"] * 24 + ["full_attention"] * 8}, {"state": 24, "full": 8}),
        ({**LLAMA, "full_attention_interval": 4, "linear_num_value_heads": 32}, {"full": 8, "state": 24}),
    ],
)  # fmt: skip
def test_what_layers_keep(config: dict[str, Any], kinds: dict[str, int]) -> None:
    assert shape.read(config).kinds == kinds
    assert shape.read(part(config)).kinds == kinds


@pytest.mark.parametrize(
    ("changes", "context"),
    [
        ({}, 8192),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 16384),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, 32768),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}}, 8192),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 8192),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}, 8192),
        ({"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": None, "n_positions": 1024}, 1024),
        ({"max_position_embeddings": None}, None),
    ],
)
def test_the_length_that_vllm_takes(changes: dict[str, Any], context: int | None) -> None:
    assert shape.read({**LLAMA, **changes}).context == context


def test_weights_of_32_bits_are_served_in_16() -> None:
    assert shape.read({**LLAMA, "torch_dtype": "float32"}).dtype_bytes == 2


@pytest.mark.parametrize(
    ("quantization", "method", "kv"),
    [
        ({"quant_method": "awq", "bits": 4}, "awq", None),
        ({"quant_method": "gptq", "bits": 4}, "gptq", None),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"type": "float", "num_bits": 8}}, "compressed-tensors", None),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, "modelopt", "fp8"),
        ({"quant_method": "modelopt", "kv_cache_scheme": {"type": "float", "num_bits": 8, "dynamic": False}}, "modelopt", "fp8"),
        ({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}, "modelopt", "fp8"),
        ({"load_in_4bit": True}, "bitsandbytes", None),
    ],
)
def test_quantised_checkpoints(quantization: dict[str, Any], method: str, kv: str | None) -> None:
    found = shape.read(part({**LLAMA, "quantization_config": quantization}))
    assert (found.quantization, found.kv_dtype) == (method, kv)


@pytest.mark.parametrize("missing", ["num_hidden_layers", "hidden_size", "num_attention_heads"])
def test_a_config_that_says_too_little_is_refused_by_name(missing: str) -> None:
    with pytest.raises(shape.ShapeError, match=missing):
        shape.read({key: value for key, value in LLAMA.items() if key != missing})


@pytest.mark.parametrize("config", [None, {}])
def test_no_config_is_refused(config: dict[str, Any] | None) -> None:
    with pytest.raises(shape.ShapeError, match=r"config\.json"):
        shape.read(config)


def test_what_is_not_understood_is_told() -> None:
    assert "share the KV cache" in " ".join(shape.read({**LLAMA, "num_kv_shared_layers": 8}).untold)
    assert "of the kind odd" in " ".join(shape.read({**LLAMA, "layer_types": ["odd"] * 32}).untold)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*LLAMA, *LATENT, "layer_types", "text_config", "sliding_window", "vision_config"]), ANYTHING))
def test_no_config_breaks_the_reading(config: dict[str, Any]) -> None:
    for said in (config, part(config)):
        try:
            found = shape.read(said)
        except shape.ShapeError:
            continue
        assert found.layers > 0
