"""The text of `vllm serve --help=all`, read into a table of flags.

The page is the only list of flags that an image gives without a model. It tells names, choices and defaults, but no
types: what a default looks like is all that is known about the type of a value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# pair: --x and --no-x; switch: --x alone; value: --x VALUE.
Kind = Literal["pair", "switch", "value"]

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_SECTION = re.compile(r"^(\S[^:]*):$")
_ENTRY = re.compile(r"^  (-\S.*)$")
_OPTION = re.compile(r"(?:^|, )(-{1,2}[A-Za-z0-9][\w-]*)")
_CLOSED = re.compile(r"\{(.*)\}(.*)")
_SUGGESTED = re.compile(r"\[('.*')\]")
_DEFAULT = re.compile(r"\(default: ((?:[^()]|\([^()]*\))*)\)")
# A page with fewer flags is not the whole one: `--help` alone lists only the groups.
_FEWEST = 40


class PageError(ValueError):
    """The text is not the whole help page of `vllm serve`."""


@dataclass(frozen=True)
class Flag:
    """One flag. `name`, `aliases` and `short` are without leading dashes; a pair's `no-` form is no alias.

    `choices` is None where any value is taken; `open_choices` tells that others than those listed are taken as well.
    `human` marks numbers that may be written as 8k; `default` is the page's own word for it.
    """

    name: str
    kind: Kind
    aliases: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    choices: tuple[str, ...] | None = None
    open_choices: bool = False
    several: bool = False
    optional: bool = False
    human: bool = False
    default: str | None = None
    section: str = ""


@dataclass(frozen=True)
class FlagTable:
    """All flags of one image. `version` is that of the vLLM in it, None where nothing told it."""

    flags: Mapping[str, Flag]
    version: str | None = None
    _by_any_name: dict[str, Flag] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Collect every name by which a flag can be written."""
        known = {alias: flag for flag in self.flags.values() for alias in flag.aliases}
        object.__setattr__(self, "_by_any_name", {**known, **self.flags})

    def find(self, name: str) -> Flag | None:
        """The flag that is written so behind two dashes; a short name needs one dash, so it is none of these."""
        return self._by_any_name.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        """Names as they are written after two dashes."""
        return tuple(self.flags)


def parse(text: str, version: str | None = None) -> FlagTable:
    """The flags of a help page.

    Raises:
        PageError: there are too few flags for a whole page; the message shows how the text begins.
    """
    found: dict[str, Flag] = {}
    section = ""
    lines = _ESCAPES.sub("", text).splitlines()
    for number, line in enumerate(lines):
        heading = _SECTION.match(line)
        entry = _ENTRY.match(line)
        if heading:
            section = heading[1]
        elif entry:
            # The help begins on the same line where the names are short; two blanks part them.
            invocation, _, rest = entry[1].partition("  ")
            flag = _flag(invocation, " ".join([rest, *_help(lines, number + 1)]), section)
            if flag is not None and flag.name != "help":
                found[flag.name] = flag
    if len(found) < _FEWEST:
        begin = " ".join(text.split())[:200] or "(nothing)"
        raise PageError(f"no help page of vllm serve: {len(found)} flags in a text that begins with: {begin}")
    return FlagTable(found, version)


def _help(lines: list[str], start: int) -> list[str]:
    found = []
    for line in lines[start:]:
        if _ENTRY.match(line) or (line and not line[0].isspace()):
            break
        found.append(line.strip())
    return found


def _flag(invocation: str, told: str, section: str) -> Flag | None:
    marks = list(_OPTION.finditer(invocation))
    options = [mark[1] for mark in marks]
    long = [option[2:] for option in options if option.startswith("--")]
    if not long:
        return None
    name = long[0]
    negated = {f"no-{each}" for each in long}
    ends = [mark.start() for mark in marks[1:]] + [len(invocation)]
    values = [invocation[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)]
    # Newer argparse writes the placeholder once, behind the last name.
    value = next((each for each in values if each), "")
    choices, open_choices = _choices(value)
    defaults = _DEFAULT.findall(" ".join(told.split()))
    kind: Kind = "value" if value else "pair" if negated & set(long) else "switch"
    return Flag(
        name=name,
        kind=kind,
        aliases=tuple(each for each in long[1:] if each not in negated),
        short=tuple(option[1:] for option in options if not option.startswith("--")),
        choices=choices,
        open_choices=open_choices,
        several=value.endswith("...]"),
        optional=value.startswith("[") and not _SUGGESTED.fullmatch(value),
        human="human-readable" in told,
        default=defaults[-1] if defaults else None,
        section=section,
    )


def _choices(value: str) -> tuple[tuple[str, ...] | None, bool]:
    suggested = _SUGGESTED.fullmatch(value)
    if suggested:
        return tuple(re.findall(r"'([^']*)'", suggested[1])), True
    # Of `{a,b} [{a,b} ...]` the first says all.
    once = value.partition(" [")[0]
    closed = _CLOSED.fullmatch(once)
    if closed:
        return tuple(closed[1].split(",")), bool(closed[2].strip())
    return None, False
