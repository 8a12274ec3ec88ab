"""What the service around a container may not do: podman, conmon and the container alike, as they share its cgroup.

The container itself is closed by podman: no capabilities, no new privileges, a read-only root. This is for what runs
outside of it, as root. Options that give the service mounts of its own (ProtectSystem=, PrivateTmp=,
ProtectKernelModules= …) are not among them: podman's other commands would not see the container's mounts. ProtectClock=
and PrivateDevices= would close the GPU's device nodes; crun needs new namespaces, a host name and mknod.
NoNewPrivileges= would keep SELinux from moving podman into the domain that its policy has for it.
"""

from __future__ import annotations

# What podman, conmon and crun do not need to start, watch and end a container.
WITHOUT = (
    *("CAP_AUDIT_CONTROL", "CAP_AUDIT_READ", "CAP_BLOCK_SUSPEND", "CAP_IPC_LOCK", "CAP_LEASE"),
    *("CAP_LINUX_IMMUTABLE", "CAP_NET_BROADCAST", "CAP_NET_RAW", "CAP_SYSLOG", "CAP_SYS_BOOT", "CAP_SYS_MODULE"),
    *("CAP_SYS_PACCT", "CAP_SYS_RAWIO", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_WAKE_ALARM"),
)
CONTAINER = (
    f"CapabilityBoundingSet=~{' '.join(WITHOUT)}",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "SystemCallFilter=~@cpu-emulation @module @obsolete @raw-io @reboot @swap",
    "SystemCallErrorNumber=EPERM",
    "SystemCallArchitectures=native",
    "LockPersonality=true",
    "RestrictRealtime=true",
)
LOOPBACK = ("IPAddressAllow=localhost", "IPAddressDeny=any")


def container_sandbox(reach: str) -> str:
    """Lines for `[Service]` of a Quadlet unit. `reach` is what its software may speak to: `loopback` or `network`.

    Raises:
        ValueError: `reach` is another word.
    """
    if reach not in ("loopback", "network"):
        raise ValueError(f"a container's reach is loopback or network, not {reach!r}")
    return "\n".join((*CONTAINER, *(LOOPBACK if reach == "loopback" else ())))
