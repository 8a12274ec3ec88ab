"""What a running vLLM reports of its settings, and where that differs from what the inventory comes to.

vLLM names no one place for all of them: the command line of its container, two lines of its log, the labels of one
metric and its API tell a part each. What none of them tells is unobservable, and no difference.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_node.bench.flags import HIDDEN, parse, shown
from vllm_node.serving.effective import Effective
from vllm_node.serving.flags import cache
from vllm_node.serving.flags.known import version_of, written
from vllm_node.serving.settings import DEFAULT, Setting, number
from vllm_node.units import vllm_args

COMMAND, ARGUMENTS, ENGINE, METRIC, API = (
    "command line",
    "log: non-default args",
    "log: configuration of the engine",
    "vllm:cache_config_info",
    "/v1/models",
)
# Names that the configuration of the engine has in the log, and the flags that they are.
_ENGINE = {
    "max_seq_len": "max-model-len",
    "tensor_parallel_size": "tensor-parallel-size",
    "pipeline_parallel_size": "pipeline-parallel-size",
    "data_parallel_size": "data-parallel-size",
    "enforce_eager": "enforce-eager",
    "kv_cache_dtype": "kv-cache-dtype",
    "seed": "seed",
    "trust_remote_code": "trust-remote-code",
    "quantization": "quantization",
    "enable_prefix_caching": "enable-prefix-caching",
    "enable_chunked_prefill": "enable-chunked-prefill",
}
_METRIC = {
    "gpu_memory_utilization": "gpu-memory-utilization",
    "enable_prefix_caching": "enable-prefix-caching",
    "cache_dtype": "kv-cache-dtype",
}
_ARGUMENTS = re.compile(r"non-default args: (\{.*\})\s*$")
_PAIR = re.compile(r"'([A-Za-z_]\w*)': ")
_CHUNKED = re.compile(r"max_num_batched_tokens=(\d+)")
_VERSION = re.compile(r"Initializing a V1 LLM engine \(v([^)]+)\)")


@dataclass(frozen=True)
class Told:
    """A value with its place."""

    value: Any
    place: str


@dataclass(frozen=True)
class Reported:
    """`told` has all that was told of each flag; `arguments` is None where their line was not seen."""

    told: Mapping[str, tuple[Told, ...]] = field(default_factory=dict)
    arguments: Mapping[str, Any] | None = None
    command: tuple[str, ...] | None = None
    version: str | None = None
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True)
class Difference:
    """A flag that vLLM reports otherwise than the inventory has it."""

    flag: str
    wanted: Any
    reported: Any
    place: str


def reported(facts: Mapping[str, Any], start: Mapping[str, Any]) -> Reported:
    """What vLLM tells. facts: of the module `instance_facts`; start: of `instance_start`."""
    told: dict[str, list[Told]] = {}
    arguments = _arguments(start.get("arguments"))
    for name, value in (arguments or {}).items():
        told.setdefault(name.replace("_", "-"), []).append(Told(value, ARGUMENTS))
    for name, flag in _ENGINE.items():
        found = re.search(rf"\b{name}=('[^']*'|[^,]+)", start.get("engine") or "")
        if found:
            told.setdefault(flag, []).append(Told(_literal(found[1]), ENGINE))
    chunked = _CHUNKED.search(start.get("chunked") or "")
    if chunked:
        told.setdefault("max-num-batched-tokens", []).append(Told(int(chunked[1]), ENGINE))
    for label, flag in _METRIC.items():
        value = (facts.get("cache_config") or {}).get(label)
        if value is not None:
            told.setdefault(flag, []).append(Told(_literal(value), METRIC))
    if facts.get("max_model_len") is not None:
        told.setdefault("max-model-len", []).append(Told(facts["max_model_len"], API))
    if facts.get("served_models"):
        told.setdefault("served-model-name", []).append(Told(list(facts["served_models"]), API))
    version = _VERSION.search(start.get("engine") or "")
    unseen = [f"{row.get('what')}: {row.get('why')}" for row in (*_rows(facts), *_rows(start))]
    return Reported(
        told={flag: tuple(values) for flag, values in told.items()},
        arguments=arguments,
        command=tuple(map(str, facts["command"])) if facts.get("command") else None,
        version=facts.get("version") or (version[1] if version else None),
        unseen=tuple(unseen),
    )


def differences(found: Effective, seen: Reported) -> list[Difference]:
    """All of them; empty also where nothing was seen."""
    result = [*_version(found, seen), *_command(found, seen)]
    for setting in (*found.settings, *found.defaults):
        result += _of_flag(setting, seen)
    return result


def observed(found: Effective, seen: Reported) -> int:
    """How many of the settings, defaults among them, vLLM tells anything of."""
    return sum(bool(_values(each, seen)) for each in (*found.settings, *found.defaults))


def _values(setting: Setting, seen: Reported) -> tuple[Told, ...]:
    told = seen.told.get(setting.flag, ())
    if told or seen.arguments is None or setting.origin == DEFAULT or setting.value is None:
        return told
    # It was given and is not among what differs from vLLM's own: then it is that.
    usual = cache.built_in().find(setting.flag)
    if usual is None or (usual.default is None and usual.kind == "value"):
        return ()
    return (Told(False if usual.default is None else _literal(usual.default), f"{ARGUMENTS}, which does not list it"),)


def _of_flag(setting: Setting, seen: Reported) -> Iterator[Difference]:
    if setting.value is None or secret(setting.flag):
        return  # left to vLLM, or not for anybody to see
    if setting.flag == "kv-cache-dtype" and setting.value == "auto":
        return  # vLLM tells what it made of that
    for told in _values(setting, seen):
        # Adapters are served under names of their own, beside the model's.
        served = told.place == API and isinstance(told.value, list) and setting.value in told.value
        if not served and not same(setting.value, told.value):
            yield Difference(setting.flag, setting.value, told.value, told.place)


def _version(found: Effective, seen: Reported) -> Iterator[Difference]:
    wanted, running = found.place.version, version_of(seen.version)
    if wanted and running and running[: len(wanted)] != wanted[: len(running)]:
        yield Difference("(version)", f"{written(wanted)}, by the tag {found.place.tag}", seen.version, "/version")


def _command(found: Effective, seen: Reported) -> Iterator[Difference]:
    """The words of the command line against those that would be written now."""
    if seen.command is None:
        return
    wanted, running = parse(vllm_args(found.args)), parse(seen.command)
    for flag in dict.fromkeys((*wanted, *running)):
        if wanted.get(flag) != running.get(flag) and running.get(flag) != [HIDDEN]:
            yield Difference(flag.removeprefix("--"), _words(flag, wanted), _words(flag, running), COMMAND)


def _words(flag: str, words: Mapping[str, Sequence[str]]) -> str | None:
    return " ".join(shown(flag, words[flag])) if flag in words else None


def same(wanted: Any, told: Any) -> bool:
    """Whether two spellings mean one value: 0.9 and "0.90", true and "True", "4k" and 4000, x and [x]."""
    if isinstance(told, list) and not isinstance(wanted, list) and len(told) == 1:
        return same(wanted, told[0])
    if isinstance(wanted, list) and not isinstance(told, list) and len(wanted) == 1:
        return same(wanted[0], told)
    if isinstance(wanted, list | Mapping) or isinstance(told, list | Mapping):
        return _json(wanted) == _json(told)
    if str(wanted).lower() == str(told).lower():
        return True
    if isinstance(wanted, bool) or isinstance(told, bool):
        return False
    whole = number(wanted), number(told)
    if None not in whole:
        return whole[0] == whole[1]
    try:
        return float(wanted) == float(told)
    except (TypeError, ValueError):
        return False


def secret(flag: str) -> bool:
    """Whether the value of a flag is not to be shown."""
    return shown(f"--{flag}", ["x"]) == [HIDDEN]


def _json(value: Any) -> str:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return str(value)
    return json.dumps(value, sort_keys=True, default=str)


def _arguments(line: str | None) -> dict[str, Any] | None:
    """The dictionary of the line; a value that is no plain one of Python is kept as its text."""
    match = _ARGUMENTS.search(line or "")
    if match is None:
        return None
    try:
        return dict(ast.literal_eval(match[1]))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        inner = match[1][1:-1]
        parts = _PAIR.split(inner)[1:]
        names, values = parts[::2], parts[1::2]
        return {name: _literal(value.strip().rstrip(",")) for name, value in zip(names, values, strict=True)}


def _literal(text: Any) -> Any:
    try:
        return ast.literal_eval(text) if isinstance(text, str) else text
    except (ValueError, SyntaxError):
        return text


def _rows(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in answer.get("unseen") or [] if isinstance(row, Mapping)]

