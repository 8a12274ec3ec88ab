"""Root filesystems that nodes and images are made of, from Debian packages."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_node.lab.cache import entry, recipe_hash
from vllm_node.lab.command import run

_NODE_PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "openssh-server", "iproute2", "procps", "nftables", "kmod"),
    *("podman", "crun", "netavark", "aardvark-dns", "catatonit", "python3", "ca-certificates", "curl", "rsync"),
)
# podman 4.3 predates netavark as Debian's default; the node is only there to be refused.
_OLD_NODE_PACKAGES = tuple(name for name in _NODE_PACKAGES if name not in ("netavark", "aardvark-dns"))
_PODMAN = ("podman", "crun", "netavark", "aardvark-dns", "catatonit")
# dnf as Enterprise Linux 10 has it, and what makes and signs a repository for it.
_RPM_NODE_PACKAGES = (
    *(name for name in _NODE_PACKAGES if name not in _PODMAN),
    *("dnf", "python3-dnf", "rpm", "createrepo-c", "gnupg"),
)


@dataclass(frozen=True)
class Release:
    """A Debian release to boot, and what it stands for on the RHEL side."""

    suite: str
    packages: Sequence[str]
    like: str
    options: Sequence[str] = ()


RELEASES = {
    "5.4": Release("trixie", _NODE_PACKAGES, "podman of RHEL 9.6 and 10.0"),
    # sid's index may be past its valid-until date on a mirror that lags behind.
    "5.8": Release(
        "sid",
        _NODE_PACKAGES,
        "podman of RHEL 9.8 and 10.2",
        ('--aptopt=Acquire::Check-Valid-Until "false"',),
    ),
    "4.3": Release("bookworm", _OLD_NODE_PACKAGES, "a podman below the floor"),
    "5.4-firewalld": Release("trixie", (*_NODE_PACKAGES, "firewalld"), "a node whose firewall is kept by firewalld"),
    "none": Release("trixie", _RPM_NODE_PACKAGES, "a node with dnf, before podman is installed"),
}

# What a mirror ships moves on, so a root is made anew once the recipe's revision is raised.
_REVISION = 1


def node_root(podman: str) -> Path:
    """Folder with the untouched root of a node with that podman version (`5.4`, `5.8`, `4.3`)."""
    release = RELEASES[podman]
    key = recipe_hash(_REVISION, release.suite, sorted(release.packages), list(release.options))

    def build(folder: Path) -> None:
        bootstrap(release.suite, release.packages, folder / "root", release.options)
        _settle(folder / "root")

    return entry(f"node-{release.suite}", key, build) / "root"


def options(suite: str) -> Sequence[str]:
    """What `bootstrap` needs beside the name of a suite."""
    return next(release.options for release in RELEASES.values() if release.suite == suite)


def bootstrap(suite: str, packages: Sequence[str], target: Path, words: Sequence[str] = ()) -> None:
    """Make a minimal root with `packages` at `target`: a folder, or a tar file when it ends in `.tar`."""
    run(
        [
            *("mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}"),
            *words,
            # Documentation and translations are a third of the files and none of the function.
            *(
                f"--dpkgopt=path-exclude={path}"
                for path in ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
            ),
            *(suite, target),
        ],
        env={**os.environ, "SOURCE_DATE_EPOCH": "0"},
    )


def _settle(root: Path) -> None:
    """What is the same for every node: it boots quickly, quietly, and without a network manager of ours in the way."""
    network = root / "etc/systemd/network"
    network.mkdir(parents=True, exist_ok=True)
    for unit in ("systemd-networkd.service", "ssh.service"):
        link = root / "etc/systemd/system/multi-user.target.wants" / unit
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(f"/usr/lib/systemd/system/{unit}")
    for unit in ("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer"):
        # A node is compared with itself an hour later: nothing may move by itself.
        (root / "etc/systemd/system" / unit).symlink_to("/dev/null")
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    (root / "etc/resolv.conf").write_text("# A lab node has no DNS: it is as closed as the site it stands for.\n")
    # No pids controller here: podman's default limit could not be set, and `podman run` would fail.
    limits = root / "etc/containers/containers.conf.d/10-lab.conf"
    limits.parent.mkdir(parents=True, exist_ok=True)
    limits.write_text("[containers]\npids_limit = 0\n")
    for keys in (root / "etc/ssh").glob("ssh_host_*"):
        keys.unlink()
