"""Fingerprints of the files that a bring-up may touch, and the space on the disks."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Any

TREES = (
    "/etc/containers",
    "/etc/cdi",
    "/run/cdi",
    "/etc/systemd/system",
    "/etc/systemd/journald.conf.d",
    "/etc/modules-load.d",
    "/etc/modprobe.d",
    "/etc/sysctl.d",
    "/etc/cni",
    "/usr/local/libexec",
    "/usr/local/bin",
    "/etc/firewalld",
    "/etc/yum.repos.d",
    "/etc/dnf",
    "/etc/pki/rpm-gpg",
)
FILES = ("/etc/passwd", "/etc/group", "/etc/fstab", "/etc/hosts", "/etc/subuid", "/etc/subgid")
# Programs in /usr/local/bin can be gigabytes: beyond this size, size and time stand for the content.
_HASH_LIMIT = 4 << 20
_MOST_ENTRIES = 20_000


def fingerprints(root: str = "/") -> dict[str, str]:
    """{path: fingerprint} of every entry below the watched trees and of the watched files.

    Raises ValueError when there are more entries than a snapshot should hold.
    """
    found: dict[str, str] = {}
    for path in FILES:
        _add(found, root, path)
    for tree in TREES:
        _walk(found, root, tree)
    return found


def _walk(found: dict[str, str], root: str, path: str) -> None:
    if len(found) > _MOST_ENTRIES:
        raise ValueError(f"more than {_MOST_ENTRIES} files below the watched folders")
    if not _add(found, root, path):
        return
    try:
        names = sorted(os.listdir(_at(root, path)))
    except OSError:
        return
    for name in names:
        _walk(found, root, f"{path}/{name}")


def _at(root: str, path: str) -> str:
    return os.path.join(root, path.lstrip("/"))


def _add(found: dict[str, str], root: str, path: str) -> bool:
    """File one entry; True when it is a folder to go into."""
    place = _at(root, path)
    try:
        state = os.lstat(place)
    except OSError:
        return False
    mode = f"{stat.S_IMODE(state.st_mode):04o} {state.st_uid} {state.st_gid}"
    if stat.S_ISLNK(state.st_mode):
        found[path] = "-> " + os.readlink(place)
    elif stat.S_ISDIR(state.st_mode):
        found[path] = "dir " + mode
        return True
    elif stat.S_ISREG(state.st_mode):
        found[path] = f"{_content(place, state)} {mode}"
    else:
        found[path] = f"special {mode}"
    return False


def _content(place: str, state: os.stat_result) -> str:
    if state.st_size > _HASH_LIMIT:
        return f"size:{state.st_size} time:{int(state.st_mtime)}"
    try:
        with open(place, "rb") as stream:
            return "sha256:" + hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return "unreadable"


def installed(names: dict[str, str], folders: tuple[str, ...]) -> list[str]:
    """Paths of the entries below the unit folders, out of the fingerprints."""
    return sorted(
        path
        for path, kind in names.items()
        if path.startswith(tuple(folder + "/" for folder in folders)) and not kind.startswith("dir ")
    )


def disk(path: str) -> dict[str, Any]:
    """Space below a path: {total_bytes, free_bytes, free_inodes, real_path}.

    A path that is not there yet counts for the folder above it.

    May hang on a dead mount: call it in a process that can be left behind.
    """
    place = path
    while place != "/" and not os.path.exists(place):
        place = os.path.dirname(place)
    state = os.statvfs(place)
    return {
        "total_bytes": state.f_blocks * state.f_frsize,
        # what is free for others than root: the safe figure
        "free_bytes": state.f_bavail * state.f_frsize,
        # file systems without a fixed number of inodes (btrfs, NFS at times) report 0 of 0
        "free_inodes": state.f_favail if state.f_files else None,
        "real_path": os.path.realpath(place),
    }
