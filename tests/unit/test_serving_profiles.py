"""Profiles for every version and size of GPU: only flags that are there, nothing that vLLM does anyway, never a clash."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_node.serving.defaults import Gpu, Tier, batch, memory_share, tier_of
from vllm_node.serving.effective import Effective, conflict, effective
from vllm_node.serving.flags import cache
from vllm_node.serving.flags.known import Version
from vllm_node.serving.place import Place
from vllm_node.serving.profiles import PROFILES

GIB = 1 << 30
VERSIONS: list[Version] = [(0, 10, 2), (0, 18), (0, 20), (0, 28), (0, 32), (0, 33)]
H100 = Gpu("NVIDIA H100 80GB HBM3", round(79.6 * GIB))
GPUS: dict[str, Gpu | None] = {
    "H100": H100,
    "H200": Gpu("NVIDIA H200", 140 * GIB),
    "B200": Gpu("NVIDIA B200", 179 * GIB),
    "A100": Gpu("NVIDIA A100-SXM4-80GB", 80 * GIB),
    "A10G": Gpu("NVIDIA A10G", 22 * GIB),
    "MIG": Gpu("NVIDIA H100 80GB HBM3", 10 * GIB),
    "CPU": None,
}
# Read in the source of each release, apart from the tables that are tested here.
LACKING: dict[Version, set[str]] = {
    (0, 10, 2): {"shutdown-timeout", "performance-mode", "stream-interval", "max-num-queued-reqs"},
    (0, 18): {"max-num-queued-reqs"},
    (0, 20): {"max-num-queued-reqs"},
    (0, 28): {"max-num-queued-reqs"},
    (0, 32): set(),
    (0, 33): set(),
}
BATCHES: dict[str, tuple[int, int]] = {
    "H100": (8192, 1024),
    "H200": (8192, 1024),
    "A100": (2048, 256),
    "A10G": (2048, 256),
    "MIG": (2048, 256),
    "CPU": (2048, 128),
}
OTHERS = {"performance-mode": "balanced", "stream-interval": 1}
NAMES = [name for name in PROFILES if name != "custom"]


def usual(name: str, version: Version) -> tuple[int, int]:
    if name == "B200":
        return (16384, 1024) if version >= (0, 28) else (8192, 1024)
    return BATCHES[name]


def made(name: str, version: Version | None = (0, 33), gpu: str | None = "H100", **args: Any) -> Effective:
    device = GPUS[gpu] if gpu else None
    return effective(
        {"name": "chat", "port": 8000, "profile": name, "args": {key.replace("_", "-"): value for key, value in args.items()}},
        Place("tag", version, device, cpu=gpu == "CPU"),
    )


def written(found: Effective) -> dict[str, Any]:
    return {each.flag: each.value for each in found.settings if each.origin.startswith("profile")}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", NAMES)
def test_a_profile_writes_what_the_version_has_and_would_not_do_by_itself(name: str, gpu: str, version: Version) -> None:
    found = made(name, version, gpu)
    assert LACKING[version] & {each.flag for each in found.settings} == set()
    tokens, seqs = usual(gpu, version)
    same = {**OTHERS, "max-num-batched-tokens": tokens, "max-num-seqs": seqs}
    assert [flag for flag, value in written(found).items() if same.get(flag) == value] == []
    both = {"max-num-batched-tokens": tokens, "max-num-seqs": seqs, **written(found)}
    assert both["max-num-batched-tokens"] >= both["max-num-seqs"]
    # What is neither written nor left out with a word would be forgotten.
    assert {each.flag for each in PROFILES[name].values} == {*written(found), *(each.flag for each in found.left_out)} - {
        "shutdown-timeout"
    }
    reasons = [*(each.reason for each in (*found.settings, *found.defaults)), *(each.reason for each in found.left_out)]
    assert all(reason.endswith(".") for reason in reasons)


@pytest.mark.parametrize("name", NAMES)
def test_flags_of_profiles_are_flags_of_vllm(name: str) -> None:
    table = cache.built_in()
    assert [each.flag for each in PROFILES[name].values if table.find(each.flag) is None] == []


def test_what_profiles_come_to_on_an_h100_today() -> None:
    assert {name: written(made(name)) for name in PROFILES} == {
        "interactive": {
            "max-num-batched-tokens": 2048,
            "max-num-seqs": 256,
            "max-num-queued-reqs": 320,
            "performance-mode": "interactivity",
        },
        "rag": {"max-num-batched-tokens": 16384, "max-num-seqs": 128, "max-num-queued-reqs": 256},
        "agent": {"max-num-batched-tokens": 4096},
        "batch": {"max-num-batched-tokens": 16384, "stream-interval": 10},
        "custom": {},
    }


numbers = st.integers(1, 40_000)


@given(
    st.sampled_from(NAMES),
    st.sampled_from(VERSIONS),
    st.sampled_from(list(GPUS)),
    st.one_of(st.none(), numbers),
    st.one_of(st.none(), numbers),
    st.one_of(st.none(), st.integers(1, 200_000)),
)
def test_a_profile_never_makes_a_batch_that_vllm_refuses(
    name: str, version: Version, gpu: str, tokens: int | None, seqs: int | None, context: int | None
) -> None:
    args: dict[str, Any] = {"max_num_batched_tokens": tokens, "max_num_seqs": seqs, "max_model_len": context}
    given = {key: value for key, value in args.items() if value is not None}
    found = made(name, version, gpu, **given)
    for key, value in given.items():
        assert found.value(key.replace("_", "-")) == value
    if tokens is None or seqs is None:
        assert conflict(found) is None


def test_the_other_number_of_a_batch_follows_the_sites() -> None:
    # vLLM lowers its own default to 100 requests as well.
    assert written(made("rag", max_num_batched_tokens=100)) == {"max-num-queued-reqs": 200}
    many = made("interactive", max_num_seqs=4096)
    assert written(many)["max-num-batched-tokens"] == 4096
    assert "vLLM would not start" in next(each.reason for each in many.settings if each.flag == "max-num-batched-tokens")
    assert written(many)["max-num-queued-reqs"] == 5120
    # The profile itself says nothing of tokens on a small GPU.
    assert written(made("agent", gpu="A10G", max_num_seqs=4096))["max-num-batched-tokens"] == 4096


def test_a_short_context_needs_no_large_step() -> None:
    found = made("rag", max_num_seqs=4, max_model_len=1024)
    # That is what vLLM would take by itself.
    assert "max-num-batched-tokens" not in written(found)
    assert found.value("max-num-batched-tokens") == 4096
    assert written(made("rag", max_num_seqs=12, max_model_len=1024))["max-num-batched-tokens"] == 12288


def test_a_queue_is_as_long_as_what_runs_asks_for() -> None:
    assert written(made("interactive", max_num_seqs=4))["max-num-queued-reqs"] == 20
    assert written(made("interactive", data_parallel_size=2))["max-num-queued-reqs"] == 640
    assert "max-num-queued-reqs" not in written(made("interactive", max_num_queued_reqs=7))


def test_without_graphs_there_is_no_mode_for_them() -> None:
    found = made("interactive", enforce_eager=True)
    assert "performance-mode" not in written(found)
    assert "enforce-eager" in next(each.reason for each in found.left_out if each.flag == "performance-mode")


def test_nothing_is_assumed_of_what_is_not_known() -> None:
    unknown = made("interactive", version=None)
    assert (written(unknown), unknown.defaults) == ({}, ())
    assert "tells no version" in unknown.place.remarks[0]
    blind = made("batch", gpu=None)
    assert written(blind) == {"stream-interval": 10}
    assert {each.flag for each in blind.left_out} == {"max-num-batched-tokens", "max-num-seqs"}
    assert "vllm_gpu_memory_gib" in blind.place.remarks[0]
    assert blind.value("max-num-batched-tokens") is None


def test_the_defaults_of_a_version() -> None:
    assert (memory_share((0, 19, 1)), memory_share((0, 20)), memory_share(None)) == (0.9, 0.92, 0.92)
    tiers: list[tuple[str, Version, Tier | None]] = [
        ("A100", (0, 33), "small"),
        ("H100", (0, 33), "large"),
        ("B200", (0, 20), "huge"),
    ]
    for name, version, tier in tiers:
        device = GPUS[name]
        assert device is not None
        assert tier_of(device, version) == tier
    assert tier_of(Gpu("NVIDIA GB10", None), (0, 32)) == "large"
    assert tier_of(Gpu("NVIDIA GB10", None), (0, 33)) == "small"
    assert tier_of(Gpu("NVIDIA H100", None), (0, 33)) is None
    assert batch((0, 33), "large", throughput=True).tokens == 16384
    assert batch((0, 16), "large", throughput=True).tokens == 8192
    assert batch((0, 33), "cpu", ranks=2) == batch((0, 33), "small", seqs=256, tokens=4096)
    assert batch((0, 33), "large", tokens=100).seqs == 100
