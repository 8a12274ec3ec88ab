"""Flags of an instance judged: each bad set is refused with the advice that mends it, and what is right is let through."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.role_code import ROOT
from vllm_node.serving.flags import known
from vllm_node.serving.flags.judge import judge
from vllm_node.serving.flags.page import parse
from vllm_node.serving.flags.problems import Problem

IMAGE = parse((ROOT / "tests/unit/data/vllm-help.txt").read_text(), "0.32.0+cpu")
V32 = (0, 32, 0)


def only(args: dict[str, Any], by: Any = IMAGE, **instance: Any) -> Problem:
    found = judge(args, by, **instance)
    assert len(found) == 1, found
    return found[0]


GOOD: list[dict[str, Any]] = [
    {},
    {"max-model-len": 8192, "max-num-seqs": 64, "max-num-batched-tokens": 64},
    {"max_model_len": "8k", "max-num-batched-tokens": "8K"},
    {"max-model-len": "auto"},
    {"max-model-len": -1},
    {"max-num-seqs": "64"},
    {"enable-chunked-prefill": True, "enable-prefix-caching": False},
    {"no-enable-prefix-caching": True},
    {"gpu-memory-utilization": 0.9},
    {"device-memory-utilization": 1},
    {"kv-cache-memory-bytes": "2G"},
    {"dtype": "bfloat16", "kv-cache-dtype": "fp8"},
    {"config-format": "of my own", "tool-call-parser": "of_a_plugin"},
    {"compilation-config": {"mode": 3}, "hf-overrides": {"rope_theta": 1}},
    {"compilation-config": '{"mode": 3}', "hf-overrides": "anything"},
    {"compilation-config.mode": 3},
    {"served-model-name": ["a", "b"], "lora-modules": [{"name": "x", "path": "/x"}]},
    {"cudagraph-capture-sizes": [1, 2, 4]},
    {"collect-detailed-traces": ["model", "worker"]},
    {"swap-space": None, "headless": None},
    {"host": "127.0.0.1", "uvicorn-log-level": "warning", "shutdown-timeout": 60},
    {"optimization-level": "O2", "seed": 0},
]


@pytest.mark.parametrize("by", [IMAGE, V32, None], ids=("image", "version", "nothing"))
@pytest.mark.parametrize("args", GOOD, ids=str)
def test_what_is_right_is_let_through(args: dict[str, Any], by: Any) -> None:
    assert judge(args, by) == []


# What METRICS calls gone: the flag, the first version without it, and what to do instead.
GONE = [
    ("swap-space", (0, 18), "kv-offloading-size"),
    ("disable-log-requests", (0, 17), "enable-log-requests"),
    ("preemption-mode", (0, 11), "computed again"),
    ("scheduler-delay-factor", (0, 11), "Leave it out"),
    ("max-seq-len-to-capture", (0, 11), "max-cudagraph-capture-size"),
    ("disable-async-output-proc", (0, 11), "async-scheduling"),
    ("num-scheduler-steps", (0, 10, 1), "async-scheduling"),
    ("guided-decoding-backend", (0, 12), "structured-outputs-config"),
    ("guided-decoding-disable-fallback", (0, 12), "structured-outputs-config"),
    ("task", (0, 13), "runner: pooling"),
    ("device", (0, 10), "gpus of the instance"),
    ("max-num-partial-prefills", (0, 27), "max-num-batched-tokens"),
    ("calculate-kv-scales", (0, 28), "checkpoint that brings scales"),
]


@pytest.mark.parametrize(("name", "since", "advice"), GONE)
def test_a_flag_that_is_gone_is_refused_with_what_to_do_instead(
    name: str, since: known.Version, advice: str
) -> None:
    for by in (IMAGE, V32, since):
        found = only({name: 1}, by)
        assert (found.kind, found.level) == ("gone", "fail")
        assert known.written(since) in found.seen
        assert advice in found.mend
    # Nobody knows the version: it may be one that still has it.
    assert only({name: 1}, None).level == "warn"


@pytest.mark.parametrize(("name", "since"), [(name, since) for name, since, _ in GONE])
def test_the_version_before_still_has_it(name: str, since: known.Version) -> None:
    before = (since[0], since[1] - 1) if len(since) == 2 else (*since[:2], since[2] - 1)
    assert judge({name: 1}, before) == []


@pytest.mark.parametrize(
    ("name", "value", "since"),
    [
        ("async-scheduling", True, (0, 10)),
        ("enable-log-requests", True, (0, 10, 1)),
        ("kv-cache-memory-bytes", 1 << 30, (0, 10, 2)),
        ("kv-offloading-size", 4, (0, 11, 1)),
        ("stream-interval", 2, (0, 11, 1)),
        ("kv-cache-metrics", True, (0, 12)),
        ("enable-mfu-metrics", True, (0, 14)),
        ("shutdown-timeout", 60, (0, 18)),
        ("max-num-queued-reqs", 100, (0, 29)),
        ("max-num-queued-tokens", 100, (0, 29)),
        ("max-num-active-seqs", 10, (0, 31)),
        ("custom-histogram-buckets", {}, (0, 32)),
        ("watchdog-config", {}, (0, 33)),
    ],
)
def test_a_flag_that_came_later_names_the_version_that_has_it(name: str, value: Any, since: known.Version) -> None:
    found = only({name: value}, (0, 9, 2))
    assert (found.kind, found.level) == ("new", "fail")
    assert known.written(since) in found.seen
    assert f"`{name}: null`" in found.mend
    assert judge({name: value}, since) == []


@pytest.mark.parametrize(
    ("key", "right"),
    [
        ("max-num-seqss", "max-num-seqs"),
        ("max_num_batchedtokens", "max-num-batched-tokens"),
        ("gpu-memory-utilisation", "gpu-memory-utilization"),
        ("tp", "tensor-parallel-size"),
        ("--max-num-seqs", "max-num-seqs"),
        ("max-num-seqs=8", "`max-num-seqs: 8`"),
        ("enable-chunked-prefill=False", "`enable-chunked-prefill: false`"),
        ("no-enable-chunked-prefil", "enable-chunked-prefill"),
    ],
)
def test_a_wrong_name_is_refused_with_the_right_one(key: str, right: str) -> None:
    for by in (IMAGE, V32):
        found = only({key: 8}, by)
        assert (found.kind, found.level) == ("unknown", "fail")
        assert right in found.mend


def test_a_name_that_is_like_no_other_leads_to_the_list() -> None:
    assert "--help=all" in only({"turbo": True}).mend


def test_the_beginning_of_a_name_works_and_is_pointed_out() -> None:
    found = only({"max-num-batched": 512})
    assert (found.level, found.name) == ("warn", "max-num-batched-tokens")


def test_without_the_images_own_page_an_unknown_name_of_another_version_only_warns() -> None:
    found = only({"turbo-mode": True}, (0, 25))
    assert found.level == "warn"
    assert "as far as is known" in found.seen


def test_the_image_has_the_last_word_over_what_is_known() -> None:
    assert only({"custom-histogram-bucketz": {}}).name == "custom-histogram-buckets"
    # The built-in table has it, this image does not.
    assert only({"prefix-match-unit": 1}).kind == "unknown"
    assert judge({"prefix-match-unit": 1}, V32) == []


@pytest.mark.parametrize(
    ("args", "advice"),
    [
        ({"enable-chunked-prefill": "False"}, "`enable-chunked-prefill: false`, without quotes"),
        ({"enable-prefix-caching": "true"}, "`enable-prefix-caching: true`"),
        ({"headless": "false"}, "`headless: null`"),
        ({"headless": False}, "`headless: null`"),
        ({"enable-prefix-caching": 1}, "`enable-prefix-caching: true`"),
        ({"enable-prefix-caching": 7}, "or `false`"),
        ({"max-num-seqs": "many"}, "Write a number."),
        ({"max-num-seqs": 1.5}, "whole number"),
        ({"max-num-seqs": "1k"}, "Write 1000."),
        ({"max-num-seqs": 0}, "above 0"),
        ({"max-num-seqs": True}, "null to leave it out"),
        ({"max-model-len": "8 k"}, "8192 or 8k"),
        ({"gpu-memory-utilization": 92}, "up to 1"),
        ({"gpu-memory-utilization": 0}, "above 0"),
        ({"tensor-parallel-size": "two"}, "Write a number."),
        ({"dtype": "fp16"}, "auto, bfloat16, float, float16, float32, half"),
        ({"max-lora-rank": 24}, "1, 8, 16, 32, 64, 128, 256, 320, 512"),
        ({"collect-detailed-traces": ["model", "all the rest"]}, "all, model, worker"),
        ({"compilation-config": "mode 3"}, "Write a dictionary."),
        ({"max-num-seqs": [1, 2]}, "Give it one value."),
        ({"middleware": {"a": 1}}, "Give it one value."),
    ],
)
def test_a_value_that_the_parser_refuses_is_told_with_a_right_one(args: dict[str, Any], advice: str) -> None:
    found = only(args)
    assert (found.kind, found.level) == ("type", "fail")
    assert advice in found.mend


@pytest.mark.parametrize(
    ("args", "level", "seen", "advice"),
    [
        ({"max-num-batched-tokens": 512, "max-num-seqs": 1024}, "fail", "512 is below max-num-seqs 1024", "1024 or more"),
        ({"max-num-batched-tokens": "1k", "max_num_seqs": 1024}, "fail", "1000 is below", "1000 or less"),
        (
            {"enable-chunked-prefill": False, "max-num-batched-tokens": 2048, "max-model-len": 8192},
            "fail",
            "below max-model-len 8192",
            "8192 or more",
        ),
        ({"no-enable-chunked-prefill": True}, "warn", "switched off", "on by default"),
        ({"enforce-eager": True, "compilation-config": {"cudagraph_mode": "FULL"}}, "warn", "no effect", "one of them"),
        ({"enforce-eager": True, "compilation-config.cudagraph_mode": "FULL"}, "warn", "no effect", "one of them"),
        ({"enforce-eager": True, "cudagraph-capture-sizes": [1, 2]}, "warn", "no effect", "one of them"),
        ({"max-num-seqs": 1, "max_num_seqs": 1}, "fail", "the same flag", "one of them"),
    ],
)
def test_flags_that_contradict_each_other(args: dict[str, Any], level: str, seen: str, advice: str) -> None:
    for by in (IMAGE, V32):
        found = only(args, by)
        assert (found.kind, found.level) == ("conflict", level)
        assert seen in found.seen
        assert advice in found.mend


@pytest.mark.parametrize(
    ("args", "gpus", "level"),
    [
        ({"tensor-parallel-size": 2}, 1, "fail"),
        ({"tensor-parallel-size": 2, "pipeline-parallel-size": 2}, 2, "fail"),
        ({"data-parallel-size": 4}, 2, "fail"),
        ({}, 4, "warn"),
        ({"tensor-parallel-size": 2}, 4, "warn"),
    ],
)
def test_sizes_of_parallelism_have_to_be_those_of_the_gpus(args: dict[str, Any], gpus: int, level: str) -> None:
    found = only(args, gpus=gpus)
    assert (found.kind, found.level) == ("conflict", level)
    assert str(gpus) in found.seen


@pytest.mark.parametrize(
    ("args", "gpus"),
    [
        ({"tensor-parallel-size": 2}, 2),
        ({"tensor-parallel-size": 2, "data-parallel-size": 2}, 4),
        ({"tensor-parallel-size": 2, "data-parallel-size": 4, "data-parallel-size-local": 1}, 2),
        ({"tensor-parallel-size": 8, "nnodes": 2}, 4),
        ({"tensor-parallel-size": 8}, None),
        ({"tensor-parallel-size": 2, "decode-context-parallel-size": 2}, 2),
        ({"tensor-parallel-size": 2}, 0),
    ],
)
def test_sizes_that_fit_or_cannot_be_judged(args: dict[str, Any], gpus: int | None) -> None:
    assert judge(args, V32, gpus=gpus) == []


def test_nothing_is_concluded_from_a_value_that_is_wrong() -> None:
    assert only({"tensor-parallel-size": "two"}, gpus=2).kind == "type"
    assert only({"max-num-seqs": "many", "max-num-batched-tokens": 8}).kind == "type"


@pytest.mark.parametrize(
    ("args", "level", "advice"),
    [
        ({"port": 9000}, "fail", "the instance's port"),
        ({"served-model-name": "other"}, "fail", "served_model_name beside args"),
        ({"uds": "/run/vllm.sock"}, "fail", "ask the port"),
        ({"headless": True}, "fail", "Take it out"),
        ({"grpc": True}, "fail", "Take it out"),
        ({"model": "/x"}, "fail", "Take it out"),
        ({"ssl-certfile": "/x"}, "fail", "gateway speaks TLS"),
        ({"config": "/x.yml"}, "warn", "among the args"),
        ({"disable-log-stats": True}, "warn", "Take it out"),
    ],
)
def test_what_the_instance_has_a_key_for_or_others_rely_on(args: dict[str, Any], level: str, advice: str) -> None:
    found = only(args, port=8000, served="chat")
    assert (found.kind, found.level) == ("owned", level)
    assert advice in found.mend


def test_the_instances_own_port_and_name_may_stand_in_args() -> None:
    assert judge({"port": "8000", "served-model-name": ["alias", "chat"]}, IMAGE, port=8000, served="chat") == []


@pytest.mark.parametrize("args", [{"api-key": "word"}, {"api_key": ["a", "b"]}, {"hf-token": True}])
def test_a_secret_on_the_command_line_is_refused_and_not_repeated(args: dict[str, Any]) -> None:
    found = only(args)
    assert (found.kind, found.level) == ("secret", "fail")
    assert "word" not in found.seen + found.mend


@pytest.mark.parametrize(
    ("name", "value", "kind", "level"),
    [
        ("VLLM_PORT", "8000", "environment", "fail"),
        ("VLLM_API_KEY", "word", "secret", "fail"),
        ("HF_TOKEN", "word", "secret", "fail"),
        ("CUDA_VISIBLE_DEVICES", "3", "environment", "warn"),
        ("VLLM_USE_V1", "0", "environment", "warn"),
        ("VLLM_HOST_IP", "10.0.0.1", "environment", "warn"),
        ("HF_HUB_OFFLINE", "0", "environment", "warn"),
    ],
)
def test_traps_among_the_variables(name: str, value: str, kind: str, level: str) -> None:
    found = only({}, env={name: value, "VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_NO_USAGE_STATS": "1"})
    assert (found.subject, found.kind, found.level) == (name, kind, level)
    assert "word" not in found.seen + found.mend


@pytest.mark.parametrize(
    ("tag", "version"),
    [
        ("v0.32.0", (0, 32, 0)),
        ("0.32.0-cpu", (0, 32, 0)),
        ("v0.11", (0, 11)),
        ("0.32.0+cpu", (0, 32, 0)),
        ("v0.10.1.1", None),
        ("25.09-py3", None),
        ("nightly", None),
        ("", None),
        (None, None),
    ],
)
def test_a_tag_tells_a_version_or_none(tag: str | None, version: known.Version | None) -> None:
    assert known.version_of(tag) == version
