"""Cuts a finished bundle into parts."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from rich.filesize import decimal

from vllm_node.bundle import sums
from vllm_node.bundle.copying import sync, write_file
from vllm_node.bundle.hashing import Progress, each_file, hash_files
from vllm_node.bundle.layout import PARTIAL, SIGNATURE, SUMS, BundleError
from vllm_node.bundle.parts import LISTING, PART, PARTS_SUMS, Archive, Listing, part_name
from vllm_node.bundle.reporter import Reporter

_PLAN = "plan.json"
SMALLEST_PART_BYTES = 1 << 20


def split(bundle: Path, folder: Path, part_bytes: int, reporter: Reporter) -> Listing:
    """Write the parts of a finished bundle into `folder`; parts of an interrupted run are used again.

    Raises BundleError, and OSError.
    """
    if part_bytes < SMALLEST_PART_BYTES:
        raise BundleError(f"parts of {part_bytes} bytes are too small; take 1MiB or more")
    content = sums.read_small(bundle / SUMS, sums.MAX_BYTES)
    listed, _problems = sums.read(bundle / SUMS)
    own = [name for name in (SUMS, SIGNATURE) if (bundle / name).exists()]
    archive = Archive(bundle, [*own, *listed])
    sizes = [min(part_bytes, archive.bytes - start) for start in range(0, archive.bytes, part_bytes)]
    listing = Listing(hashlib.sha256(content).hexdigest(), part_bytes, tuple(sizes))
    _prepare(folder, listing)
    missing = [number for number, size in enumerate(sizes, 1) if not _is_there(folder / part_name(number), size)]
    _check_space(folder, sum(sizes[number - 1] for number in missing))
    reporter.step("parts", sum(sizes[number - 1] for number in missing))

    hashes: dict[str, str] = {}

    def write(number: int, block: bytearray, told: Progress) -> None:
        staged = folder / PARTIAL / part_name(number)
        start = (number - 1) * part_bytes
        found = write_file(staged, archive.read(start, start + sizes[number - 1], block), told)
        staged.replace(folder / part_name(number))
        hashes[part_name(number)] = found.sha256

    # One after the other: a disk that parts are carried on is seldom fast at two places.
    each_file(missing, write, lambda number: -number, workers=1, progress=reporter.advance)
    again = [folder / name for name in listing.names if name not in hashes]
    reporter.step("sums of parts that were there", sum(path.stat().st_size for path in again))
    found = hash_files(again, progress=reporter.advance)
    hashes.update({path.name: one.sha256 for path, one in found.items()})
    text = listing.text().encode()
    hashes[LISTING] = hashlib.sha256(text).hexdigest()
    _write_last(folder, LISTING, text)
    _write_last(folder, PARTS_SUMS, sums.text(hashes).encode())
    shutil.rmtree(folder / PARTIAL)
    return listing


def _prepare(folder: Path, listing: Listing) -> None:
    """Keep parts of the same bundle, cut in the same way; everything else in the folder is somebody's, or goes."""
    there = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    foreign = sorted(name for name in there - {PARTIAL, LISTING, PARTS_SUMS} if not PART.fullmatch(name))
    if foreign:
        raise BundleError(f"{folder} holds something else than parts ({foreign[0]}); remove it, or move it away")
    plan = folder / PARTIAL / _PLAN
    text = listing.text()
    same = plan.is_file() and plan.read_text() == text
    if not same and (folder / LISTING).is_file():
        same = (folder / LISTING).read_text() == text
    (folder / PARTS_SUMS).unlink(missing_ok=True)
    for name in there - {PARTIAL}:
        if name == LISTING or not same or name not in listing.names:
            (folder / name).unlink(missing_ok=True)
    plan.parent.mkdir(parents=True, exist_ok=True)
    for staged in plan.parent.iterdir():
        staged.unlink()
    plan.write_text(text)


def _is_there(part: Path, size: int) -> bool:
    return part.is_file() and part.stat().st_size == size


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise BundleError(f"{folder} needs {decimal(needed)} more for parts; its file system has {decimal(free)}")


def _write_last(folder: Path, name: str, content: bytes) -> None:
    staged = folder / PARTIAL / name
    staged.write_bytes(content)
    sync(staged)
    staged.replace(folder / name)
    sync(folder)
