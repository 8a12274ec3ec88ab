"""A plan held against what vLLM says of itself: its page, its log, and what it does not tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.fit_models import GIB, LLAMA, dense, planned
from tests.unit.metrics_pages import VLLM_PAGE
from tests.unit.model_folders import safetensors
from vllm_node.fit.held import Difference, Seen, held, journal
from vllm_node.fit.offline import plan_folder
from vllm_node.fit.report import text

LOG = """
INFO 11-30 08:49:00 [gpu_model_runner.py:425] Model loading took 14.96 GiB memory and 3.6 seconds
INFO 11-30 08:50:23 [gpu_worker.py:508] Available KV cache memory: 54.0 GiB
INFO 11-30 08:50:23 [kv_cache_utils.py:2327] GPU KV cache size: 442,368 tokens, Maximum concurrency for 8,192 tokens per request: 54.00x
"""
OLD_LOG = """
Loading model weights took 13.9476 GB
GPU KV cache size: 158,656 tokens
Maximum concurrency for 32,768 tokens per request: 4.84x
"""
CPU_LOG = "Explicitly set (1.0/23.54) GiB for KV cache on node 0.\nCPU KV cache size: 524,288 tokens, Maximum concurrency for 2,048 tokens per request: 256.00x"


def by_name(differences: list[Difference]) -> dict[str, Difference]:
    return {one.name: one for one in differences}


def tiny(folder: Path, layers: int = 4) -> Path:
    """The tiny model that the page of a real server was taken with: four layers of four KV heads of 32."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "max_position_embeddings": 4096,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(safetensors("a"))
    return folder


ASKED = {"max-model-len": 2048, "max-num-seqs": 32, "enforce-eager": True}
SPACE = {"VLLM_CPU_KVCACHE_SPACE": "1"}


@pytest.mark.skipif(not VLLM_PAGE.exists(), reason="the page of a real vLLM is not beside this checkout")
def test_a_plan_is_as_near_as_it_can_be_to_a_real_server(tmp_path: Path) -> None:
    plan = plan_folder(tiny(tmp_path), ASKED, SPACE)
    found = by_name(held(plan, Seen.of_page(VLLM_PAGE.read_text(), 2048)))
    assert [name for name, one in found.items() if one.close] == [
        "kv_memory", "blocks", "block_size", "kv_tokens", "full_requests", "max_model_len",
    ]  # fmt: skip
    assert found["kv_tokens"].seen == 524288
    assert found["kv_tokens"].percent == 0


@pytest.mark.skipif(not VLLM_PAGE.exists(), reason="the page of a real vLLM is not beside this checkout")
def test_a_plan_for_another_model_is_not_near(tmp_path: Path) -> None:
    plan = plan_folder(tiny(tmp_path, layers=5), ASKED, SPACE)
    found = by_name(held(plan, Seen.of_page(VLLM_PAGE.read_text(), 2048)))["kv_tokens"]
    assert found.close is False
    assert found.words == "tokens that fit: planned 20.0 % fewer than vLLM has"


def test_a_page_without_the_metric_is_refused() -> None:
    with pytest.raises(ValueError, match="cache_config_info"):
        Seen.of_page("# TYPE a gauge\na 1\n")


def test_lines_of_a_log() -> None:
    assert Seen.of_log(LOG) == Seen(
        tokens=442368, requests=54.0, max_model_len=8192, kv_bytes=54 * GIB, weights_bytes=14.96 * GIB
    )
    assert Seen.of_log(OLD_LOG) == Seen(tokens=158656, requests=4.84, max_model_len=32768, weights_bytes=13.9476 * GIB)
    assert Seen.of_log(CPU_LOG) == Seen(tokens=524288, requests=256.0, max_model_len=2048, kv_bytes=GIB)
    assert Seen.of_log("nothing of it") == Seen()


def test_the_last_start_counts() -> None:
    assert Seen.of_log(LOG + LOG.replace("442,368", "100")).tokens == 100


def test_a_log_against_a_plan_for_a_gpu() -> None:
    found = by_name(held(planned(LLAMA, dense(LLAMA)), Seen.of_log(LOG)))
    assert found["weights_gpu"].close is True
    assert found["kv_tokens"].close is True
    assert found["blocks"].close is None
    assert found["blocks"].words == "blocks: vLLM does not tell it"


def test_a_difference_beyond_the_range_says_so() -> None:
    plan = planned(LLAMA, dense(LLAMA))
    near = by_name(held(plan, Seen(tokens=400_000)))["kv_tokens"].words
    far = by_name(held(plan, Seen(tokens=200_000)))["kv_tokens"].words
    assert near.endswith("more than vLLM has, within the range that the plan gave")
    assert far.endswith("more than vLLM has, outside of the range that the plan gave")


def test_nothing_is_compared_with_what_is_not_known() -> None:
    for one in held(planned(LLAMA), Seen()):
        assert one.percent is None
        assert one.close is None
    assert by_name(held(planned(LLAMA), Seen()))["kv_tokens"].words == "tokens that fit: neither the plan nor vLLM tells it"
    assert by_name(held(planned(LLAMA), Seen(tokens=1)))["kv_tokens"].words == "tokens that fit: the plan does not tell it"
    assert by_name(held(planned(LLAMA, dense(LLAMA)), Seen(tokens=0)))["kv_tokens"].percent is None


@pytest.mark.parametrize("value", ["None", "", None, "x"])
def test_labels_that_hold_no_number(value: object) -> None:
    assert Seen.of_labels({"num_gpu_blocks": value, "kv_cache_size_tokens": value}) == Seen()
    assert Seen.of_labels(None) == Seen()


def test_with_blocks_given_the_memory_of_the_page_is_not_what_they_take() -> None:
    labels = {"num_gpu_blocks": "500", "num_gpu_blocks_override": "500", "kv_cache_memory_bytes": str(GIB)}
    assert Seen.of_labels(labels) == Seen(blocks=500)
    assert Seen.of_labels({**labels, "num_gpu_blocks_override": "None"}).kv_bytes == GIB


def test_page_and_log_together() -> None:
    both = Seen.of_labels({"num_gpu_blocks": "7"}, 4096).and_also(Seen.of_log(LOG))
    assert (both.blocks, both.max_model_len, both.weights_bytes) == (7, 4096, 14.96 * GIB)


def test_differences_are_in_the_text() -> None:
    plan = planned(LLAMA, dense(LLAMA))
    told = text(plan, "gpu1", held(plan, Seen(tokens=442_368)))
    assert "held against vLLM itself:" in told
    assert "(451,728; vLLM: 442,368)" in told
    assert "held against" not in text(plan, "gpu1")


@pytest.mark.parametrize(
    ("since", "word"),
    [
        ("2026-11-30T08:45:17.123456789Z", "--since=@1796028317"),
        ("2026-11-30T10:45:17.123456789+02:00", "--since=@1796028317"),
        ("2026-11-30 08:45:17.123456789 +0000 UTC", "--since=@1796028317"),
        ("yesterday", None),
        (None, None),
    ],
)
def test_only_the_present_life_of_a_unit_is_read(since: object, word: str | None) -> None:
    found: list[Any] = [each for each in journal("vllm-chat.service", since) if each.startswith("--since")]
    assert found == ([word] if word else [])
