"""Names of images: where a node fetches what upstream calls by its own name, and which rules podman has for a name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_HOST = r"(?=[^/]*[.:]|localhost)[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:\d+)?"
_PLACE = re.compile(rf"{_HOST}(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*")


@dataclass(frozen=True)
class Mirror:
    """Images whose names begin with `upstream` are fetched from `mirror`; both are a host with or without a path."""

    upstream: str
    mirror: str


def is_place(text: str) -> bool:
    """Whether this is a registry's host, with or without a path below it: no scheme, no tag, no digest."""
    return bool(_PLACE.fullmatch(text))


def mirrors(entries: Any) -> tuple[Mirror, ...]:
    """The mirrors in a list of {upstream, mirror}. What has another form is left out: preflight tells of it."""
    found = entries if isinstance(entries, list | tuple) else []
    return tuple(
        Mirror(each["upstream"], each["mirror"])
        for each in found
        if isinstance(each, Mapping) and all(isinstance(each.get(key), str) for key in ("upstream", "mirror"))
    )


def governing(name: str, places: Iterable[str]) -> str | None:
    """The longest of `places` that holds a name, as podman chooses a table of registries.conf."""
    fits = [place for place in places if name == place or name.startswith(f"{place}/")]
    return max(fits, key=len, default=None)


def fetched_from(repository: str, known: Iterable[Mirror]) -> str:
    """The repository that a node asks for an image of `repository`: the mirror's, or itself."""
    table = {each.upstream: each.mirror for each in known}
    upstream = governing(repository, table)
    return repository if upstream is None else table[upstream] + repository[len(upstream) :]


def through_mirrors(lock: Any, entries: Any) -> Any:
    """An image lock with the repositories that a node asks. What has another form stays as it is."""
    if not isinstance(lock, Mapping):
        return lock
    known = mirrors(entries)
    return {
        name: {**entry, "repository": fetched_from(entry["repository"], known)}
        if isinstance(entry, Mapping) and isinstance(entry.get("repository"), str)
        else entry
        for name, entry in lock.items()
    }


def scopes(repository: str, digest: str) -> Iterator[str]:
    """Scopes of a trust policy that hold an image, the one that counts first: containers-policy.json(5)."""
    yield f"{repository}@{digest}"
    name = repository
    while name:
        yield name
        name = name.rpartition("/")[0]
    host = repository.partition("/")[0].partition(":")[0]
    while "." in host:
        host = host.partition(".")[2]
        yield f"*.{host}"
    yield ""
