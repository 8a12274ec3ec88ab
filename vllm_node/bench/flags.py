"""The flags that vLLM runs with, and who set each of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_node.units import vllm_args

HIDDEN = "(hidden)"
INVENTORY, ROLE, ELSEWHERE = "inventory", "role default", "elsewhere"
# Of what ends like this the value is never shown; `max-num-batched-tokens` ends otherwise.
_SECRET = re.compile(r"(^|-)(key|keys|token|secret|password|passphrase)$")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")


def role_args(instance: Mapping[str, Any]) -> dict[str, Any]:
    """Flags that the role `vllm` gives an instance; None stands for a value that only the role knows."""
    return {
        "served-model-name": instance.get("served_model_name") or instance.get("name"),
        "host": "127.0.0.1",
        "port": instance.get("port"),
        "shutdown-timeout": None,
        "disable-uvicorn-access-log": True,
        "uvicorn-log-level": "warning",
    }


def effective(
    command: Sequence[str] | None, *, inventory: Mapping[str, Any], role: Mapping[str, Any]
) -> dict[str, Any]:
    """flags: [{flag, value, origin}], `flags_how`, and `not_in_effect`: what is wanted and does not run.

    command: words of the command line that runs; None leaves only what is wanted, which is inferred. A value is a list
    of words, empty for a switch. origin: `elsewhere` when neither the inventory nor the role explains flag and value.
    """
    of_inventory = parse(vllm_args(inventory))
    of_role = parse(vllm_args({flag: value for flag, value in role.items() if value is not None}))
    overridden = {*map(name_of, of_inventory), *(name_of(f"--{flag}") for flag in inventory)}
    wanted = {**{flag: value for flag, value in of_role.items() if name_of(flag) not in overridden}, **of_inventory}
    running = wanted if command is None else parse(command)
    known_to_role = {name_of(f"--{flag}") for flag, value in role.items() if value is None} - overridden
    flags = []
    for flag, value in running.items():
        if flag in wanted and (wanted[flag] == value):
            origin = INVENTORY if flag in of_inventory else ROLE
        else:
            origin = ROLE if name_of(flag) in known_to_role else ELSEWHERE
        flags.append({"flag": flag, "value": shown(flag, value), "origin": origin})
    missing = [
        {"flag": flag, "value": shown(flag, value)} for flag, value in wanted.items() if running.get(flag) != value
    ]
    how = "inferred: what the inventory and the role ask for" if command is None else "measured: the command line"
    return {"flags": flags, "flags_how": how, "not_in_effect": missing}


def parse(words: Sequence[str]) -> dict[str, list[str]]:
    """Flag → its words, of a command line; what stands before the first flag is no flag's."""
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for word in map(str, words):
        flag, joined, value = word.partition("=")
        if _FLAG.fullmatch(flag):
            # vLLM takes either spelling.
            current = found[flag.replace("_", "-")] = [value] if joined else []
        elif current is not None:
            current.append(word)
    return found


def name_of(flag: str) -> str:
    """A switch and its opposite are one setting: `--no-x` and `--x`."""
    return flag.replace("_", "-").removeprefix("--").removeprefix("no-")


def shown(flag: str, value: Sequence[str]) -> list[str]:
    """The value as it may be kept: a secret is not."""
    return [HIDDEN] if value and _SECRET.search(name_of(flag)) else list(value)
