"""The KV cache: bytes of a token, and what fits, as real servers had it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.fit_models import EXPERTS, GIB, HYBRID, LARGE, LATENT, LLAMA
from vllm_node.fit import kv, settings, shape


def cache(config: dict[str, Any], *, cpu: bool = False, in_flight: int = 2048, **args: Any) -> kv.Cache:
    found = kv.cut(shape.read(config), settings.read(args), cpu=cpu, in_flight=in_flight)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("config", "args", "size"),
    [
        (LLAMA, {}, 131072),  # 32 layers x 8 heads x 128 x 2 x 2 bytes
        (LLAMA, {"tensor-parallel-size": 2}, 65536),
        (LLAMA, {"tensor-parallel-size": 8}, 16384),
        (LLAMA, {"tensor-parallel-size": 16}, 16384),  # a head cannot be cut: two GPUs keep the same
        (LLAMA, {"kv-cache-dtype": "fp8"}, 65536),
        (LLAMA, {"pipeline-parallel-size": 2}, 65536),
        (LARGE, {}, 327680),
        (LATENT, {}, 70272),  # 61 layers x 576 x 2 bytes
        (LATENT, {"tensor-parallel-size": 8}, 70272),  # the same on every GPU
        (LATENT, {"kv-cache-dtype": "fp8"}, 35136),
        (EXPERTS, {}, 98304),
        ({**LATENT, "index_head_dim": 128}, {}, 61 * (656 + 132)),
    ],
)
def test_bytes_of_a_token(config: dict[str, Any], args: dict[str, Any], size: int) -> None:
    assert cache(config, **args).token_bytes(1 << 17) == size


def test_a_type_whose_size_is_not_known_gives_no_cache() -> None:
    asked = settings.read({"kv-cache-dtype": "turboquant_k8v4"})
    assert kv.cut(shape.read(LLAMA), asked, in_flight=1) is None


TINY: dict[str, Any] = {
    "num_hidden_layers": 3,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "dtype": "bfloat16",
}
WINDOWS: dict[str, Any] = {
    **TINY,
    "num_hidden_layers": 14,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "sliding_window": 512,
    "layer_types": ["sliding_attention"] * 12 + ["full_attention"] * 2,
}
# What vLLM 0.32.0 (CPU build) said of such models with a cache of 1 GiB and max-num-batched-tokens 2048.
SEEN: list[tuple[dict[str, Any], dict[str, Any], int, int, int]] = [
    (TINY, {}, 4096, 5461, 699008),
    ({**TINY, "num_hidden_layers": 5, "num_key_value_heads": 2}, {}, 4096, 6553, 838784),
    (WINDOWS, {}, 8192, 8192, 353204),
    (WINDOWS, {"block-size": 64, "disable-hybrid-kv-cache-manager": True}, 3000, 2340, 149361),
    ({**TINY, "num_hidden_layers": 4, "num_key_value_heads": 2, "sliding_window": 512}, {}, 4096, 8192, 1597830),
    (
        {**TINY, "num_hidden_layers": 6, "num_key_value_heads": 2, "head_dim": 64, "sliding_window": 128,
         "layer_types": ["sliding_attention", "full_attention"] * 3},
        {}, 4096, 5461, 447365,
    ),
    (
        {**TINY, "num_hidden_layers": 8, "num_key_value_heads": 2, "head_dim": 64, "full_attention_interval": 4,
         "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
         "linear_conv_kernel_dim": 4},
        {}, 4096, 8192, 883011,
    ),
    ({**TINY, "model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64}, {}, 4096, 19418, 310688),
]  # fmt: skip


@pytest.mark.parametrize(("config", "args", "length", "blocks", "tokens"), SEEN)
def test_real_servers_had_as_much(
    config: dict[str, Any], args: dict[str, Any], length: int, blocks: int, tokens: int
) -> None:
    found = cache(config, cpu=True, **args)
    assert found.blocks(GIB) == blocks
    assert found.capacity(GIB, length)[1] == tokens


def test_a_window_caps_what_a_request_takes() -> None:
    found, full = cache(HYBRID), cache(HYBRID, **{"disable-hybrid-kv-cache-manager": True})
    assert found.token_bytes(131072) < 0.25 * full.token_bytes(131072)
    assert found.token_bytes(131072) < found.token_bytes(2048)


def test_states_take_blocks_that_do_not_grow() -> None:
    linear = {"num_key_heads": 16, "num_value_heads": 32, "key_head_dim": 128, "value_head_dim": 128, "conv_kernel_dim": 4}
    config = {**EXPERTS, "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4}
    config |= {f"linear_{name}": value for name, value in linear.items()}
    found = cache(config)
    assert {kind: count for kind, count, _ in found.groups} == {"full": 1, "state": 3}
    # A block of attention is as large as a state, and a request has two in each of three groups whatever its length.
    assert found.block_size == 1056  # 2 146 304 bytes of a state over 2048 bytes of a token, in sixteens
    assert found.request_blocks(found.block_size) == 7
    assert found.request_blocks(10 * found.block_size) == 16
    assert cache(config, **{"enable-prefix-caching": False}).request_blocks(found.block_size) == 4


def test_chunks_cap_what_a_request_takes() -> None:
    config = {**LLAMA, "layer_types": ["chunked_attention"] * 24 + ["full_attention"] * 8, "attention_chunk_size": 1024}
    found = cache(config, in_flight=1024)
    assert found.request_blocks(65536) == 65536 // 16 + 3 * (2048 // 16)


MEMORY = st.integers(1, 200 * GIB)
LENGTH = st.integers(1, 1 << 18)
CONFIG = st.sampled_from([LLAMA, LARGE, LATENT, HYBRID, EXPERTS, WINDOWS])


@given(CONFIG, MEMORY, MEMORY, LENGTH)
def test_more_memory_never_holds_fewer_tokens(config: dict[str, Any], one: int, other: int, length: int) -> None:
    less, more = sorted((one, other))
    found = cache(config)
    assert found.capacity(less, length)[1] <= found.capacity(more, length)[1]


@given(CONFIG, MEMORY, LENGTH, LENGTH)
def test_longer_requests_are_never_more(config: dict[str, Any], memory: int, one: int, other: int) -> None:
    short, long = sorted((one, other))
    found = cache(config)
    assert found.capacity(memory, long)[0] <= found.capacity(memory, short)[0]


@given(CONFIG, MEMORY, LENGTH)
def test_eight_bits_never_hold_fewer_tokens(config: dict[str, Any], memory: int, length: int) -> None:
    eight: dict[str, Any] = {"kv-cache-dtype": "fp8"}
    small = cache(config, **eight)
    assert cache(config).capacity(memory, length)[1] <= small.capacity(memory, length)[1]


@given(CONFIG, st.integers(0, 4), LENGTH)
def test_more_gpus_never_need_more_for_a_token(config: dict[str, Any], power: int, length: int) -> None:
    few: dict[str, Any] = {"tensor-parallel-size": 1 << power}
    many: dict[str, Any] = {"tensor-parallel-size": 2 << power}
    assert cache(config, **many).token_bytes(length) <= cache(config, **few).token_bytes(length)


@given(CONFIG, MEMORY, LENGTH)
def test_the_longest_that_fits_fits_and_one_more_does_not(config: dict[str, Any], memory: int, most: int) -> None:
    found = cache(config)
    longest = found.longest(memory, most)
    assert longest == 0 or found.holds(memory, longest)
    assert longest == most or not found.holds(memory, longest + 1)
