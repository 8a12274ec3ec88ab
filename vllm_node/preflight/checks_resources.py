"""Disk, memory and swap against what the images and models need."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_node.preflight.findings import Finding, fail, warn
from vllm_node.preflight.reading import Snapshot, at, gib, installed, listed, number, rows, text
from vllm_node.preflight.wanted import Image, Wanted

_GRAPH_ROOT = "/var/lib/containers/storage"
_GIB = 1 << 30
_MIB = 1 << 20


def _disk(snapshot: Snapshot, path: str) -> Mapping[str, Any] | None:
    """The disk entry for a path or the nearest folder above it that was looked at."""
    above = [
        row
        for row in rows(snapshot, "disks")
        if path == row.get("path") or path.startswith(str(row.get("path")).rstrip("/") + "/")
    ]
    return max(above, key=lambda row: len(str(row.get("path"))), default=None)


def _missing(snapshot: Snapshot, wanted: Wanted) -> list[Image]:
    return [image for image in wanted.images if not installed(snapshot, image.reference)]


def _image_bytes(snapshot: Snapshot, image: Image) -> float:
    """Size of an image in the registry, 0 when it is not known there: its own finding tells that."""
    for row in rows(snapshot, "registry", "images"):
        if row.get("name") == image.name:
            return number(row, "size_bytes") or 0
    return 0


def images_fit(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Room for the images that are still to be pulled."""
    path = text(snapshot, "podman", "graph_root") or _GRAPH_ROOT
    disk = _disk(snapshot, path)
    free = number(disk, "free_bytes")
    missing = _missing(snapshot, wanted)
    if disk is None or free is None or not missing:
        return
    limits = wanted.limits
    packed = sum(_image_bytes(snapshot, image) for image in missing)
    needed = packed * limits.image_unpack_factor + limits.storage_margin_gib * _GIB
    if free < needed:
        yield fail(
            "disk.images",
            f"{gib(free)} free for {path} (on {disk.get('mount') or 'an unknown mount'}), {gib(needed)} "
            "needed: "
            f"{len(missing)} images of {gib(packed)} packed, {limits.image_unpack_factor:g} times that "
            "unpacked, "
            f"and {limits.storage_margin_gib:g} GiB to spare",
            "A pull that runs out of space fails late and leaves its parts behind.",
            "Make room (podman image prune), give podman's store a larger disk, or lower "
            "preflight_storage_margin_gib.",
        )


def state_fits(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Room for the toolkit's own notes on the node."""
    disk = _disk(snapshot, wanted.state_dir)
    free = number(disk, "free_bytes")
    if disk is not None and free is not None and free < wanted.limits.state_free_mib * _MIB:
        yield fail(
            "disk.state",
            f"{free / _MIB:.0f} MiB free for {wanted.state_dir} (on {disk.get('mount')}), "
            f"{wanted.limits.state_free_mib:g} MiB wanted",
            "The manifest of what was created must be written, or a teardown could not find everything.",
            "Make room on that file system.",
        )


def inodes(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """File systems that run out of files rather than of bytes."""
    for path in dict.fromkeys((text(snapshot, "podman", "graph_root") or _GRAPH_ROOT, wanted.state_dir)):
        disk = _disk(snapshot, path)
        free = number(disk, "free_inodes")
        if free is not None and free < wanted.limits.free_inodes and _missing(snapshot, wanted):
            yield fail(
                "disk.inodes",
                f"{free:.0f} inodes free for {path}, {wanted.limits.free_inodes} wanted",
                "An image unpacks into some hundred thousand files.",
                "Remove many small files there, or use XFS, which makes inodes as it needs them.",
            )
            return


def memory(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Memory against model sizes and shared memory."""
    total = number(snapshot, "memory", "total_bytes")
    if total is None:
        return
    sizes = {str(row.get("name")): number(row, "bytes") for row in rows(snapshot, "models")}
    names = {each.name for each in wanted.instances}
    reserve = wanted.limits.memory_reserve_gib * _GIB
    large = [
        f"{name} ({gib(size)})"
        for name, size in sizes.items()
        if size and name in names and size + reserve > total
    ]
    if large:
        yield warn(
            "memory.model",
            f"{gib(total)} of memory, and these models do not fit into it: {listed(large)}",
            "The page cache cannot hold the weights while they are loaded: every start reads them from "
            "disk again.",
            "Count on slow starts, and raise start_budget_s of the instance.",
        )
    shared = sum(each.shm_bytes or 0 for each in wanted.instances)
    if shared > total:
        yield warn(
            "memory.shm",
            f"shm_size of all instances is {gib(shared)}, the node has {gib(total)}",
            "Shared memory is memory: when it is really used, the kernel kills processes.",
            "Lower shm_size; 16g is enough for one instance on one node.",
        )


def swap(snapshot: Snapshot, _: Wanted) -> Iterator[Finding]:
    """Swap, which kubelet refuses later and which makes latencies jump."""
    areas = [f"{row.get('name')} ({gib(number(row, 'size_bytes') or 0)})" for row in rows(snapshot, "swap")]
    if areas:
        yield warn(
            "swap.on",
            f"swap is on: {listed(areas)}",
            "Latencies jump when parts of a server are swapped out, and kubelet does not start with swap "
            "by default.",
            "Before the node joins Kubernetes: swapoff -a, and remove it from /etc/fstab (zram: from its "
            "generator).",
        )


def readable(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """A disk that did not answer."""
    for path in dict.fromkeys((text(snapshot, "podman", "graph_root") or _GRAPH_ROOT, wanted.state_dir)):
        normal = posixpath.normpath(path)
        if any(at(row, "what") == f"disks.{normal}" for row in rows(snapshot, "unseen")):
            yield fail(
                "disk.unreadable",
                f"{normal} does not answer",
                "A dead mount hangs podman and every task that touches it.",
                "Mend or unmount it (umount -l), then look again.",
            )


def journal(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """A journal that could fill its disk: of what vLLM writes nothing is dropped."""
    if wanted.journal_max_use is not None:
        if not re.fullmatch(r"[1-9]\d*[KMGT]?", wanted.journal_max_use):
            yield fail(
                "journal.max_use",
                f"container_host_journal_max_use is {wanted.journal_max_use}",
                "journald would pass over such a value, and the journal would go on without that limit.",
                "Write a number of bytes, or one with K, M, G or T, such as 4G.",
            )
        return
    cap, used, free, kept = (
        number(snapshot, "journal", f"{name}_bytes") for name in ("cap", "used", "free", "keep_free")
    )
    if cap is None or used is None or free is None or kept is None:
        return
    growth = min(cap - used, free - kept)
    if growth > free / 2:
        yield warn(
            "journal.size",
            f"the journal may grow by {gib(growth)}, and its disk has {gib(free)} free",
            "The log of vLLM is kept whole, so that its last words are not the ones that are dropped; the rest of "
            "the node needs that disk as well.",
            "Set container_host_journal_max_use, such as 4G, or SystemMaxUse= in /etc/systemd/journald.conf.",
        )


CHECKS = (images_fit, state_fits, inodes, memory, swap, readable, journal)
