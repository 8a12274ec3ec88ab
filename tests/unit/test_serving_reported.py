"""What vLLM reports against what is explained: every place it is read from, and every way in which they differ."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.factories import GIB
from vllm_node.serving.effective import Effective, effective
from vllm_node.serving.explain import chosen, explanation, settings, text
from vllm_node.serving.place import Place
from vllm_node.serving.reported import Reported, differences, observed, reported, same
from vllm_node.units import vllm_args

ENTRY = {
    "name": "tiny",
    "port": 8000,
    "gpus": [],
    "profile": "batch",
    "args": {"max-model-len": 2048, "max-num-seqs": 4, "enforce-eager": True, "seed": 0},
}
ARGUMENTS = {
    "model_tag": "/models/tiny",
    "host": "127.0.0.1",
    "model": "/models/tiny",
    "served_model_name": ["tiny"],
    "max_model_len": 2048,
    "enforce_eager": True,
    "max_num_seqs": 4,
    "shutdown_timeout": 60,
    "disable_uvicorn_access_log": True,
    "uvicorn_log_level": "warning",
    "stream_interval": 10,
}
ENGINE = (
    "(EngineCore pid=9) INFO [core.py:1] Initializing a V1 LLM engine (v0.33.0) with config: model='/models/tiny', "
    "dtype=torch.bfloat16, max_seq_len=2048, tensor_parallel_size=1, enforce_eager=True, kv_cache_dtype=auto, "
    "device_config=cpu, seed=0, served_model_name=tiny, enable_prefix_caching=True, enable_chunked_prefill=True, "
    "other=Config(max_seq_len_of_another=5)"
)
CACHE = {"gpu_memory_utilization": "0.92", "enable_prefix_caching": "True", "cache_dtype": "auto"}


def wanted(**changes: Any) -> Effective:
    return effective({**ENTRY, **changes}, Place("v0.33.0", (0, 33, 0), cpu=True))


def facts(**changes: Any) -> dict[str, Any]:
    return {
        "command": ["/models/tiny", *vllm_args(wanted().args)],
        "version": "0.33.0+cpu",
        "served_models": ["tiny"],
        "max_model_len": 2048,
        "cache_config": CACHE,
        "unseen": [],
        **changes,
    }


def start(arguments: Any = None, **changes: Any) -> dict[str, Any]:
    line = f"(APIServer pid=1) INFO [utils.py:2] non-default args: {ARGUMENTS if arguments is None else arguments}"
    chunked = "Chunked prefill is enabled with max_num_batched_tokens=2048."
    return {"arguments": line, "engine": ENGINE, "chunked": chunked, "devices": None, "unseen": [], **changes}


def differ(found: Effective, seen: Reported) -> dict[str, tuple[Any, Any, str]]:
    return {each.flag: (each.wanted, each.reported, each.place) for each in differences(found, seen)}


def test_an_instance_that_runs_as_wanted_has_no_difference() -> None:
    found, seen = wanted(), reported(facts(), start())
    assert differences(found, seen) == []
    silent = {each.flag for each in (*found.settings, *found.defaults)} - set(seen.told)
    assert silent == {"port", "async-scheduling", "max-num-queued-reqs"}
    # The port is vLLM's own, and would be listed otherwise.
    assert observed(found, seen) == len(found.settings) + len(found.defaults) - 2


@pytest.mark.parametrize(
    ("flag", "answers", "place"),
    [
        ("max-num-seqs", {"start": start({**ARGUMENTS, "max_num_seqs": 8})}, "non-default args"),
        ("stream-interval", {"start": start({k: v for k, v in ARGUMENTS.items() if k != "stream_interval"})}, "not list it"),
        ("enforce-eager", {"start": start(engine=ENGINE.replace("enforce_eager=True", "enforce_eager=False"))}, "engine"),
        ("max-num-batched-tokens", {"start": start(chunked="… max_num_batched_tokens=512.")}, "engine"),
        ("gpu-memory-utilization", {"facts": facts(cache_config={"gpu_memory_utilization": "0.5"})}, "cache_config_info"),
        ("enable-prefix-caching", {"facts": facts(cache_config={"enable_prefix_caching": "False"})}, "cache_config_info"),
        ("max-model-len", {"facts": facts(max_model_len=1024)}, "/v1/models"),
        ("served-model-name", {"facts": facts(served_models=["other"])}, "/v1/models"),
        ("(version)", {"facts": facts(version="0.32.0")}, "/version"),
        ("seed", {"start": start(engine=ENGINE.replace("seed=0", "seed=7"))}, "engine"),
        ("uvicorn-log-level", {"facts": facts(command=["/models/tiny", *vllm_args({**wanted().args, "uvicorn-log-level": "info"})])}, "command line"),
        ("max-loras", {"facts": facts(command=[*facts()["command"], "--max-loras", "2"])}, "command line"),
    ],
)  # fmt: skip
def test_every_place_is_held_against_what_is_wanted(flag: str, answers: dict[str, Any], place: str) -> None:
    found = differ(wanted(), reported(answers.get("facts", facts()), answers.get("start", start())))
    assert list(found) == [flag]
    assert place in found[flag][2]


def test_adapters_are_served_beside_the_model() -> None:
    assert differences(wanted(), reported(facts(served_models=["tiny", "adapter"]), start())) == []


def test_what_is_not_told_is_no_difference() -> None:
    nothing = dict.fromkeys(("arguments", "engine", "chunked"))
    silent = facts(command=None, version=None, served_models=None, max_model_len=None, cache_config=None)
    seen = reported({**silent, "unseen": [{"what": "version", "why": "nobody answers"}]}, {**start(), **nothing})
    assert (differences(wanted(), seen), observed(wanted(), seen)) == ([], 0)
    assert seen.unseen == ("version: nobody answers",)
    told = explanation(wanted(), silent, {**start(), **nothing, "unseen": [{"what": "engine", "why": "cut"}]})
    assert (told["running"], told["silent"]) == (None, "engine: cut")


def test_arguments_that_python_cannot_read_are_read_one_by_one() -> None:
    line = "non-default args: {'max_num_seqs': 8, 'kind': <Kind.A: 'a, b'>, 'served_model_name': ['tiny', 'x']}"
    assert reported(facts(), start(arguments=None) | {"arguments": line}).arguments == {
        "max_num_seqs": 8,
        "kind": "<Kind.A: 'a, b'>",
        "served_model_name": ["tiny", "x"],
    }


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (0.9, "0.90", True),
        (True, "True", True),
        (True, 1, False),
        ("4k", 4000, True),
        ("tiny", ["tiny"], True),
        (["a"], "a", True),
        ({"a": 1}, '{"a": 1}', True),
        (["a", "b"], ["b", "a"], False),
        (None, "None", True),
        (8, 9, False),
        ("x", 9, False),
    ],
)
def test_spellings_of_one_value(one: Any, other: Any, alike: bool) -> None:
    assert same(one, other) is alike


def test_an_explanation_names_flag_value_origin_and_reason() -> None:
    values = {"images_lock": {"vllm": {"tag": "v0.33.0"}}, "vllm_gpu_name": "NVIDIA H100", "vllm_gpu_memory_gib": 80}
    entry = {**ENTRY, "gpus": ["0"], "args": {"api-key": "hush", "max-model-len": 4096}, "profile": "interactive"}
    told = explanation(settings(entry, values), silent="the node was not asked")
    row = next(each for each in told["settings"] if each["flag"] == "max-num-seqs")
    assert (row["value"], row["origin"]) == (256, "profile interactive")
    assert told["gpu"] == {"name": "NVIDIA H100", "memory_bytes": 80 * GIB}
    page = text("gpu1", told)
    assert "hush" not in page + str(told)
    for words in (
        "gpu1: instance tiny, profile interactive",
        "vLLM 0.33.0 (tag v0.33.0) on NVIDIA H100 (80.0 GiB)",
        "max-num-seqs = 256    [profile interactive]",
        "enable-prefix-caching = on    [vLLM's default]",
        "api-key = (hidden)    [inventory]",
        "Not held against what runs: the node was not asked.",
    ):
        assert words in page, words
    assert max(map(len, page.splitlines()[1:])) <= 120


def test_an_explanation_tells_what_was_reported_and_no_secret() -> None:
    told = explanation(wanted(), facts(), start({**ARGUMENTS, "api_key": ["hush"]}))
    assert told["running"]["reported"]["max-num-seqs"] == {"log: non-default args": 4}
    assert told["running"]["reported"]["gpu-memory-utilization"] == {"vllm:cache_config_info": 0.92}
    assert "hush" not in str(told)


def test_an_explanation_tells_what_differs() -> None:
    good = text("gpu1", explanation(wanted(), facts(), start()))
    assert "vLLM 0.33.0+cpu reports 17 of these 19 settings, and all of them agree." in good
    bad = text("gpu1", explanation(wanted(), facts(max_model_len=1024, unseen=[{"what": "unit", "why": "late"}]), start()))
    assert "DIFFERS max-model-len: 2048 here, 1024 there (/v1/models)" in bad
    assert "Not seen: unit: late" in bad


def test_an_instance_is_chosen_by_its_name() -> None:
    entries = [{"name": "a"}, {"name": "b"}, "nonsense"]
    assert chosen(entries) == entries[:2]
    assert chosen(entries, "b") == [{"name": "b"}]
    assert chosen(None) == []
    with pytest.raises(ValueError, match="has no instance c; it has a, b"):
        chosen(entries, "c")
