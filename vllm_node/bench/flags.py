"""The flags that vLLM runs with, and who set each of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_node.serving.effective import effective as settings
from vllm_node.serving.place import place_of
from vllm_node.serving.settings import INVENTORY as OF_SITE
from vllm_node.serving.settings import OURS
from vllm_node.units import vllm_args

HIDDEN = "(hidden)"
INVENTORY, ROLE, ELSEWHERE = "inventory", "role default", "elsewhere"
# Of what ends like this the value is never shown; `max-num-batched-tokens` ends otherwise.
_SECRET = re.compile(r"(^|-)(key|keys|token|secret|password|passphrase)$")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")


def role_args(
    instance: Mapping[str, Any], lock: Mapping[str, Any] | None = None, snapshot: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Flags that the role `vllm` gives an instance, its profile's among them, and who said each: (values, origins).

    None stands for a value that only the role knows. lock: `images_lock`; snapshot: of `node_snapshot`.
    """
    found = settings(instance, place_of(instance, lock, snapshot)).settings
    given = {each.flag: each for each in found if each.origin != OF_SITE}
    values = {flag: None if flag == "shutdown-timeout" else each.value for flag, each in given.items()}
    return values, {flag: each.origin for flag, each in given.items() if each.origin != OURS}


def effective(
    command: Sequence[str] | None,
    *,
    inventory: Mapping[str, Any],
    role: Mapping[str, Any],
    origins: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """flags: [{flag, value, origin}], `flags_how`, and `not_in_effect`: what is wanted and does not run.

    command: words of the command line that runs; None leaves only what is wanted, which is inferred. A value is a list
    of words, empty for a switch. origin: `elsewhere` when neither the inventory nor the role explains flag and value;
    `origins` names those of the role's flags that come from a profile.
    """
    of_profile = origins or {}
    of_inventory = parse(vllm_args(inventory))
    of_role = parse(vllm_args({flag: value for flag, value in role.items() if value is not None}))
    overridden = {*map(name_of, of_inventory), *(name_of(f"--{flag}") for flag in inventory)}
    wanted = {**{flag: value for flag, value in of_role.items() if name_of(flag) not in overridden}, **of_inventory}
    running = wanted if command is None else parse(command)
    known_to_role = {name_of(f"--{flag}") for flag, value in role.items() if value is None} - overridden
    flags = []
    for flag, value in running.items():
        if flag in wanted and (wanted[flag] == value):
            origin = INVENTORY if flag in of_inventory else of_profile.get(name_of(flag), ROLE)
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
