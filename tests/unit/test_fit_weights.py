"""Weights on one GPU: what is cut, what every GPU holds, and what vLLM makes of them while it loads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.fit_models import EXPERTS, GIB, HYBRID, LARGE, LATENT, LLAMA, dense, weights
from tests.unit.node_code import utils
from vllm_node.fit import settings, shape
from vllm_node.fit.weights import per_gpu

MIB = 1 << 20


def best(config: dict[str, Any], counted: dict[str, Any], **args: Any) -> float:
    span = per_gpu(shape.read(config), counted, None, settings.read(args)).gpu
    assert span is not None
    assert span.low <= span.best <= span.high
    return span.best


def test_all_of_it_on_one_gpu() -> None:
    # Public logs of a server with this model say 14.96 to 14.99 GiB.
    assert best(LLAMA, dense(LLAMA)) / GIB == pytest.approx(14.96, abs=0.01)


def test_two_gpus_hold_half_each_but_for_the_norms() -> None:
    counted = dense(LLAMA)
    assert best(LLAMA, counted, tensor_parallel_size=2) / GIB == pytest.approx(7.48, abs=0.01)
    flat = counted["by_kind"]["flat"]["BF16"]
    assert best(LLAMA, counted, tensor_parallel_size=2) == (counted["bytes"] + flat) / 2


@pytest.mark.parametrize(
    ("kind", "tp", "share"),
    [
        ("other", 4, 1 / 4),
        ("embedding", 4, 1 / 4),
        ("expert", 4, 1 / 4),
        ("flat", 4, 1),
        ("router", 4, 1),
        ("latent", 4, 1),
        ("kv", 8, 1 / 8),
        ("kv", 16, 1 / 8),  # eight KV heads: two GPUs hold the same
        ("qkv", 16, (32 / 48) / 16 + (16 / 48) / 8),
        ("mtp", 1, 0),
        ("vision", 4, 1 / 4),
    ],
)
def test_shares_of_kinds(kind: str, tp: int, share: float) -> None:
    counted = weights(**{kind: {"BF16": 64 * MIB}})
    assert best(LLAMA, counted, tensor_parallel_size=tp) == pytest.approx(64 * MIB * share)


def test_an_encoder_may_be_held_whole() -> None:
    span = per_gpu(shape.read(HYBRID), weights(vision={"BF16": GIB}), None, settings.read({"tensor-parallel-size": 4})).gpu
    assert span is not None
    assert span.high > GIB
    assert best(HYBRID, weights(vision={"BF16": GIB}), tensor_parallel_size=4, mm_encoder_tp_mode="data") == GIB
    assert best(HYBRID, weights(vision={"BF16": GIB}), language_model_only=True) == 0


def test_a_tied_head_is_not_loaded_again() -> None:
    assert best({**LLAMA, "tie_word_embeddings": True}, weights(head={"BF16": GIB})) == 0


def test_experts_are_spread_over_replicas_as_well() -> None:
    counted = weights(expert={"BF16": 8 * GIB})
    asked = {"tensor-parallel-size": 2, "data-parallel-size": 4}
    assert best(EXPERTS, counted, **asked) == 4 * GIB
    assert best(EXPERTS, counted, **asked, enable_expert_parallel=True) == GIB


def test_stages_share_layers_and_one_end_each() -> None:
    counted = weights(other={"BF16": 8 * GIB}, embedding={"BF16": 2 * GIB}, head={"BF16": 2 * GIB})
    assert best(LLAMA, counted, pipeline_parallel_size=2) == 6 * GIB


@pytest.mark.parametrize(
    ("dtype", "args", "factor"),
    [
        ("F32", {}, 0.5),
        ("BF16", {}, 1),
        ("BF16", {"dtype": "float32"}, 2),
        ("I32", {}, 1),
        ("BF16", {"quantization": "fp8"}, 0.5),
        ("BF16", {"quantization": "bitsandbytes"}, 0.28),
    ],
)
def test_what_loading_makes_of_a_type(dtype: str, args: dict[str, Any], factor: float) -> None:
    assert best(LLAMA, weights(other={dtype: GIB}), **args) == GIB * factor


def test_ends_are_not_quantised_on_loading() -> None:
    assert best(LLAMA, weights(embedding={"BF16": GIB}), quantization="fp8") == GIB


def test_scales_of_a_quantised_checkpoint_stay_as_they_are() -> None:
    config = {**LLAMA, "quantization_config": {"quant_method": "fp8"}}
    assert best(config, weights(other={"F8_E4M3": GIB, "F32": MIB})) == GIB + MIB


def test_a_quantised_latent_is_unpacked_beside_itself() -> None:
    counted = weights(latent_up={"F8_E4M3": GIB})
    assert best(LATENT, counted) == 3 * GIB
    assert best({**LATENT, "quantization_config": None}, weights(latent_up={"BF16": GIB})) == GIB


def test_quantisation_that_is_not_known_is_told() -> None:
    found = per_gpu(shape.read(LLAMA), weights(other={"BF16": GIB}), None, settings.read({"quantization": "new"}))
    assert found.gpu is not None
    assert found.gpu.low < GIB / 3
    assert "quantization new" in found.untold[0]


def test_what_is_offloaded_is_not_on_the_gpu() -> None:
    assert best(LLAMA, dense(LLAMA), cpu_offload_gb=10) / GIB == pytest.approx(4.96, abs=0.01)


def test_files_without_headers_are_a_rougher_guess() -> None:
    found = per_gpu(shape.read(LLAMA), None, 16 * GIB, settings.read({"tensor-parallel-size": 2}))
    assert found.gpu is not None
    assert found.gpu.best == 8 * GIB
    assert found.gpu.high - found.gpu.low > 2 * GIB


def test_nothing_known_is_not_nothing() -> None:
    assert per_gpu(shape.read(LLAMA), None, None, settings.read({})).gpu is None


KINDS = st.dictionaries(
    st.sampled_from(["other", "kv", "qkv", "flat", "router", "expert", "embedding", "head", "latent", "latent_up", "vision", "mtp"]),
    st.dictionaries(st.sampled_from(["BF16", "F32", "F8_E4M3", "I32"]), st.integers(0, 64 * GIB), min_size=1),
    min_size=1,
)


@given(st.sampled_from([LLAMA, LARGE, LATENT, EXPERTS, HYBRID]), KINDS, st.integers(0, 5))
def test_more_gpus_never_hold_more_each(config: dict[str, Any], kinds: dict[str, dict[str, int]], power: int) -> None:
    counted = weights(**kinds)
    few, many = (best(config, counted, tensor_parallel_size=1 << exponent) for exponent in (power, power + 1))
    assert many <= few * (1 + 1e-9)


tally = utils("snapshot_weights").Tally


@pytest.mark.parametrize(
    ("name", "shape_", "kind"),
    [
        ("model.embed_tokens.weight", [8, 8], "embedding"),
        ("lm_head.weight", [8, 8], "head"),
        ("model.layers.0.self_attn.q_proj.weight", [8, 8], "other"),
        ("model.layers.0.self_attn.k_proj.weight", [8, 8], "kv"),
        ("model.layers.0.self_attn.v_proj.qweight", [8, 8], "kv"),
        ("model.layers.0.self_attn.qkv_proj.weight", [8, 8], "qkv"),
        ("transformer.h.0.attn.c_attn.weight", [8, 8], "qkv"),
        ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", [8, 8], "latent"),
        ("model.layers.0.self_attn.kv_b_proj.weight", [8, 8], "latent_up"),
        ("model.layers.0.mlp.gate_proj.weight", [8, 8], "other"),
        ("model.layers.0.mlp.gate.weight", [8, 8], "router"),
        ("model.layers.0.mlp.experts.3.down_proj.weight", [8, 8], "expert"),
        ("model.layers.0.block_sparse_moe.gate.weight", [8, 8], "router"),
        ("model.layers.0.input_layernorm.weight", [8], "flat"),
        ("model.layers.4.mlp.gate_proj.weight", [8, 8], "mtp"),
        ("mtp.layers.0.mlp.up_proj.weight", [8, 8], "mtp"),
        ("vision_tower.encoder.layers.9.mlp.fc1.weight", [8, 8], "vision"),
        ("model.visual.blocks.9.attn.qkv.weight", [8, 8], "vision"),
    ],
)
def test_tensors_by_their_names(name: str, shape_: list[int], kind: str) -> None:
    found = tally(4)
    found.add({name: {"dtype": "U8", "shape": shape_, "data_offsets": [100, 164]}})
    assert found.result() == {"bytes": 64, "tensors": 1, "by_dtype": {"U8": 64}, "by_kind": {kind: {"U8": 64}}}


def test_no_tensor_is_no_figure() -> None:
    assert tally(4).result() is None
