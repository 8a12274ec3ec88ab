"""What the machine under the lab must have, said exactly, and how to get it."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from vllm_node.lab.command import run

# Program → Debian package. Programs are looked for, packages are installed.
PROGRAMS = {
    "mmdebstrap": "mmdebstrap",
    "systemd-nspawn": "systemd-container",
    "buildah": "buildah",
    "skopeo": "skopeo",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "rsync": "rsync",
    "rpmbuild": "rpm",
    "dnf": "dnf-plugins-core",
}
_CLONE_NEWNS = 0x00020000


@dataclass(frozen=True)
class Missing:
    """One thing that keeps a lab from booting; `package` is set where installing it is the cure."""

    what: str
    cure: str
    package: str | None = None


def missing() -> list[Missing]:
    """Everything that this machine lacks for a lab; an empty list means that a lab can boot."""
    found: list[Missing] = []
    if platform.system() != "Linux":
        found.append(Missing(f"this is {platform.system()}, not Linux", "use a Debian or Ubuntu machine"))
        return found
    if platform.machine() not in ("x86_64", "amd64"):
        found.append(Missing(f"this is {platform.machine()}", "vLLM's CPU wheel is for x86_64"))
    if os.geteuid() != 0:
        found.append(Missing("you are not root", "run it as root (sudo): nodes are booted as containers"))
    elif not _can_make_namespaces():
        found.append(Missing("mount namespaces are refused here", "run it outside of a restricted container"))
    if shutil.which("apt-get") is None:
        found.append(Missing("there is no apt-get", "use a Debian or Ubuntu machine"))
    found += [
        Missing(f"{program} is not installed", f"apt-get install {package}", package)
        for program, package in PROGRAMS.items()
        if _which(program) is None
    ]
    return found


def can_install() -> bool:
    """Whether this user may install packages here; everybody may ask what is missing."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(things: list[Missing]) -> None:
    """Install the Debian packages among `things`; none of them brings a service that would start."""
    packages = sorted({thing.package for thing in things if thing.package})
    if not packages:
        return
    # debian-archive-keyring: an Ubuntu host, or an older Debian, has to trust the releases that nodes are made of.
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-qq"], env=env)
    run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages, "debian-archive-keyring"],
        env=env,
    )


def _which(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _can_make_namespaces() -> bool:
    """Try it in a child: being root says nothing about what a surrounding container allows."""
    child = os.fork()
    if child == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        os._exit(0 if libc.unshare(_CLONE_NEWNS) == 0 and Path("/proc/self/ns/cgroup").exists() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
