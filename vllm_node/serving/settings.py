"""One flag of an instance with its origin, and the site's own args whichever way they are spelt."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

OURS, INVENTORY, DEFAULT = "vllm-node", "inventory", "vLLM's default"
TOKENS, SEQS = "max-num-batched-tokens", "max-num-seqs"
_NUMBER = re.compile(r"(\d+)([kmgKMG]?)")
_SUFFIX = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class Setting:
    """One flag. `key` is how it is written, `flag` its name; a `value` of None is a flag that is left out on purpose.

    origin: `vllm-node`, `profile NAME`, `inventory` or `vLLM's default`.
    """

    key: str
    flag: str
    value: Any
    origin: str
    reason: str

    @property
    def written(self) -> Any:
        """The value as it goes with `key`, which may be the flag's opposite."""
        return not self.value if isinstance(self.value, bool) and _opposite(self.key, self.flag) else self.value


@dataclass(frozen=True)
class LeftOut:
    """A flag that vllm-node or the profile would have set, and why it does not."""

    flag: str
    reason: str


class Site:
    """The `args` of an instance by the names of their flags. Later spellings of one flag win."""

    def __init__(self, args: Any) -> None:
        """Takes what the inventory has; what is no mapping holds nothing."""
        self._given: dict[str, tuple[str, Any]] = {}
        for key, value in args.items() if isinstance(args, Mapping) else ():
            flag, meant = name_of(str(key), value)
            self._given[flag] = (str(key), meant)

    def __contains__(self, flag: str) -> bool:
        """Whether the site says anything of a flag."""
        return flag in self._given

    def __iter__(self) -> Iterator[tuple[str, str, Any]]:
        """(flag, key as written, value)."""
        return ((flag, key, value) for flag, (key, value) in self._given.items())

    def value(self, flag: str) -> Any:
        """What the site says of a flag; None where it says nothing."""
        return self._given[flag][1] if flag in self._given else None

    def number(self, flag: str) -> int | None:
        """The same, where it is a whole number."""
        return number(self.value(flag))


def name_of(key: str, value: Any = None) -> tuple[str, Any]:
    """The flag that a key means, whichever way it is spelt, and its value; `no-x: true` is `x: false`."""
    name = key.lstrip("-").replace("_", "-")
    return (name[3:], False) if name.startswith("no-") and value is True else (name, value)


def number(value: Any) -> int | None:
    """A whole number as vLLM takes it (4096, "4096", "4k"); None for anything else."""
    match = _NUMBER.fullmatch(str(value)) if isinstance(value, int | str) and not isinstance(value, bool) else None
    return int(match[1]) * _SUFFIX[match[2]] if match else None


def _opposite(key: str, flag: str) -> bool:
    return key.lstrip("-").replace("_", "-") == f"no-{flag}"
