"""Names of flags: which flag a key of `args` means, and what to write where it means none."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from vllm_node.serving.flags import known
from vllm_node.serving.flags.page import Flag, FlagTable
from vllm_node.serving.flags.problems import Problem


@dataclass(frozen=True)
class Source:
    """Flags to judge by. `sure` is False where they are those of another version than the image's."""

    table: FlagTable
    version: known.Version | None
    sure: bool
    of_image: bool

    @property
    def told(self) -> str:
        """For sentences: whose flags these are."""
        if self.of_image:
            return f"vLLM {self.table.version or ''} of this image".replace("  ", " ")
        return f"vLLM {known.written(self.version)}" if self.version else "vLLM of today"


@dataclass(frozen=True)
class Setting:
    """A key of `args` with its flag. `name` is the flag's name, `part` what stands behind a dot, `value` the site's.

    `flag` is None where the flag is one that this version has and that the table does not describe.
    """

    key: str
    name: str
    part: str
    value: Any
    flag: Flag | None


def resolve(key: str, value: Any, source: Source) -> Setting | Problem:
    """The flag that `key` means, or what is wrong with the key."""
    bare = key.lstrip("-")
    if "=" in bare:
        name, _, text = bare.partition("=")
        return _unknown(
            key, f"{key} carries a value in its name", f"Write `{name}: {_plain(text)}`.", name, source, sure=True
        )
    base, dot, part = bare.partition(".")
    name = base.replace("_", "-").rstrip("+")
    if bare != key:
        mend = f"Write {bare}: the dashes are added."
        return _unknown(key, f"{key} has dashes in front", mend, name, source, sure=True)
    flag = source.table.find(name)
    if flag is None and name.startswith("no-"):
        pair = source.table.find(name[3:])
        if pair is not None and pair.kind == "pair" and value is True:
            return Setting(key, pair.name, "", False, pair)
        if pair is not None:
            seen = f"{key} is {pair.name} switched off"
            return _unknown(key, seen, f"Write `{pair.name}: false`.", pair.name, source)
    if not source.of_image:
        entry = known.gone(name, source.version)
        if entry is not None and (flag is None or source.version is not None):
            return _gone(key, name, entry, source)
        since = known.too_new(name, source.version) if source.version else None
        if since:
            return _too_new(key, name, since, source)
        if flag is None and name in {*known.GONE, *known.NEW}:
            return Setting(key, name, dot + part, value, None)
    if flag is not None:
        return Setting(key, flag.name, dot + part, value, flag)
    if name in known.GONE:
        return _gone(key, name, known.GONE[name], source)
    if name in known.NEW:
        return _too_new(key, name, known.NEW[name], source)
    return _nearest(key, name, source)


def _nearest(key: str, name: str, source: Source) -> Problem:
    names = [*source.table.names, *(alias for flag in source.table.flags.values() for alias in flag.aliases)]
    short = [flag.name for flag in source.table.flags.values() if name in flag.short]
    begun = [each for each in names if each.startswith(name)]
    alike = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    right = next(iter(short or (begun if len(begun) == 1 else []) or alike), None)
    if right is None:
        mend = "`vllm serve --help=all` of the image lists all flags; take this one out, or correct its name."
    else:
        mend = f"Write {right}."
    if not short and len(begun) == 1:
        return Problem(
            "unknown",
            "warn",
            key,
            f"{key} is short for {right}, which works only until another flag begins in the same way",
            mend,
            right,
        )
    return _unknown(key, f"{source.told} has no flag {name}", mend, right, source)


def _unknown(
    key: str, seen: str, mend: str, right: str | None, source: Source, *, sure: bool = False
) -> Problem:
    level = "fail" if source.sure or sure else "warn"
    if level == "warn":
        seen += f" as far as is known (the flags of {source.table.version} and what changed)"
    return Problem("unknown", "fail" if level == "fail" else "warn", key, seen, mend, right)


def _gone(key: str, name: str, entry: known.Gone, source: Source) -> Problem:
    since = f" (gone since {known.written(entry.since)})" if entry.since else ""
    # Without a version it may be one that still has it.
    level = "fail" if source.of_image or source.version else "warn"
    return Problem(
        "gone",
        "fail" if level == "fail" else "warn",
        key,
        f"{source.told} has no flag {name}{since}",
        entry.instead,
        entry.renamed,
    )


def _too_new(key: str, name: str, since: known.Version, source: Source) -> Problem:
    return Problem(
        "new",
        "fail",
        key,
        f"{name} came with vLLM {known.written(since)}; {source.told} does not have it",
        f"Write `{name}: null`, which leaves it out, or lock an image of {known.written(since)} or later.",
        name,
    )


def _plain(text: str) -> str:
    return text.lower() if text.lower() in ("true", "false") else text
