"""Small helpers to read a snapshot, in which everything may be missing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Snapshot = Mapping[str, Any]
Version = tuple[int, ...]


def at(data: Any, *keys: str) -> Any:
    """Value below nested keys, or None where one of them is missing."""
    for key in keys:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def rows(data: Any, *keys: str) -> Iterator[Mapping[str, Any]]:
    """The mappings in the list below nested keys; none where the list is missing."""
    found = at(data, *keys)
    if isinstance(found, list | tuple):
        yield from (row for row in found if isinstance(row, Mapping))


def words(data: Any, *keys: str) -> list[str]:
    """The texts in the list below nested keys; none where the list is missing."""
    found = at(data, *keys)
    return [word for word in found if isinstance(word, str)] if isinstance(found, list | tuple) else []


def mapping(data: Any, *keys: str) -> Mapping[str, Any]:
    """The mapping below nested keys, an empty one for anything else."""
    found = at(data, *keys)
    return found if isinstance(found, Mapping) else {}


def text(data: Any, *keys: str) -> str | None:
    """The text below nested keys, None for anything else."""
    found = at(data, *keys)
    return found if isinstance(found, str) else None


def number(data: Any, *keys: str) -> float | None:
    """The number below nested keys, None for anything else."""
    found = at(data, *keys)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def version(value: Any) -> Version | None:
    """Leading numbers of a version ("5.4.2-rhel" is (5, 4, 2)), None when there is none."""
    match = re.match(r"\s*v?(\d{1,6}(?:\.\d{1,6})*)", value) if isinstance(value, str) else None
    return tuple(int(part) for part in match.group(1).split(".")) if match else None


def gib(size_bytes: float) -> str:
    """A size for people."""
    return f"{size_bytes / (1 << 30):.1f} GiB"


def listed(names: Any, most: int = 6) -> str:
    """Names in one line, a long list cut short."""
    found = [str(name) for name in names]
    return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")


def unseen(snapshot: Snapshot, what: str) -> bool:
    """Whether the snapshot says that it could not look at `what`."""
    return any(row.get("what") == what for row in rows(snapshot, "unseen"))


def installed(snapshot: Snapshot, image: str) -> bool:
    """Whether the node holds an image under the name `repository@sha256:...`."""
    return any(image in words(row, "digests") for row in rows(snapshot, "images"))
