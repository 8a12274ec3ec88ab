"""The table of known last words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, cast

import yaml

Kind = Literal["cause", "general", "consequence"]

_FILE = Path(__file__).with_name("table.yml")


@dataclass(frozen=True)
class Word:
    """One entry, as the head of `table.yml` describes it; `group` is the heading above it."""

    id: str
    group: str
    says: re.Pattern[str]
    means: str
    cure: str
    kind: Kind = "cause"
    after: re.Pattern[str] | None = None
    again: bool = False


@cache
def words() -> tuple[Word, ...]:
    """All entries in the order of the file, in which the exact ones come before the general ones."""
    groups = yaml.safe_load(_FILE.read_text())
    return tuple(
        Word(
            entry["id"],
            group,
            re.compile(entry["says"]),
            entry["means"],
            entry["cure"],
            cast(Kind, entry.get("kind", "cause")),
            re.compile(entry["after"]) if "after" in entry else None,
            entry.get("again", False),
        )
        for group, entries in groups.items()
        for entry in entries
    )
