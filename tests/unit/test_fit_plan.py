"""Plans: the verdict, the range of each figure, how a model may be cut, and advice that is worth taking."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.fit_models import EXPERTS, GIB, HYBRID, LARGE, LATENT, LLAMA, case, dense, planned, summed, weights
from vllm_node.fit import overhead, parallel, report, shape
from vllm_node.fit import settings as asked
from vllm_node.fit.machine import Gpu, Machine
from vllm_node.fit.plan import make
from vllm_node.fit.reckoning import reckon
from vllm_node.fit.told import NAMES
from vllm_node.serving import defaults


def test_a_small_model_on_a_large_gpu() -> None:
    plan = planned(LLAMA, dense(LLAMA))
    assert plan.verdict == "fits"
    assert plan.changes == ()
    tokens = plan.figure("kv_tokens")
    # Public logs of this model on such a GPU with a share of 0.9 say 53.3 GiB, which is 436 566 tokens.
    other = planned(LLAMA, dense(LLAMA), gpu_memory_utilization=0.9).figure("kv_tokens")
    assert other.low is not None
    assert other.high is not None
    assert other.low < 436_566 < other.high
    assert (tokens.value or 0) > (other.value or 0)


def test_every_figure_says_how_it_was_obtained() -> None:
    for plan in (planned(LLAMA, dense(LLAMA)), planned(LLAMA), planned(LLAMA, machine=Machine(None))):
        assert [figure.name for figure in plan.figures] == list(NAMES)
        for figure in plan.figures:
            assert figure.how
            assert (figure.value is None) == (figure.word == "unobservable")
            if figure.low is not None and figure.high is not None:
                assert figure.low <= (figure.value or 0) <= figure.high


def test_without_weights_nothing_is_said_to_fit() -> None:
    plan = planned(LLAMA)
    assert plan.verdict == "unknown"
    assert plan.figure("kv_tokens").value is None
    assert plan.figure("kv_token_bytes").value == 131072
    assert "the size of the weights" in plan.untold


def test_gpus_that_are_not_known() -> None:
    plan = planned(LLAMA, dense(LLAMA), machine=Machine(None))
    assert plan.verdict == "unknown"
    assert "the GPUs of the node" in plan.untold


def test_a_type_of_cache_that_is_not_known() -> None:
    plan = planned(LLAMA, dense(LLAMA), kv_cache_dtype="turboquant_k8v4")
    assert plan.verdict == "unknown"
    assert plan.figure("kv_tokens").value is None
    assert "turboquant_k8v4" in " ".join(plan.untold)


@pytest.mark.parametrize(
    ("version", "share"), [((0, 32, 0), 0.92), ((0, 20, 0), 0.92), ((0, 19, 1), 0.9), ((0, 10, 2), 0.9), (None, 0.92)]
)
def test_the_share_of_memory_by_version(version: tuple[int, ...] | None, share: float) -> None:
    budget = summed(LLAMA, dense(LLAMA), version=version).budget
    assert budget is not None
    assert budget.high == 80 * GIB * share


def test_memory_that_is_given_to_the_cache_is_not_guessed() -> None:
    plan = planned(LLAMA, dense(LLAMA), kv_cache_memory_bytes="20G")
    assert plan.figure("kv_memory").value == 20 * GIB
    assert plan.figure("kv_tokens").value == 163840
    assert plan.figure("kv_tokens").word == "derived"
    assert plan.verdict == "fits"


def test_blocks_that_are_given_win() -> None:
    plan = planned(LLAMA, dense(LLAMA), num_gpu_blocks_override=1000, kv_cache_memory_bytes="20G")
    assert plan.figure("blocks").value == 1000
    assert plan.figure("kv_tokens").value == 16000


def test_a_cache_larger_than_the_gpu() -> None:
    plan = planned(LLAMA, dense(LLAMA), kv_cache_memory_bytes="70G")
    assert plan.verdict == "does_not_fit"
    most = re.match(r"kv-cache-memory-bytes: (\d+) at most", plan.changes[0])
    assert most
    assert planned(LLAMA, dense(LLAMA), kv_cache_memory_bytes=int(most[1])).verdict == "fits"


def test_a_cache_too_small_for_one_request() -> None:
    plan = planned(LLAMA, dense(LLAMA), kv_cache_memory_bytes="512M")
    assert plan.verdict == "does_not_fit"
    least = re.match(r"kv-cache-memory-bytes: (\d+) at least", plan.changes[0])
    assert least
    assert planned(LLAMA, dense(LLAMA), kv_cache_memory_bytes=int(least[1])).verdict == "fits"
    assert planned(LLAMA, dense(LLAMA), kv_cache_memory_bytes=int(least[1]) - 1).verdict == "does_not_fit"


def test_the_cpu_build_takes_what_its_variable_says() -> None:
    settled = replace(asked.read({}, {"VLLM_CPU_KVCACHE_SPACE": "1"}))
    node = replace(case(LLAMA, dense(LLAMA), machine=Machine((), memory_bytes=64 * GIB)), settings=settled)
    plan = make("chat", node)
    assert plan.figure("kv_tokens").value == 8192
    # One block is never given away, so a request of full length does not go in.
    assert plan.verdict == "does_not_fit"
    assert "VLLM_CPU_KVCACHE_SPACE: 2 (GiB): one request of 8192 tokens needs it" in plan.changes


def test_a_length_that_vllm_chooses_itself() -> None:
    plan = planned(LARGE, dense(LARGE), tensor_parallel_size=2, max_model_len="auto", max_num_seqs=64, max_num_batched_tokens=2048)
    longest = plan.figure("max_model_len")
    assert longest.word == "inferred"
    assert 0 < (longest.value or 0) < 131072


def test_weights_alone_are_too_large() -> None:
    plan = planned(LARGE, dense(LARGE), gpu_gib=80)
    assert plan.verdict == "does_not_fit"
    assert any(change.startswith("tensor-parallel-size: 4 on 4 GPUs of 80 GiB (the node has 1)") for change in plan.changes)


def test_gpus_of_the_node_are_named_as_such() -> None:
    gpus = tuple(Gpu(str(number), 80 * GIB) for number in range(2))
    plan = planned(LARGE, dense(LARGE), machine=Machine(gpus, 8, "nvswitch"), tensor_parallel_size=2)
    assert "tensor-parallel-size: 4 on 4 GPUs (the instance has 2, the node 8)" in plan.changes


def test_a_shorter_context_is_named_and_fits() -> None:
    args = {"tensor_parallel_size": 2, "gpu_gib": 96}
    plan = planned(LARGE, dense(LARGE), **args)
    assert plan.verdict == "may_not_fit"
    shorter = re.match(r"max-model-len: (\d+) \(now 131072\)", plan.changes[0])
    assert shorter
    assert planned(LARGE, dense(LARGE), **args, max_model_len=int(shorter[1])).verdict == "fits"


def test_eight_bits_are_not_proposed_twice() -> None:
    config = {**LARGE, "quantization_config": {"quant_method": "fp8"}}
    counted = weights(other={"F8_E4M3": 70 * GIB})
    plan = planned(config, counted, kv_cache_dtype="fp8")
    assert plan.verdict == "does_not_fit"
    assert not [change for change in plan.changes if "fp8" in change]


def test_nothing_helps() -> None:
    plan = planned(LATENT, weights(other={"F8_E4M3": 640 * GIB}), gpu_gib=16)
    assert plan.changes == ("no single change of settings makes it fit: take a smaller or quantised model, or larger GPUs",)


CHANGE = re.compile(r"([a-z-]+): (\S+?)(?:[,:;]? |$)")


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([LLAMA, LARGE, EXPERTS]),
    st.sampled_from([12, 16, 24, 40, 48, 80, 141]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([2048, 8192, 32768, 131072]),
)
def test_advice_makes_it_better(config: dict[str, Any], gpu_gib: int, tp: int, length: int) -> None:
    args: dict[str, Any] = {"tensor-parallel-size": tp, "max-model-len": length}
    before = planned(config, dense(config), gpu_gib=gpu_gib, **args)
    for change in before.changes:
        told = {key: value.rstrip(",:") for key, value in CHANGE.findall(change) if key.count("-") or key == "quantization"}
        if change.startswith("no single"):
            continue
        assert told, change
        after = planned(config, dense(config), gpu_gib=gpu_gib, **{**args, **told})
        likely = "likely, not for certain" in change
        assert after.verdict in (("fits", "may_not_fit") if likely else ("fits",)), (change, after.why)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([LLAMA, LARGE, EXPERTS, HYBRID]), st.floats(8, 300), st.floats(8, 300))
def test_a_larger_gpu_never_fits_worse(config: dict[str, Any], one: float, other: float) -> None:
    small, large = sorted((one, other))
    order = ["does_not_fit", "may_not_fit", "fits"]
    # The same batch on both: the larger of two GPUs gets a larger one otherwise.
    args: dict[str, Any] = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
    text = config.get("text_config", config)
    found = [summed(config, dense(text), gpu_gib=size, **args).verdict for size in (small, large)]
    assert order.index(found[0]) <= order.index(found[1])


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (LLAMA, [1, 2, 4, 8]),
        (LARGE, [1, 2, 4, 8]),
        (EXPERTS, [1, 2, 4, 8]),
        (LATENT, [1, 2, 4, 8]),
        ({**LLAMA, "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584, "intermediate_size": 18944}, [1, 2, 4]),
        ({**LLAMA, "num_attention_heads": 12, "num_key_value_heads": 2, "intermediate_size": 8960}, [1, 2, 4]),
        ({**LLAMA, "intermediate_size": 11}, [1]),
        ({**LLAMA, "num_attention_heads": 24, "num_key_value_heads": 6}, [1, 2]),
    ],
)
def test_possible_sizes(config: dict[str, Any], sizes: list[int]) -> None:
    assert parallel.possible(shape.read(config), 8) == sizes


@pytest.mark.parametrize("tp", [3, 5, 6, 7])
def test_an_impossible_size_stops(tp: int) -> None:
    plan = planned(LLAMA, dense(LLAMA), tensor_parallel_size=tp)
    assert plan.verdict == "impossible"
    assert [reason.kind for reason in plan.reasons if reason.level == "stop"] == ["size"]
    assert "1, 2, 4, 8" in plan.reasons[0].mend


def gpus(count: int, **more: Any) -> tuple[Gpu, ...]:
    return tuple(Gpu(str(number), 80 * GIB, 0.0, **more) for number in range(count))


@pytest.mark.parametrize(
    ("machine", "tp", "kinds"),
    [
        (Machine(gpus(2), 2, "nvlink"), 2, []),
        (Machine(gpus(2), 2, "nvswitch"), 2, []),
        (Machine(gpus(2), 2, None), 2, []),
        (Machine(gpus(2), 2, "none", "GPUs 0 and 1 by SYS"), 2, ["fabric"]),
        (Machine(gpus(2, mig=True), 2), 2, ["parts"]),
        (Machine(gpus(1, mig=True), 1), 1, []),
        (Machine(gpus(1), 8), 2, ["count"]),
        (Machine(gpus(4), 8), 2, ["count"]),
        (Machine(gpus(1), 8, others=(("other", 0.5),)), 1, ["share"]),
        (Machine(gpus(1), 8, others=(("other", 0.05),)), 1, []),
    ],
)
def test_how_a_model_is_cut(machine: Machine, tp: int, kinds: list[str]) -> None:
    plan = planned(LLAMA, dense(LLAMA), machine=machine, tensor_parallel_size=tp)
    assert [reason.kind for reason in plan.reasons] == kinds


def test_an_unknown_fabric_is_told() -> None:
    plan = planned(LLAMA, dense(LLAMA), machine=Machine(gpus(2), 2, None, "no answer"), tensor_parallel_size=2)
    assert "whether the GPUs share a fabric: no answer" in plan.untold


def test_the_smallest_gpu_counts() -> None:
    mixed = (*gpus(1), Gpu("1", 24 * GIB, 0.0))
    found = reckon(case(LLAMA, dense(LLAMA), machine=Machine(mixed, 2, "nvlink"), tensor_parallel_size=2))
    assert found.budget is not None
    assert found.budget.best == pytest.approx(24 * GIB * 0.92)


def test_what_comes_on_top_is_told() -> None:
    plan = planned(LLAMA, dense(LLAMA), speculative_config={"model": "x"}, enable_lora=True)
    assert len(plan.untold) == 2


def test_the_text_has_the_verdict_the_figures_and_the_advice() -> None:
    plan = planned(LARGE, dense(LARGE), tensor_parallel_size=2)
    told = report.text(plan, "gpu1")
    assert told.startswith("gpu1, chat: DOES NOT FIT: ")
    assert "weights on a GPU       65.7 GiB (" in told
    assert all(f"- {change}" in told for change in plan.changes)
    document = plan.document()
    assert document["verdict"] == "does_not_fit"
    assert {figure["word"] for figure in document["figures"]} <= {"measured", "derived", "inferred", "unobservable"}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"tensor-parallel-size": "two"}, "tensor-parallel-size: 'two'"),
        ({"tensor-parallel-size": 0}, "tensor-parallel-size: 0"),
        ({"max-model-len": -5}, "max-model-len: -5"),
        ({"gpu-memory-utilization": 92}, "gpu-memory-utilization: 92"),
        ({"gpu-memory-utilization": "x"}, "gpu-memory-utilization: 'x'"),
        ({"block-size": True}, "block-size: True"),
    ],
)
def test_settings_that_are_no_numbers_are_refused_by_name(args: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        asked.read(args)


def test_a_variable_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="VLLM_CPU_KVCACHE_SPACE"):
        asked.read({}, {"VLLM_CPU_KVCACHE_SPACE": "1.5"})


@pytest.mark.parametrize(
    ("value", "tokens"), [("32k", 32000), ("32K", 32768), ("1.5k", 1500), (4096, 4096), ("4096", 4096), ("1M", 1 << 20)]
)
def test_lengths_as_vllm_reads_them(value: object, tokens: int) -> None:
    assert asked.read({"max_model_len": value}).max_model_len == tokens


@pytest.mark.parametrize(
    ("gpu", "args", "version", "limits"),
    [
        (Gpu("NVIDIA H100 80GB HBM3", 80 * GIB), {}, (0, 32), (8192, 1024, 2)),
        (Gpu("NVIDIA H100 80GB HBM3", 80 * GIB), {}, (0, 12), (8192, 1024, 1)),
        (Gpu("NVIDIA H100 80GB HBM3", 80 * GIB), {}, None, (8192, 1024, 2)),
        (Gpu("NVIDIA A100-SXM4-80GB", 80 * GIB), {}, (0, 32), (2048, 256, 2)),
        (Gpu("NVIDIA B200", 180 * GIB), {}, (0, 32), (16384, 1024, 2)),
        (Gpu("NVIDIA L40S", 45 * GIB), {"pipeline-parallel-size": 2}, (0, 32), (2048, 256, 3)),
        (Gpu("NVIDIA L40S", 45 * GIB), {"async-scheduling": False}, (0, 32), (2048, 256, 1)),
        (Gpu("NVIDIA L40S", 45 * GIB), {"max-num-seqs": 8, "max-num-batched-tokens": 512}, (0, 32), (512, 8, 2)),
        (None, {}, (0, 32), (2048, 128, 1)),
    ],
)
def test_limits_of_a_step(
    gpu: Gpu | None, args: dict[str, Any], version: tuple[int, ...] | None, limits: tuple[int, int, int]
) -> None:
    known = None if gpu is None else defaults.Gpu(gpu.name, int(gpu.total_bytes or 0))
    found = overhead.batch(asked.read(args), known, version)
    assert (found.tokens, found.requests, found.steps_at_once) == limits


def test_what_is_beside_weights_and_cache_grows_with_what_it_is_for() -> None:
    usual = summed(LLAMA).overhead
    assert summed(LLAMA, enforce_eager=True).overhead.best < usual.best
    assert summed(LLAMA, max_num_seqs=16).overhead.best < usual.best
    assert summed(LLAMA, max_num_batched_tokens=32768).overhead.best > usual.best
    assert summed(LLAMA, machine=Machine((), memory_bytes=GIB)).overhead.best == 0
    # Public logs of this model on such a GPU say 3.05 GiB.
    assert usual.low < 3.05 * GIB < usual.high
