"""Operating system, kernel, memory, time, SELinux: what /proc and /sys tell without any command."""

from __future__ import annotations

import ctypes
import os
import re
from typing import Any

SYSCTL = (
    "fs.inotify.max_user_instances",
    "fs.inotify.max_user_watches",
    "fs.nr_open",
    "kernel.panic",
    "kernel.panic_on_oops",
    "kernel.pid_max",
    "kernel.numa_balancing",
    "kernel.keys.maxkeys",
    "net.bridge.bridge-nf-call-ip6tables",
    "net.bridge.bridge-nf-call-iptables",
    "net.core.somaxconn",
    "net.ipv4.conf.all.forwarding",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.ip_forward",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv6.conf.all.forwarding",
    "user.max_user_namespaces",
    "vm.max_map_count",
    "vm.overcommit_memory",
    "vm.panic_on_oom",
    "vm.swappiness",
)
BOOLEANS = (
    "container_use_devices",
    "container_use_dri_devices",
    "container_use_xserver_devices",
    "virt_use_nfs",
)
# Kernel interfaces that are the same everywhere, and the per-container mounts that come and go by themselves.
_DULL_TYPES = {
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
}


def os_release(text: str | None) -> dict[str, Any]:
    """{id, id_like, version_id, name} of /etc/os-release; None for what is not given, id_like is a list."""
    fields = dict(re.findall(r"""^([A-Z_]+)=["']?(.*?)["']?\s*$""", text or "", re.M))
    return {
        "id": fields.get("ID"),
        "id_like": fields.get("ID_LIKE", "").split(),
        "version_id": fields.get("VERSION_ID"),
        "name": fields.get("PRETTY_NAME"),
    }


def probe_kernel(host: Any) -> dict[str, Any]:
    """Running kernel, and the one that the next boot takes with its NVIDIA module."""
    name = os.uname()
    found: dict[str, Any] = {
        "release": name.release,
        "arch": name.machine,
        "next_boot": None,
        "next_boot_has_nvidia": None,
    }
    if host.which("grubby"):
        answer = host.run("grubby", "--default-kernel")
        path = answer.out.strip().splitlines()[-1:] if answer.ok else []
        if path and "vmlinuz-" in path[0]:
            release = path[0].split("vmlinuz-", 1)[1]
            known = host.read(f"/lib/modules/{release}/modules.dep", 16 << 20)
            found["next_boot"] = release
            found["next_boot_has_nvidia"] = (
                None if known is None else bool(re.search(r"(^|/)nvidia\.ko", known, re.M))
            )
        else:
            host.unseen("kernel.next_boot", answer.trouble or "grubby names no kernel")
    return found


def cgroup(host: Any) -> dict[str, Any]:
    """Version of the cgroup tree (None when none is mounted) and the controllers that v2 offers."""
    controllers = host.read("/sys/fs/cgroup/cgroup.controllers")
    if controllers is not None:
        return {"version": 2, "controllers": sorted(controllers.split())}
    return {"version": 1 if host.names("/sys/fs/cgroup") else None, "controllers": []}


def selinux(host: Any) -> dict[str, Any]:
    """Mode and the booleans that this node's policy knows. Mode None: the system has no SELinux at all."""
    enforce = host.read("/sys/fs/selinux/enforce")
    if enforce is None:
        return {"mode": "disabled" if host.exists("/etc/selinux/config") else None, "booleans": {}}
    booleans = {}
    for name in BOOLEANS:
        # "current pending", each 0 or 1
        state = (host.read(f"/sys/fs/selinux/booleans/{name}") or "").split()
        if state:
            booleans[name] = state[0] == "1"
    return {"mode": "enforcing" if enforce.strip() == "1" else "permissive", "booleans": booleans}


def secure_boot(host: Any) -> bool | None:
    """True when the firmware enforces signatures; False on a machine without UEFI; None when unreadable."""
    if not host.exists("/sys/firmware/efi"):
        return False
    for name in host.names("/sys/firmware/efi/efivars"):
        if name.startswith("SecureBoot-"):
            try:
                with open(host.path(f"/sys/firmware/efi/efivars/{name}"), "rb") as stream:
                    # four bytes of attributes, then the value
                    return stream.read(5)[4:] == b"\x01"
            except OSError:
                break
    host.unseen("secure_boot", "the firmware's variable cannot be read")
    return None


def memory(text: str | None) -> dict[str, Any]:
    """{total_bytes, available_bytes} of /proc/meminfo; None for what is not there."""
    fields = dict(re.findall(r"^(\w+):\s+(\d+) kB", text or "", re.M))
    return {
        "total_bytes": int(fields["MemTotal"]) << 10 if "MemTotal" in fields else None,
        "available_bytes": int(fields["MemAvailable"]) << 10 if "MemAvailable" in fields else None,
    }


def swap(text: str | None) -> list[dict[str, Any]]:
    """Active swap areas of /proc/swaps."""
    rows = [line.split() for line in (text or "").splitlines()[1:]]
    return [
        {"name": row[0], "type": row[1], "size_bytes": int(row[2]) << 10}
        for row in rows
        if len(row) >= 3 and row[2].isdigit()
    ]


class _Timex(ctypes.Structure):
    # struct timex of <sys/timex.h>; only the first fields are read, the tail leaves room for the rest.
    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("tail", ctypes.c_byte * 256),
    )


def clock_synchronized() -> bool | None:
    """Whether the kernel's clock is kept by a time service; None where the kernel does not tell.

    The same test as timedatectl's NTPSynchronized (largest error below 16 s), without starting its service.
    """
    state = _Timex()
    try:
        answer = ctypes.CDLL(None).adjtimex(ctypes.byref(state))
    except (OSError, AttributeError):
        return None
    return None if answer < 0 else state.maxerror < 16_000_000


def sysctl(host: Any) -> dict[str, str]:
    """Kernel settings that matter to inference or to Kubernetes; only those that exist."""
    values = {name: host.read("/proc/sys/" + name.replace(".", "/")) for name in SYSCTL}
    return {name: " ".join(value.split()) for name, value in values.items() if value is not None}


def mounts(text: str | None) -> list[dict[str, Any]]:
    """Mounted file systems out of /proc/self/mountinfo, kernel interfaces left out."""
    found = []
    for line in (text or "").splitlines():
        before, dash, after = line.partition(" - ")
        fields, tail = before.split(), after.split()
        if not dash or len(fields) < 6 or len(tail) < 2 or tail[0] in _DULL_TYPES:
            continue
        options = fields[5] + ("," + tail[2] if len(tail) > 2 else "")
        found.append(
            {
                "target": _unescape(fields[4]),
                "source": _unescape(tail[1]),
                "fstype": tail[0],
                "options": sorted(set(options.split(","))),
            }
        )
    return sorted(found, key=lambda mount: (mount["target"], mount["source"]))


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def mount_of(path: str, table: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The mount that holds an absolute path, decided by names alone so that a dead mount is never touched."""
    best = None
    for mount in table:
        target = mount["target"].rstrip("/")
        if (path == target or path.startswith(target + "/")) and (
            best is None or len(target) >= len(best["target"].rstrip("/"))
        ):
            best = mount
    return best
