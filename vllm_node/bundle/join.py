"""Makes a bundle of its parts again. Nothing of it has its final name before all of it is there and right.

A part is hashed when the first of its bytes is needed, and the next one meanwhile: so a disk is read once, where memory
holds two parts. The first wrong part ends the work, and all the others are looked at for the message.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from rich.filesize import decimal

from vllm_node.bundle import sums
from vllm_node.bundle.copying import sync, write_file
from vllm_node.bundle.hashing import BLOCK_BYTES, FileHash, hash_files, open_regular
from vllm_node.bundle.layout import PARTIAL, SIGNATURE, SUMS, BundleError, safe_path, shown
from vllm_node.bundle.parts import LISTING, PART, PARTS_SUMS, Listing
from vllm_node.bundle.reporter import Reporter
from vllm_node.bundle.workspace import Workspace

_SMALL_BYTES = 1 << 20


def join(folder: Path, output: Path, reporter: Reporter) -> Path:
    """Make the bundle `output` of the parts in `folder`; an interrupted run is gone on with.

    Raises BundleError, which names every part that is missing, cut, swapped or foreign, and OSError.
    """
    listing, wanted = _read(folder)
    if _is_there(output, listing):
        reporter.note(f"{output} is this bundle already")
        return output
    work_folder = output.absolute().with_name(f".{output.absolute().name}.joining")
    with Workspace(work_folder) as work, _Parts(folder, listing, wanted) as parts:
        work.look_again()
        _check_space(work, listing)
        reporter.step("joining", sum(listing.sizes))
        _unpack(work, parts, listing, reporter)
        # The folder moves under the lock, and the lock with it.
        work_folder.replace(output)
        sync(output.absolute().parent)
    return output


def _read(folder: Path) -> tuple[Listing, dict[str, str]]:
    """The listing and the sums of the parts, when the parts that are there fit both by name and size."""
    try:
        wanted, problems = sums.read(folder / PARTS_SUMS)
    except OSError as error:
        raise BundleError(
            f"{folder / PARTS_SUMS} cannot be read: {error.strerror or error}. It is written last: the parts were not "
            "finished, or not all was brought"
        ) from error
    listing = Listing.read(folder)
    digest = hash_files([folder / LISTING], follow=False)[folder / LISTING].sha256
    if digest != wanted.pop(LISTING, None):
        problems.append(f"{LISTING} is not what {PARTS_SUMS} says: it was changed, or is of another bundle")
    if set(wanted) != set(listing.names):
        problems.append(f"{PARTS_SUMS} and {LISTING} do not name the same parts")
    for name, size in zip(listing.names, listing.sizes, strict=True):
        path = folder / name
        if path.is_symlink() or not path.is_file():
            problems.append(f"{name} is missing")
        elif path.stat().st_size != size:
            cut = "was cut: it has" if path.stat().st_size < size else "is too long: it has"
            problems.append(f"{name} {cut} {path.stat().st_size} bytes of {size}")
    foreign = {entry.name for entry in folder.iterdir() if PART.match(entry.name)} - set(listing.names)
    problems += [f"{name} is none of these parts" for name in sorted(foreign)]
    _refuse(folder, problems)
    return listing, wanted


def _refuse(folder: Path, problems: list[str]) -> None:
    if problems:
        told = "\n".join(f"  {problem}" for problem in problems)
        raise BundleError(f"{folder} is not all of a bundle:\n{told}\nBring these again; what is joined by now stays")


def _is_there(output: Path, listing: Listing) -> bool:
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return False
    try:
        found = hashlib.sha256(sums.read_small(output / SUMS, sums.MAX_BYTES)).hexdigest()
    except OSError:
        found = ""
    if found == listing.bundle_sha256 and not (output / PARTIAL).exists():
        return True
    raise BundleError(f"{output} is there, and is not this bundle; name another place, or remove it")


def _check_space(work: Workspace, listing: Listing) -> None:
    there = sum(path.stat().st_size for path in work.bundle.rglob("*") if path.is_file())
    needed = sum(listing.sizes) - there
    free = shutil.disk_usage(work.bundle).free
    if needed > free:
        raise BundleError(f"{work.bundle} needs {decimal(needed)} more; its file system has {decimal(free)}")


def _unpack(work: Workspace, parts: _Parts, listing: Listing, reporter: Reporter) -> None:
    block = bytearray(BLOCK_BYTES)
    listed: dict[str, str] = {}
    text = signature = None
    there = set()
    for path, offset, size in _members(parts):
        if text is None:
            text = parts.content(path, SUMS, offset, size, sums.MAX_BYTES)
            listed = _sums(work, text, listing)
        elif path == SIGNATURE:
            signature = parts.content(path, SIGNATURE, offset, size, _SMALL_BYTES)
        elif path not in listed or path in there:
            raise BundleError(f"the parts hold {shown(path)}, which their {SUMS} does not name")
        elif work.known(path) != FileHash(listed[path], size):
            staged = work.staging("join")
            found = write_file(staged, parts.pieces(offset, size, block), reporter.advance)
            if found.sha256 != listed[path]:
                raise BundleError(f"{path} is not what {SUMS} says; it was changed before the parts were made")
            work.adopt(staged, path, found)
            there.add(path)
            continue
        else:
            there.add(path)
        reporter.advance(size)
    missing = sorted(set(listed) - there)
    if text is None or missing:
        raise BundleError(f"the parts hold no {missing[0] if missing else SUMS}: they are not a bundle's")
    work.close(listed, text, signature)


def _sums(work: Workspace, text: bytes, listing: Listing) -> dict[str, str]:
    if hashlib.sha256(text).hexdigest() != listing.bundle_sha256:
        raise BundleError(f"the {SUMS} in the parts is not the one that {LISTING} tells")
    staged = work.staging("sums")
    staged.write_bytes(text)
    listed, problems = sums.read(staged)
    if problems:
        raise BundleError(f"the {SUMS} in the parts cannot be read: {problems[0]}")
    return listed


def _members(parts: _Parts) -> Iterator[tuple[str, int, int]]:
    """Path, place and size of each file; what is none is refused."""
    try:
        with tarfile.open(fileobj=parts, mode="r:") as archive:
            for entry in archive:
                if entry.type != tarfile.REGTYPE:
                    raise BundleError(f"the parts hold {shown(entry.name)}, which is no plain file")
                yield safe_path(entry.name), entry.offset_data, entry.size
    except (tarfile.TarError, ValueError) as error:
        raise BundleError(f"the parts do not hold a bundle: {error}") from error


class _Parts(io.RawIOBase):
    """The parts as one file. Each is hashed before a byte of it is given away."""

    def __init__(self, folder: Path, listing: Listing, wanted: Mapping[str, str]) -> None:
        super().__init__()
        self._folder, self._listing, self._wanted = folder, listing, wanted
        self._position = 0
        self._pool = ThreadPoolExecutor(2)
        self._hashes: dict[int, Future[str]] = {}
        self._open: dict[int, int] = {}

    def __enter__(self) -> _Parts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: sum(self._listing.sizes)}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        # All that is asked for, also from part to part: readers of archives take less for the end.
        view, done = memoryview(buffer), 0
        while done < len(view):
            number, offset = divmod(self._position, self._listing.part_bytes)
            if number >= len(self._listing.sizes):
                break
            count = os.preadv(self._checked(number), [view[done:]], offset)
            if not count:
                break
            self._position += count
            done += count
        return done

    def pieces(self, offset: int, size: int, block: bytearray) -> Iterator[memoryview]:
        """A range, piece by piece in `block`. Raises BundleError when it is not all there."""
        view = memoryview(block)
        while size:
            self.seek(offset)
            count = self.readinto(view[:size])
            if not count:
                raise BundleError("the parts end in the middle of a file")
            yield view[:count]
            offset, size = offset + count, size - count

    def content(self, path: str, name: str, offset: int, size: int, limit: int) -> bytes:
        """A small file, which has to be `name`. Raises BundleError."""
        if path != name or size > limit:
            raise BundleError(f"the parts hold {shown(path)} of {size} bytes where {name} should be")
        return b"".join(bytes(piece) for piece in self.pieces(offset, size, bytearray(BLOCK_BYTES)))

    def _checked(self, number: int) -> int:
        """Descriptor of a part that is what it should be."""
        if number not in self._open:
            for descriptor in self._open.values():
                os.close(descriptor)
            self._open.clear()
            found = self._hash(number).result()
            if number + 1 < len(self._listing.sizes):
                self._hash(number + 1)
            if found != self._wanted[self._listing.names[number]]:
                _refuse(self._folder, self._all_wrong())
            self._open[number] = open_regular(self._folder / self._listing.names[number], follow=False)
        return self._open[number]

    def _hash(self, number: int) -> Future[str]:
        path = self._folder / self._listing.names[number]
        if number not in self._hashes:
            self._hashes[number] = self._pool.submit(lambda: hash_files([path], follow=False)[path].sha256)
        return self._hashes[number]

    def _all_wrong(self) -> list[str]:
        names = self._listing.names
        rightful = {digest: name for name, digest in self._wanted.items()}
        problems = []
        for number, name in enumerate(names):
            found = self._hash(number).result()
            if found == self._wanted[name]:
                continue
            other = rightful.get(found)
            problems.append(
                f"{name} is what {other} should be: they were swapped"
                if other
                else f"{name} is damaged, or is a part of another bundle"
            )
        return problems
