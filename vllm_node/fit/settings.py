"""What an instance asks vLLM for, as far as memory depends on it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_node.serving.defaults import memory_share
from vllm_node.serving.flags.known import Version

_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtKMGT]?)(?:i?[bB])?$")
_DECIMAL, _BINARY = "kmgt", "KMGT"


@dataclass(frozen=True)
class Settings:
    """Flags that are given; None where vLLM's own default holds. Sizes in bytes, lengths in tokens."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    max_model_len: int | None = None
    fits_itself: bool = False
    utilization: float | None = None
    kv_bytes: int | None = None
    blocks: int | None = None
    block_size: int | None = None
    kv_dtype: str = "auto"
    dtype: str | None = None
    quantization: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    eager: bool = False
    expert_parallel: bool = False
    hybrid: bool = True
    async_scheduling: bool = True
    prefix_caching: bool = True
    offload_bytes: int = 0
    cpu_kv_bytes: int | None = None
    encoder_data_parallel: bool = False
    text_only: bool = False
    untold: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs that these settings need."""
        return self.tp * self.pp * self.dp

    def share(self, version: Version | None) -> tuple[float, str]:
        """Share of a GPU's memory that vLLM takes, and where that comes from."""
        if self.utilization is not None:
            return self.utilization, "gpu-memory-utilization of the instance"
        how = "the default of this vLLM" if version else "the default of new releases; the version is not known"
        return memory_share(version), how


def read(args: Mapping[str, Any], env: Mapping[str, Any] | None = None) -> Settings:
    """Settings out of `args` and `env` of an instance.

    Raises:
        ValueError: a value that is no number where one belongs; the text names the flag.
    """
    given = {str(key).lstrip("-").replace("_", "-"): value for key, value in args.items() if value is not None}
    length = given.get("max-model-len")
    itself = str(length).strip() in ("-1", "auto")
    space = (env or {}).get("VLLM_CPU_KVCACHE_SPACE")
    return Settings(
        tp=_whole(given, "tensor-parallel-size", "tp") or 1,
        pp=_whole(given, "pipeline-parallel-size", "pp") or 1,
        dp=_whole(given, "data-parallel-size", "dp") or 1,
        max_model_len=None if itself else _whole(given, "max-model-len"),
        fits_itself=itself,
        utilization=_share(given),
        kv_bytes=_whole(given, "kv-cache-memory-bytes", "kv-cache-memory"),
        blocks=_whole(given, "num-gpu-blocks-override"),
        block_size=_whole(given, "block-size"),
        kv_dtype=str(given.get("kv-cache-dtype") or "auto"),
        dtype=None if given.get("dtype") in (None, "auto") else str(given["dtype"]),
        quantization=str(given["quantization"]) if given.get("quantization") else None,
        max_num_seqs=_whole(given, "max-num-seqs"),
        max_num_batched_tokens=_whole(given, "max-num-batched-tokens"),
        eager=_on(given, "enforce-eager"),
        expert_parallel=_on(given, "enable-expert-parallel"),
        hybrid=not (_on(given, "disable-hybrid-kv-cache-manager") or _on(given, "disable-sliding-window")),
        async_scheduling=given.get("async-scheduling") is not False and not _on(given, "no-async-scheduling"),
        prefix_caching=given.get("enable-prefix-caching") is not False and not _on(given, "no-enable-prefix-caching"),
        offload_bytes=int((_number(given, "cpu-offload-gb") or 0) * (1 << 30)),
        cpu_kv_bytes=None if space in (None, "") else _gib(space),
        encoder_data_parallel=str(given.get("mm-encoder-tp-mode")) == "data",
        text_only=_on(given, "language-model-only"),
        untold=tuple(_untold(given)),
    )


def _untold(given: Mapping[str, Any]) -> list[str]:
    found = []
    if given.get("speculative-config"):
        found.append("the draft model of speculative-config: its weights and its KV cache come on top")
    if _on(given, "enable-lora"):
        found.append("adapters (enable-lora): their weights come on top")
    if given.get("hf-overrides"):
        found.append("what hf-overrides changes in config.json")
    if (_whole(given, "decode-context-parallel-size", "dcp") or 1) > 1:
        found.append("decode-context-parallel-size: each GPU then keeps a part of the tokens only, so more fit")
    if given.get("load-format") not in (None, "auto", "safetensors", "hf"):
        found.append(f"what load-format {given['load-format']} makes of the weights")
    return found


def _value(given: Mapping[str, Any], *names: str) -> tuple[str, Any] | None:
    return next(((name, given[name]) for name in names if name in given), None)


def _number(given: Mapping[str, Any], name: str) -> float | None:
    if given.get(name) is None:
        return None
    try:
        return float(given[name])
    except (TypeError, ValueError):
        raise ValueError(f"{name}: {given[name]!r} is no number") from None


def _share(given: Mapping[str, Any]) -> float | None:
    found = _number(given, "gpu-memory-utilization")
    found = _number(given, "device-memory-utilization") if found is None else found
    if found is not None and not 0 < found <= 1:
        raise ValueError(f"gpu-memory-utilization: {found:g} is no share of a memory, which is above 0 and at most 1")
    return found


def _whole(given: Mapping[str, Any], *names: str) -> int | None:
    """A whole number above 0. vLLM reads 32k as 32000 and 32K as 32768."""
    found = _value(given, *names)
    if found is None:
        return None
    name, value = found
    match = _COUNT.match(str(value).strip()) if not isinstance(value, bool) else None
    number = int(float(match.group(1)) * _factor(match.group(2))) if match else 0
    if number < 1:
        raise ValueError(f"{name}: {value!r} is no whole number above 0")
    return number


def _factor(letter: str) -> int:
    if letter and letter in _DECIMAL:
        return int(1000 ** (1 + _DECIMAL.index(letter)))
    return int(1024 ** (1 + _BINARY.index(letter))) if letter else 1


def _gib(value: Any) -> int:
    try:
        number = int(str(value))
    except ValueError:
        raise ValueError(f"VLLM_CPU_KVCACHE_SPACE: {value!r} is no whole number of GiB") from None
    return number << 30


def _on(given: Mapping[str, Any], name: str) -> bool:
    return name in given and str(given[name]).strip().lower() not in ("false", "no", "off", "0")


def arguments(words: tuple[str, ...]) -> dict[str, Any]:
    """`KEY=VALUE` of a command line as `args` of an instance: JSON where it is some, a switch without `=`.

    Raises:
        ValueError: an empty key.
    """
    found: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not key.strip("- "):
            raise ValueError(f"{word!r} is no KEY=VALUE")
        try:
            value = json.loads(text) if equals else True
        except ValueError:
            value = text
        found[key.strip()] = value
    return found
