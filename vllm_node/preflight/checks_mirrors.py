"""Mirrors of upstream names, and the node's own registries.conf, which they must not contradict."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_node.preflight.findings import Finding, fail
from vllm_node.preflight.reading import Snapshot, listed, rows, text
from vllm_node.preflight.wanted import Wanted
from vllm_node.registries import governing, is_place

OURS = "/etc/containers/registries.conf.d/50-vllm-node.conf"


def names(_: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Mirrors that podman understands, each upstream once, on the registry that the account is for."""
    for each in wanted.mirrors:
        for wrong in (place for place in (each.upstream, each.mirror) if not is_place(place)):
            yield fail(
                "mirror.name",
                f"container_host_mirrors has {wrong}",
                "podman would never use it, or refuse the whole file.",
                "Write a registry's host, with or without a path: no https://, no tag, no digest, no slash at the end.",
            )
    twice = [name for name, count in Counter(each.upstream for each in wanted.mirrors).items() if count > 1]
    if twice:
        yield fail(
            "mirror.twice",
            f"container_host_mirrors has more than one entry for {listed(twice)}",
            "podman would use one of them.",
            "Keep one.",
        )
    elsewhere = sorted({each.mirror for each in wanted.mirrors if not _on(each.mirror, wanted.registry)})
    if wanted.registry and elsewhere:
        yield fail(
            "mirror.elsewhere",
            f"container_host_mirrors has {listed(elsewhere)}, which is not on {wanted.registry}",
            "Account and authority are those of container_host_registry_address, and images are looked for there only.",
            f"Write a mirror that begins with {wanted.registry}.",
        )


def _on(place: str, registry: str | None) -> bool:
    return place == registry or place.startswith(f"{registry}/")


def configuration(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """The site's own tables: readable, not for the same names, and not blocking an image."""
    tables: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for row in rows(snapshot, "supply", "registries"):
        path = text(row, "path") or "?"
        if path == OURS:
            continue
        try:
            tables |= {name: (path, table) for name, table in _tables(text(row, "text") or "")}
        except tomllib.TOMLDecodeError as error:
            yield fail(
                "registries.unreadable",
                f"{path}: {error}",
                "podman pulls nothing while it cannot read one of these files.",
                "Mend it; man containers-registries.conf tells its form.",
            )
    for mirror in wanted.mirrors:
        if mirror.upstream in tables:
            yield fail(
                "registries.taken",
                f"{tables[mirror.upstream][0]} has a table for {mirror.upstream} already",
                "podman takes one table a name, whole: either the site's or the toolkit's would be without effect.",
                "Take it out of container_host_mirrors, if the site's table has the mirror; or out of that file.",
            )
    ours = {mirror.upstream for mirror in wanted.mirrors}
    for image in wanted.images:
        name = governing(image.repository or "", {*tables, *ours})
        if name in tables and name not in ours and tables[name][1].get("blocked") is True:
            yield fail(
                "registries.blocked",
                f"image {image.name} ({image.repository}): {tables[name][0]} blocks {name}",
                "podman refuses to pull it, from a mirror as well.",
                "Name it by the internal registry in the lock, or give container_host_mirrors its upstream.",
            )


def _tables(content: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    found = tomllib.loads(content).get("registry")
    for table in found if isinstance(found, list) else []:
        name = table.get("prefix") or table.get("location")
        if isinstance(name, str):
            yield name, table


CHECKS = (names, configuration)
