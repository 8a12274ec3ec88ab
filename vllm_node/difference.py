"""The difference between two snapshots of a node, in what a teardown must leave as it was found.

What moves by itself is not compared: times, free space, memory, process ids, models, the registry,
ephemeral UDP ports. A part that one of the snapshots could not see is a difference of its own, because an
empty difference must mean that everything was looked at.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vllm_node.preflight.reading import Snapshot, at, rows, words

UNSEEN = "(could not be seen)"
ABSENT = "(absent)"

Items = Mapping[str, str]
"""One area: items that can be compared, each with its state as text."""

Reader = Callable[[Snapshot], Items | None]
"""Takes one area out of a snapshot; None when the snapshot could not see it."""


@dataclass(frozen=True)
class Entry:
    """One item that is not as it was found; `as_found` and `now` are texts, "(absent)" for nothing."""

    area: str
    item: str
    as_found: str
    now: str


@dataclass(frozen=True)
class Difference:
    """What differs. `left_over` must be empty for a certificate; `kept` was kept on purpose."""

    left_over: tuple[Entry, ...] = ()
    kept: tuple[Entry, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether the node is as it was found, but for what was kept on purpose."""
        return not self.left_over

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "clean": self.clean,
            "left_over": [asdict(entry) for entry in self.left_over],
            "kept": [asdict(entry) for entry in self.kept],
        }


def difference(as_found: Snapshot, now: Snapshot, kept: Sequence[str] = ()) -> Difference:
    """Compare two snapshots of one node.

    `kept` lists what stays on purpose, as `area:item` with shell wildcards ("files:/etc/cdi/nvidia.yaml",
    "packages:*", "files:/srv/data/*").
    """
    found = [entry for area, read in AREAS.items() for entry in _compare(area, read(as_found), read(now))]
    on_purpose = [entry for entry in found if _matches(entry, kept)]
    return Difference(
        left_over=tuple(entry for entry in found if entry not in on_purpose),
        kept=tuple(on_purpose),
    )


def _matches(entry: Entry, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(f"{entry.area}:{entry.item}", pattern) for pattern in patterns)


def _compare(area: str, before: Items | None, after: Items | None) -> Iterable[Entry]:
    if before is None or after is None:
        if before is not after:
            yield Entry(area, "*", UNSEEN if before is None else "seen", UNSEEN if after is None else "seen")
        elif area not in _MAY_BE_UNSEEN:
            yield Entry(area, "*", UNSEEN, UNSEEN)
        return
    for item in sorted({*before, *after}):
        old, new = before.get(item, ABSENT), after.get(item, ABSENT)
        if old != new:
            yield Entry(area, item, old, new)


def _by(key: str, *path: str, state: Callable[[Mapping[str, Any]], str] | None = None) -> Reader:
    """Reader of a list of mappings: items are named by `key`, their state is a text made of each."""

    def read(snapshot: Snapshot) -> Items | None:
        if at(snapshot, *path) is None:
            return None
        return {str(row.get(key)): state(row) if state else "present" for row in rows(snapshot, *path)}

    return read


def _names(*path: str) -> Reader:
    """Reader of a list of texts."""

    def read(snapshot: Snapshot) -> Items | None:
        return None if at(snapshot, *path) is None else dict.fromkeys(words(snapshot, *path), "present")

    return read


def _texts(*path: str) -> Reader:
    """Reader of a mapping of texts."""

    def read(snapshot: Snapshot) -> Items | None:
        found = at(snapshot, *path)
        return {str(key): str(value) for key, value in found.items()} if isinstance(found, Mapping) else None

    return read


def _value(*path: str) -> Reader:
    """Reader of one value."""

    def read(snapshot: Snapshot) -> Items | None:
        found = at(snapshot, *path)
        return None if found is None else {path[-1]: str(found)}

    return read


def _ports(snapshot: Snapshot) -> Items | None:
    if at(snapshot, "ports") is None:
        return None
    first = _first_ephemeral(snapshot)
    return {
        f"{row.get('protocol')} {row.get('address')} {row.get('port')}": "open"
        for row in rows(snapshot, "ports")
        # A client's UDP socket looks like a listener, and has a number from this range.
        if row.get("protocol") == "tcp" or (isinstance(row.get("port"), int) and row["port"] < first)
    }


def _first_ephemeral(snapshot: Snapshot) -> int:
    settings = at(snapshot, "sysctl")
    span = settings.get("net.ipv4.ip_local_port_range") if isinstance(settings, Mapping) else None
    first = str(span or "").split()[:1]
    return int(first[0]) if first and first[0].isdigit() else 32768


def _units(snapshot: Snapshot) -> Items | None:
    if at(snapshot, "units", "toolkit") is None:
        return None
    return {str(row.get("name")): str(row.get("active")) for row in rows(snapshot, "units", "toolkit")}


def _service_states(snapshot: Snapshot) -> Items | None:
    watched = at(snapshot, "units", "watched")
    if not isinstance(watched, Mapping):
        return None
    # The refresh unit is a oneshot: it comes and goes by itself. Failures are an area of their own.
    return {
        str(name): str(at(unit, "active"))
        for name, unit in watched.items()
        if name != "nvidia-cdi-refresh.service" and at(unit, "active") in ("active", "inactive")
    }


def _networks(snapshot: Snapshot) -> Items | None:
    found = _by("name", "networks", state=lambda row: str(row.get("driver")))(snapshot)
    # podman's default network is built in: a node whose podman was never used just does not tell of it.
    return found if found is None else {name: driver for name, driver in found.items() if name != "podman"}


def _container(row: Mapping[str, Any]) -> str:
    return f"{row.get('image')} {row.get('state')}"


def _cdi(row: Mapping[str, Any]) -> str:
    return f"{row.get('kind')} {row.get('cdi_version')}: {', '.join(words(row, 'devices'))}"


def _process(row: Mapping[str, Any]) -> str:
    return f"{row.get('name')} on {row.get('gpu_uuid')}"


def _swap(row: Mapping[str, Any]) -> str:
    return f"{row.get('type')} {row.get('size_bytes')}"


def _gpu_processes(snapshot: Snapshot) -> Items | None:
    if at(snapshot, "gpu", "processes") is None:
        return None
    counts: dict[str, int] = {}
    for row in rows(snapshot, "gpu", "processes"):
        counts[_process(row)] = counts.get(_process(row), 0) + 1
    return {name: str(count) for name, count in counts.items()}


AREAS: dict[str, Reader] = {
    "unit files": _names("units", "installed"),
    "units": _units,
    "services": _service_states,
    "failed units": _names("units", "failed"),
    "files": _texts("files"),
    "containers": _by("name", "containers", state=_container),
    "images": _by("id", "images", state=lambda row: ", ".join(words(row, "names") or words(row, "digests"))),
    "volumes": _by("name", "volumes"),
    "networks": _networks,
    "secrets": _names("secrets"),
    "ports": _ports,
    "links": _names("links"),
    "firewall": _value("firewall", "ruleset_sha256"),
    "sysctl": _texts("sysctl"),
    "swap": _by("name", "swap", state=_swap),
    "selinux": _texts("selinux", "booleans"),
    "gpu processes": _gpu_processes,
    "cdi specs": _by("path", "cdi", "specs", state=_cdi),
}
# A node without nft or without a GPU cannot show these, before and after alike.
_MAY_BE_UNSEEN = {"firewall", "gpu processes"}
