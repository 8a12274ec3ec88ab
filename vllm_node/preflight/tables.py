"""What is known about versions: tables that checks look things up in."""

from __future__ import annotations

from vllm_node.preflight.reading import Version

PODMAN_FLOOR: Version = (5, 4)

# Highest CDI version that a podman release loads (the version of its CDI library). A newer spec is dropped
# without a word, and the device is then "unresolvable".
_CDI_MAX: tuple[tuple[Version, Version], ...] = (
    ((5, 5), (1, 0, 0)),
    ((5, 2), (0, 8, 0)),
    ((5, 1), (0, 7, 0)),
    ((4, 7), (0, 6, 0)),
    ((4, 4), (0, 5, 0)),
)

# Enterprise Linux 9.6 and 10.0 are the first with podman 5.4.
OS_IDS = {"almalinux", "centos", "ol", "rhel", "rocky"}
OS_MINOR_FLOOR = {9: 6, 10: 0}

KERNEL_FLOOR: Version = (5, 14)
PYTHON_FLOOR: Version = (3, 9)

# Below the first: known container escapes in its hooks. Below the second: hook hardening and the fixed
# refresh unit are missing.
TOOLKIT_FLOOR: Version = (1, 17, 8)
TOOLKIT_GOOD: Version = (1, 19, 1)

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

NETWORK_FILE_SYSTEMS = {
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.juicefs", "fuse.s3fs",
    "fuse.sshfs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "wekafs",
}  # fmt: skip


def cdi_max(podman: Version) -> Version | None:
    """Highest CDI version that this podman loads; None for a podman without CDI."""
    return next((highest for since, highest in _CDI_MAX if podman >= since), None)


def cdi_folders(podman: Version) -> tuple[str, ...]:
    """Folders in which this podman looks for CDI specs, the later one wins."""
    # 5.5 forgot the folder under /run; 5.6 has it again.
    return ("/etc/cdi",) if podman[:2] == (5, 5) else ("/etc/cdi", "/run/cdi")


def dotted(parts: Version) -> str:
    """A version for people."""
    return ".".join(map(str, parts))
