"""What an instance gets and who said so: the order of the merge, spellings, versions, and where it runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.factories import GIB, changed, gpu, snapshot
from vllm_node.serving.defaults import Gpu
from vllm_node.serving.effective import Effective, conflict, effective
from vllm_node.serving.place import Place, declared_gpu, place_of
from vllm_node.serving.settings import number
from vllm_node.units import vllm_args

H100 = Gpu("NVIDIA H100 80GB HBM3", 80 * GIB)


def made(args: Any = None, version: tuple[int, ...] | None = (0, 33), **entry: Any) -> Effective:
    return effective(
        {"name": "chat", "port": 8000, "args": args, **entry}, Place("v0.33.0", version, H100), drain_s=60
    )


def origins(found: Effective) -> dict[str, str]:
    return {each.flag: each.origin for each in found.settings}


def test_an_instance_without_a_profile_gets_what_it_always_got() -> None:
    found = made({"tensor-parallel-size": 2, "uvicorn-log-level": None, "enable-prefix-caching": False})
    assert vllm_args(found.args) == [
        *("--served-model-name", "chat", "--host", "127.0.0.1", "--port", "8000", "--shutdown-timeout", "60"),
        *("--disable-uvicorn-access-log", "--tensor-parallel-size", "2", "--no-enable-prefix-caching"),
    ]


def test_later_ones_win_and_say_what_they_replaced() -> None:
    found = made({"max-num-seqs": 32, "shutdown-timeout": 5}, profile="interactive")
    assert found.value("max-num-seqs") == 32
    assert origins(found)["max-num-seqs"] == "inventory"
    assert origins(found)["max-num-batched-tokens"] == "profile interactive"
    assert origins(found)["host"] == "vllm-node"
    reasons = {each.flag: each.reason for each in found.settings}
    assert reasons["shutdown-timeout"] == "Set in args of the instance. vllm-node would have written 60."
    # In its place: the unit of a site that sets it looks as before.
    assert list(found.args)[:4] == ["served-model-name", "host", "port", "shutdown-timeout"]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("max_num_seqs", 8, ["--max_num_seqs", "8"]),
        ("no-enable-prefix-caching", True, ["--no-enable-prefix-caching"]),
        ("enable_prefix_caching", False, ["--no-enable_prefix_caching"]),
        ("shutdown_timeout", 5, ["--shutdown_timeout", "5"]),
    ],
)
def test_a_flag_is_known_in_each_spelling_and_written_as_the_site_has_it(key: str, value: Any, words: list[str]) -> None:
    found = made({key: value}, profile="rag")
    written = vllm_args(found.args)
    assert all(word in written for word in words)
    flag = key.replace("_", "-").removeprefix("no-")
    assert origins(found)[flag] == "inventory"
    assert [word for word in written if flag in word.replace("_", "-")] == words[:1]
    assert found.value("enable-prefix-caching") is ("prefix" not in key)


def test_a_flag_that_is_left_out_is_explained() -> None:
    found = made({"host": None})
    assert "--host" not in vllm_args(found.args)
    assert next(each.reason for each in found.settings if each.flag == "host").startswith("args of the instance leave it")
    old = made(version=(0, 17))
    assert "shutdown-timeout" not in old.args
    assert old.left_out[0].reason == "vllm-node: vLLM 0.17 does not have it; it came with 0.18."
    # Of an unknown version nothing is known against it.
    assert "shutdown-timeout" in made(version=None).args
    assert made({"shutdown-timeout": 9}, version=(0, 17)).left_out == ()


def test_values_that_nobody_set_are_told() -> None:
    found = made({"max-num-batched-tokens": 512})
    assert found.value("gpu-memory-utilization") == 0.92
    assert made(version=(0, 19)).value("gpu-memory-utilization") == 0.9
    # vLLM lowers it by itself.
    assert found.value("max-num-seqs") == 512
    assert made({"max-num-seqs": 4, "max-model-len": 1024}).value("max-num-batched-tokens") == 4096
    assert made({"performance-mode": "throughput"}).value("max-num-seqs") == 2048
    assert [each.value for each in made(version=(0, 12)).defaults if each.flag == "async-scheduling"] == [False]


def test_a_batch_that_vllm_refuses_is_noticed() -> None:
    refused = conflict(made({"max-num-seqs": "9k"}))
    assert refused is not None
    assert (refused.tokens, refused.seqs) == (8192, 9000)
    assert conflict(made({"max-num-seqs": 8192})) is None
    assert conflict(made({"max-num-seqs": "many"})) is None


def test_numbers_are_read_as_vllm_does() -> None:
    assert [number(each) for each in (8, "8", "1k", "1K", True, None, "x", "1.5k")] == [8, 8, 1000, 1024, *[None] * 4]


LOCK = {"vllm": {"tag": "v0.33.0"}, "cpu": {"tag": "v0.32.0-cpu"}, "own": {"tag": "2026.11"}, "old": {"tag": "v0.8.5"}}
MIG = {**gpu(0), "mig": [{"index": 0, "uuid": "MIG-a", "memory_total_bytes": 10 * GIB}]}


def place(gpus: list[Any], image: str = "vllm", node: dict[str, Any] | None = None, declared: Gpu | None = None) -> Place:
    return place_of({"name": "chat", "image": image, "gpus": gpus}, LOCK, node, declared)


def test_the_version_comes_from_the_tag() -> None:
    assert place([0]).version == (0, 33, 0)
    assert place([0], "own").version is None
    assert place([0], "old").version is None
    assert place([0], "nobody").version is None
    assert "newer than 0.33" in Place("v0.40.1", (0, 40, 1), H100).remarks[0]


def test_the_gpu_is_the_smallest_that_the_instance_is_given() -> None:
    node = changed(snapshot(), "gpu/devices/1/memory_total_bytes", 24 * GIB)
    assert place([0], node=node).tier == "large"
    assert place([gpu(1)["uuid"]], node=node).tier == "small"
    assert place(["all"], node=node).gpu == Gpu(gpu(1)["name"], 24 * GIB)
    assert place([0], node=changed(node, "gpu/devices", None)).tier is None
    assert place([7], node=node).gpu is None


def test_a_mig_device_counts_with_its_own_memory() -> None:
    node = changed(snapshot(), "gpu/devices", [MIG])
    for name in ("0:0", "MIG-a", "all"):
        assert place([name], node=node).gpu == Gpu(gpu(0)["name"], 10 * GIB)


def test_what_the_inventory_says_of_gpus_wins() -> None:
    declared = declared_gpu("NVIDIA A100-SXM4-80GB", "79.6")
    assert place([0], node=snapshot(), declared=declared).tier == "small"
    assert place([0], declared=declared).tier == "small"
    assert declared_gpu("NVIDIA A100", 0) is None
    assert declared_gpu("", "much") is None


def test_without_a_gpu_vllm_runs_on_the_cpu() -> None:
    assert place([]).tier == "cpu"
    assert place([0], "cpu", node=snapshot()).tier == "cpu"
