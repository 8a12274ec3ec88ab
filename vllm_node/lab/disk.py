"""A small disk for a running lab node: what happens on a full one can be tried without filling anybody's."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from vllm_node.lab.command import run

SIZE_MIB = 64


def attach(folder: Path, ssh: list[str], at: str) -> None:
    """Mount a new ext4 file system of 64 MiB at `at` on the node that `ssh` leads to; it goes with the node.

    `folder` is the node's own on the host, where the file lies that is the disk.

    Raises:
        LabError: this machine or the node cannot do it.
    """
    image = folder / f"disk-{secrets.token_hex(4)}.img"
    with image.open("wb") as handle:
        handle.truncate(SIZE_MIB << 20)
    run(["mkfs.ext4", "-q", image])
    loop = run(["losetup", "--find", "--show", image]).strip()
    try:
        number = Path(loop).stat().st_rdev
        # A device can be opened where the file system allows device files, which /run and /tmp do not.
        name = f"/srv/.{image.stem}"
        device = f"mknod {name} b {os.major(number)} {os.minor(number)}"
        run([*ssh, f"{device} && mkdir -p {at} && mount -t ext4 {name} {at}; code=$?; rm -f {name}; exit $code"])
    finally:
        # The kernel lets go of it when it is unmounted, and at once when it never was mounted.
        run(["losetup", "--detach", loop])
