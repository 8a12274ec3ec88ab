"""Values of flags: whether the parser of vLLM would take them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from vllm_node.serving.flags.known import NUMBERS, WHOLE
from vllm_node.serving.flags.names import Setting

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_WHOLE = re.compile(r"[+-]?\d+")
_HUMAN = re.compile(r"(\d+)(\.\d+)?([kKmMgGtT])")
_SCALES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_BOOLEANS = ("true", "false", "yes", "no", "on", "off", "1", "0")
_POSITIVE = frozenset(
    {
        "block-size",
        "data-parallel-size",
        "kv-cache-memory-bytes",
        "max-num-batched-tokens",
        "max-num-seqs",
        "pipeline-parallel-size",
        "stream-interval",
        "tensor-parallel-size",
    }
)
# What its default looks like says nothing about these.
_NOT_NUMBERS = frozenset({"optimization-level", "ssl-cert-reqs"})
_NOT_JSON = frozenset({"hf-overrides"})


def complaint(setting: Setting, *, sure: bool) -> tuple[str, str] | None:
    """(what is wrong, how to mend it) with the value of a flag, None when it is all right.

    With `sure` False choices are not judged: another version may take others.
    """
    flag, value, name = setting.flag, setting.value, setting.name
    if flag is None or setting.part:
        return None
    if flag.kind in ("pair", "switch"):
        return _switch(setting, flag.kind == "pair")
    if isinstance(value, bool):
        if flag.optional and value:
            return None
        form = f"--{name}" if value else f"--no-{name}"
        mend = f"Give it one, or null to leave it out: {form} ends vLLM."
        return f"{name} is {_told(value)}, and it takes a value", mend
    if isinstance(value, list | tuple):
        if not flag.several and not _is_json(flag.default):
            return f"{name} is a list, and it takes one value", "Give it one value."
        return _first(setting, list(value), sure=sure) if flag.several else None
    return _one(setting, value, sure=sure)


def number(value: Any) -> float | None:
    """The number that a value means, also as text and as 8k or 8K; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    text = str(value).strip()
    human = _HUMAN.fullmatch(text)
    if human:
        return float(human[1] + (human[2] or "")) * _SCALES[human[3]]
    return float(text) if _NUMBER.fullmatch(text) else None


def whole(value: Any) -> int | None:
    """The same for whole numbers."""
    found = number(value)
    return int(found) if found is not None and found == int(found) else None


def _switch(setting: Setting, pair: bool) -> tuple[str, str] | None:
    name, value = setting.name, setting.value
    if isinstance(value, bool):
        if pair or value:
            return None
        return f"{name} is false, and there is no --no-{name}", f"Write `{name}: null`, or take it out."
    if isinstance(value, str) and value.strip().lower() in _BOOLEANS:
        on = value.strip().lower() in ("true", "yes", "on", "1")
        return (
            f"{name} is the text {value!r}, and the flag takes no value (--{name} {value} ends vLLM)",
            f"Write `{name}: {'true' if on else 'false' if pair else 'null'}`, without quotes.",
        )
    return f"{name} is {_told(value)}, and the flag takes no value", f"Write `{name}: true`" + (
        " or `false`." if pair else ", or take it out."
    )


def _first(setting: Setting, values: list[Any], *, sure: bool) -> tuple[str, str] | None:
    return next((found for value in values if (found := _one(setting, value, sure=sure))), None)


def _one(setting: Setting, value: Any, *, sure: bool) -> tuple[str, str] | None:
    flag, name = setting.flag, setting.name
    assert flag is not None
    if flag.choices and not flag.open_choices:
        if sure and str(value) not in flag.choices:
            return f"{name} is {_told(value)}", f"It takes one of: {', '.join(flag.choices)}."
        return None
    if _is_number(flag.default, name) or flag.human:
        return _number(setting, value, human=flag.human)
    if _is_json(flag.default) and name not in _NOT_JSON and sure and isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return f"{name} is the text {value!r}, and it takes JSON", "Write a dictionary."
    if isinstance(value, Mapping) and flag.default is not None and not _is_json(flag.default) and not flag.several:
        return f"{name} is a dictionary, and it takes one value", "Give it one value."
    return None


def _number(setting: Setting, value: Any, *, human: bool) -> tuple[str, str] | None:
    name = setting.name
    found = number(value)
    if name == "max-model-len" and str(value).strip().lower() in ("auto", "-1"):
        return None
    if found is None:
        return f"{name} is {_told(value)}, and it takes a number", "Write a number" + (
            ", such as 8192 or 8k." if human else "."
        )
    if not human and _HUMAN.fullmatch(str(value).strip()):
        return f"{name} is {_told(value)}, and it takes no k, m or g", f"Write {found:.0f}."
    if name in WHOLE and not _HUMAN.fullmatch(str(value).strip()) and not _WHOLE.fullmatch(str(value).strip()):
        return f"{name} is {_told(value)}, and it takes a whole number", "Write a whole number."
    if name in _POSITIVE and found <= 0:
        return f"{name} is {_told(value)}", "Write a number above 0, or null to leave it out."
    if name == "gpu-memory-utilization" and not 0 < found <= 1:
        return f"{name} is {_told(value)}, and it is a share", "Write a number above 0 and up to 1, such as 0.9."
    return None


def _is_number(default: str | None, name: str) -> bool:
    if name in _NOT_NUMBERS:
        return False
    return name in NUMBERS or bool(default and _NUMBER.fullmatch(default))


def _is_json(default: str | None) -> bool:
    """Whether a default looks like a dictionary or like the object that one is made into."""
    return bool(default and re.match(r"\{|[A-Z]\w*\(", default))


def _told(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, repr(value)) if isinstance(value, bool) else repr(value)
