"""podman: version, generator, backends, and what an older container set-up left behind."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_node.preflight import tables
from vllm_node.preflight.findings import Finding, fail, finding, warn
from vllm_node.preflight.reading import Snapshot, at, listed, mapping, text, unseen, version
from vllm_node.preflight.wanted import Wanted

_FLOOR = tables.dotted(tables.PODMAN_FLOOR)


def present(snapshot: Snapshot, _: Wanted) -> Iterator[Finding]:
    """podman is there, new enough, with the generator of Quadlet units and the init program of containers."""
    if "podman" not in snapshot or (at(snapshot, "podman") is None and unseen(snapshot, "podman")):
        return
    if at(snapshot, "podman") is None:
        yield fail(
            "podman.missing",
            "podman is not installed",
            "Every component is a container that podman runs.",
            f"Install podman {_FLOOR} or later (RHEL 9.6, RHEL 10).",
        )
        return
    release = version(at(snapshot, "podman", "version"))
    if release and release < tables.PODMAN_FLOOR:
        yield fail(
            "podman.version",
            f"podman {at(snapshot, 'podman', 'version')}",
            f"Units are written for podman {_FLOOR}: older ones drop a unit whose keys they do not know.",
            f"Update to podman {_FLOOR} or later (RHEL 9.6, RHEL 10).",
        )
    if at(snapshot, "podman", "quadlet") is None:
        yield fail(
            "podman.quadlet",
            "podman's Quadlet generator is not installed",
            "systemd makes services of .container files by it; without it no unit exists.",
            "Install podman as the distribution packages it.",
        )
    if at(snapshot, "podman", "init") is None:
        yield fail(
            "podman.init",
            "catatonit, podman's init program, is not installed",
            "Units have RunInit=true; without that program podman starts none of their containers.",
            "Install the package catatonit (podman only recommends it on Debian).",
        )


def network(snapshot: Snapshot, _: Wanted) -> Iterator[Finding]:
    """netavark is the network backend."""
    if at(snapshot, "podman") is None:
        return
    backend = text(snapshot, "podman", "network_backend")
    if backend not in (None, "netavark"):
        yield fail(
            "podman.network_backend",
            f"network backend {backend}",
            "CNI is gone from podman 5 and leaves files in /etc/cni/net.d that make kubelet think a "
            "network is there.",
            "Stop all containers, set network_backend to netavark in containers.conf, "
            "run `podman system reset`.",
        )
    elif backend is None and at(snapshot, "podman", "netavark") is None:
        yield fail(
            "podman.network_backend",
            "netavark is not installed",
            "podman 5 has no other network backend.",
            "Install the netavark package.",
        )


def database(snapshot: Snapshot, _: Wanted) -> Iterator[Finding]:
    """The old database, which podman 5.8 migrates at a reboot."""
    if text(snapshot, "podman", "database_backend") != "boltdb":
        return
    release = version(at(snapshot, "podman", "version"))
    broken = release is not None and release[:2] == (5, 8) and release < (5, 8, 1)
    yield finding(
        "fail" if broken else "warn",
        "podman.database",
        f"database backend boltdb with podman {at(snapshot, 'podman', 'version')}",
        "podman 5.8 moves it to SQLite at a reboot; 5.8.0 loses containers of Quadlet units in doing so.",
        "Update to podman 5.8.1 or later before the next reboot, or run `podman system reset` on a node "
        "whose containers are not needed.",
    )


def runtime(snapshot: Snapshot, _: Wanted) -> Iterator[Finding]:
    """The OCI runtime and the cgroup manager that systemd units expect."""
    if text(snapshot, "podman", "oci_runtime") == "runc":
        yield warn(
            "podman.runtime",
            "OCI runtime runc",
            "With runc a `systemctl daemon-reload` can take the GPU from a running container.",
            'Install crun and set runtime = "crun" in containers.conf.',
        )
    if text(snapshot, "podman", "cgroup_manager") not in (None, "systemd"):
        yield warn(
            "podman.cgroup_manager",
            f"cgroup manager {at(snapshot, 'podman', 'cgroup_manager')}",
            "Limits that stand in a unit do not reach its container.",
            "Remove cgroup_manager from containers.conf.",
        )


def leftovers(snapshot: Snapshot, _: Wanted) -> Iterator[Finding]:
    """CNI configuration of an older podman."""
    files = mapping(snapshot, "files")
    found = sorted(path for path in files if path.startswith("/etc/cni/net.d/") and "podman" in path)
    if found:
        yield warn(
            "podman.cni_leftover",
            f"there is {listed(found)}",
            "kubelet takes it for a cluster network when the node joins Kubernetes later.",
            "Remove it, unless a container still uses it.",
        )


CHECKS = (present, network, database, runtime, leftovers)
