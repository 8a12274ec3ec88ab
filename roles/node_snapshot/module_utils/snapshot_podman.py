"""podman's version, its settings and what it holds."""

from __future__ import annotations

import json
import re
import threading
from typing import Any, Callable

_QUADLET = (
    "/usr/libexec/podman/quadlet",
    "/usr/lib/podman/quadlet",
    "/usr/lib/systemd/system-generators/podman-system-generator",
)
_NETAVARK = ("/usr/libexec/podman/netavark", "/usr/lib/podman/netavark", "/usr/bin/netavark")
# podman's own order: its helper folders, then PATH.
_INIT = (
    "/usr/local/libexec/podman/catatonit",
    "/usr/local/lib/podman/catatonit",
    "/usr/libexec/podman/catatonit",
    "/usr/lib/podman/catatonit",
)
_GRAPH_ROOT = "/var/lib/containers/storage"
HELD = ("containers", "images", "volumes", "networks", "secrets")


def probe(host: Any) -> dict[str, Any]:
    """{podman, containers, images, volumes, networks, secrets}; podman None when it is not installed.

    Where podman was never used its stores are empty by definition, and they are not asked for: the first
    call of podman would create them, and a snapshot changes nothing.
    """
    empty: dict[str, Any] = {name: [] for name in HELD}
    program = host.which("podman")
    if not program:
        return dict(empty, podman=None)
    used_root = configured_graph_root(host)
    settled = _settled(host, used_root)
    podman: dict[str, Any] = {
        "version": None,
        "path": program,
        "network_backend": settled["network_backend"],
        "database_backend": settled["database_backend"],
        "cgroup_manager": None,
        "oci_runtime": _runtime(host),
        "graph_root": used_root,
        "graph_driver": None,
        "quadlet": next((path for path in _QUADLET if host.exists(path)), None),
        "netavark": next((path for path in _NETAVARK if host.exists(path)), None),
        "init": next((path for path in _INIT if host.exists(path)), None) or host.which("catatonit"),
        "storage_used": settled["used"],
    }
    if not host.is_root:
        # A user's podman sees the user's own containers only, and would create a store for them.
        for name in HELD:
            host.unseen(name, "only root sees the system's containers")
        podman["version"] = _version(host)
        return dict(dict.fromkeys(HELD), podman=podman)
    if not settled["used"]:
        podman["version"] = _version(host)
        return dict(empty, podman=podman)
    return _ask(host, podman)


def _ask(host: Any, podman: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = dict.fromkeys(HELD)
    questions: list[tuple[str, Callable[[str], Any], tuple[str, ...]]] = [
        ("podman", lambda text: info(podman, json.loads(text)), ("info", "--format", "json")),
        (
            "containers",
            lambda text: containers(json.loads(text)),
            ("ps", "--all", "--no-trunc", "--format", "json"),
        ),
        ("images", lambda text: images(json.loads(text)), ("images", "--no-trunc", "--format", "json")),
        ("volumes", lambda text: volumes(json.loads(text)), ("volume", "ls", "--format", "json")),
        ("networks", lambda text: networks(json.loads(text)), ("network", "ls", "--format", "json")),
        (
            "secrets",
            lambda text: sorted(text.split()),
            ("secret", "ls", "--noheading", "--format", "{{.Name}}"),
        ),
    ]

    def ask(what: str, read: Callable[[str], Any], argv: tuple[str, ...]) -> None:
        answer = host.run("podman", *argv)
        try:
            if not answer.ok:
                raise ValueError(answer.trouble)
            found[what] = read(answer.out)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            host.unseen(what, f"podman {argv[0]}: {error}")

    threads = [threading.Thread(target=ask, args=question, daemon=True) for question in questions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if found.get("podman") is None:
        found["podman"] = dict(podman, version=_version(host))
    return found


def _version(host: Any) -> str | None:
    # The option, not the command: it answers before podman opens its store.
    answer = host.run("podman", "--version")
    match = re.search(r"(\d+\.\d+\.\d+\S*)", answer.out)
    if not match:
        host.unseen("podman.version", answer.trouble or "podman names no version")
    return match.group(1) if match else None


def _runtime(host: Any) -> str | None:
    return next((name for name in ("crun", "runc") if host.which(name)), None)


def configured_graph_root(host: Any) -> str:
    """Folder of the system's image store, as the node's storage.conf has it."""
    paths = ("/etc/containers/storage.conf", "/usr/share/containers/storage.conf")
    return graph_root(next((text for text in map(host.read, paths) if text), None))


def graph_root(text: str | None) -> str:
    """Folder of the image store that storage.conf names, or podman's own default."""
    match = re.search(r"""^\s*graphroot\s*=\s*["']([^"']+)["']""", text or "", re.M)
    return match.group(1) if match else _GRAPH_ROOT


def _settled(host: Any, root: str) -> dict[str, Any]:
    """What podman wrote down at its first use."""
    names = set(host.names(root))
    database = None
    if "db.sql" in names:
        database = "sqlite"
    elif host.exists(root + "/libpod/bolt_state.db"):
        database = "boltdb"
    network = (host.read(root + "/defaultNetworkBackend") or "").strip() or None
    used = database is not None or any(name.endswith("-images") for name in names)
    return {"used": used, "database_backend": database, "network_backend": network}


def info(podman: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """The settings of `podman info`, laid over what was known before."""
    host, store = data.get("host") or {}, data.get("store") or {}
    seen = {
        "version": (data.get("version") or {}).get("Version"),
        "network_backend": host.get("networkBackend"),
        "database_backend": host.get("databaseBackend"),
        "cgroup_manager": host.get("cgroupManager"),
        "oci_runtime": (host.get("ociRuntime") or {}).get("name"),
        "graph_root": store.get("graphRoot"),
        "graph_driver": store.get("graphDriverName"),
    }
    return dict(podman, **{key: value for key, value in seen.items() if value})


def containers(rows: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """All containers, also stopped ones, by name."""
    found = [
        {
            "id": row["Id"],
            "name": (row.get("Names") or [None])[0],
            "image": row.get("Image"),
            "image_id": row.get("ImageID"),
            "state": row.get("State"),
            "labels": row.get("Labels") or {},
        }
        for row in rows or []
    ]
    return sorted(found, key=lambda each: (each["name"] or "", each["id"]))


def images(rows: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """All images by id; `digests` are the `repository@sha256:...` names under which they can be used."""
    found = {}
    for row in rows or []:
        # podman lists an image once for each of its names
        known = found.setdefault(
            row["Id"], {"id": row["Id"], "digests": set(), "names": set(), "size_bytes": None}
        )
        known["digests"].update(row.get("RepoDigests") or [])
        known["names"].update(row.get("Names") or row.get("RepoTags") or [])
        known["size_bytes"] = row.get("Size")
    return [
        dict(found[key], digests=sorted(found[key]["digests"]), names=sorted(found[key]["names"]))
        for key in sorted(found)
    ]


def volumes(rows: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """All volumes by name."""
    found = [{"name": row["Name"], "labels": row.get("Labels") or {}} for row in rows or []]
    return sorted(found, key=lambda each: str(each["name"]))


def networks(rows: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """All podman networks by name."""
    found = [{"name": row["name"], "driver": row.get("driver")} for row in rows or []]
    return sorted(found, key=lambda each: str(each["name"]))
