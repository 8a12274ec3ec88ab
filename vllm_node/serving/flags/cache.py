"""Flag tables of images, kept in the user's cache by digest: an image is asked once, wherever it runs.

A table is written beside its place and renamed. One that cannot be read, or of another format, counts as not there.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from vllm_node.paths import cache_dir
from vllm_node.serving.flags.page import Flag, FlagTable

# Raised when `Flag` or the way in which a page is read changes: tables of before are then read from the image again.
FORMAT = 1
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_BUILT_IN = Path(__file__).with_name("vllm-0.32.0.json")


def folder() -> Path:
    """Where the tables lie."""
    return cache_dir() / "flags"


def load(digest: str, place: Path | None = None) -> FlagTable | None:
    """The table of the image with that digest (`sha256:` and 64 hex digits), None where there is no usable one."""
    if not _DIGEST.fullmatch(digest):
        return None
    try:
        return from_text((_path(digest, place)).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def store(digest: str, table: FlagTable, place: Path | None = None) -> Path:
    """Keep a table; returns where it lies.

    Raises:
        ValueError: that is no digest.
        OSError: the cache cannot be written.
    """
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"no digest: {digest!r}")
    path = _path(digest, place)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=".flags-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(as_text(table))
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
    return path


@cache
def built_in() -> FlagTable:
    """The flags of the version that this project was written for, for planning without an image."""
    return from_text(_BUILT_IN.read_text(encoding="utf-8"))


def as_text(table: FlagTable) -> str:
    """A table as JSON, one flag a line; what is as it mostly is is left out."""
    lines = ",\n".join("  " + json.dumps(_as_dict(flag)) for flag in table.flags.values())
    return f'{{"format": {FORMAT}, "version": {json.dumps(table.version)}, "flags": [\n{lines}\n]}}\n'


def from_text(text: str) -> FlagTable:
    """The table out of `as_text`.

    Raises:
        ValueError: it is no table, or one of another format.
    """
    data = json.loads(text)
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise ValueError(f"no flag table of format {FORMAT}")
    try:
        flags = [_from_dict(entry) for entry in data["flags"]]
        return FlagTable({flag.name: flag for flag in flags}, data["version"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"a damaged flag table: {error}") from error


def _path(digest: str, place: Path | None) -> Path:
    return (place or folder()) / f"{digest.removeprefix('sha256:')}.json"


def _as_dict(flag: Flag) -> dict[str, Any]:
    usual = Flag(flag.name, flag.kind)
    told = {each.name: getattr(flag, each.name) for each in fields(Flag)}
    return {
        name: value for name, value in told.items() if name in ("name", "kind") or value != getattr(usual, name)
    }


def _from_dict(entry: Mapping[str, Any]) -> Flag:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    return Flag(**values)
