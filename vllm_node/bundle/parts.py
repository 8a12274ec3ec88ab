"""A bundle in numbered parts: for disks and shares that are smaller than it is.

`bundle.part-0001` and so on are one tar archive, cut at a fixed size: `cat bundle.part-* | tar x` is the way without
this toolkit. `parts.json` tells how many there are and how large; `PARTS.SHA256SUMS` has a line for each of them and
for `parts.json`, and is written last.

The archive is a plain function of the bundle: members in the order of their names, no times, no owners. So each part
can be made alone, and one that is there need not be made again.
"""

from __future__ import annotations

import bisect
import itertools
import json
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_node.bundle.hashing import open_regular
from vllm_node.bundle.layout import SIGNATURE, SUMS, BundleError, shown
from vllm_node.bundle.sums import read_small

SCHEMA = 1
LISTING = "parts.json"
PARTS_SUMS = "PARTS.SHA256SUMS"
PART = re.compile(r"bundle\.part-(\d{4,})")
_LISTING_MAX_BYTES = 16 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")


def part_name(number: int) -> str:
    """Name of a part; the first one has number 1."""
    return f"bundle.part-{number:04}"


@dataclass(frozen=True)
class Listing:
    """What `parts.json` says. bundle_sha256: of the bundle's own sums; sizes: bytes of each part, in their order."""

    bundle_sha256: str
    part_bytes: int
    sizes: tuple[int, ...]

    @property
    def names(self) -> list[str]:
        """Names of the parts, in their order."""
        return [part_name(number) for number in range(1, len(self.sizes) + 1)]

    def text(self) -> str:
        """The file."""
        parts = [{"name": name, "bytes": size} for name, size in zip(self.names, self.sizes, strict=True)]
        document = {
            "schema": SCHEMA,
            "bundle_sha256": self.bundle_sha256,
            "part_bytes": self.part_bytes,
            "count": len(parts),
            "bytes": sum(self.sizes),
            "parts": parts,
        }
        return json.dumps(document, indent=1) + "\n"

    @classmethod
    def read(cls, folder: Path) -> Listing:
        """The listing in a folder of parts. Raises BundleError."""
        try:
            said: Any = json.loads(read_small(folder / LISTING, _LISTING_MAX_BYTES))
            if said["schema"] != SCHEMA:
                raise ValueError(f"its schema is {shown(said['schema'])}, this toolkit reads {SCHEMA}")
            sizes = tuple(int(one["bytes"]) for one in said["parts"])
            found = cls(str(said["bundle_sha256"]), int(said["part_bytes"]), sizes)
            if [one["name"] for one in said["parts"]] != found.names or said["count"] != len(sizes):
                raise ValueError("its parts are not numbered one after the other")
            if not _SHA256.fullmatch(found.bundle_sha256) or min(sizes, default=0) <= 0:
                raise ValueError("a size or a checksum is none")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise BundleError(f"{folder / LISTING} cannot be read: {error}") from error
        return found


class Archive:
    """The archive of a bundle, which is nowhere on disk: any range of its bytes can be had."""

    def __init__(self, bundle: Path, paths: Sequence[str]) -> None:
        """Over these files. Raises OSError."""
        self._bundle = bundle
        self._pieces: list[bytes | tuple[str, int]] = []
        for path in sorted(paths, key=_order):
            size = (bundle / path).lstat().st_size
            self._pieces += [_header(path, size), (path, size), bytes(-size % tarfile.BLOCKSIZE)]
        lengths = [piece[1] if isinstance(piece, tuple) else len(piece) for piece in self._pieces]
        used = sum(lengths)
        end = 2 * tarfile.BLOCKSIZE
        end += -(used + end) % tarfile.RECORDSIZE
        self._pieces.append(bytes(end))
        self._starts = list(itertools.accumulate([*lengths, end], initial=0))

    @property
    def bytes(self) -> int:
        """Length of the archive."""
        return self._starts[-1]

    def read(self, start: int, end: int, block: bytearray) -> Iterator[memoryview]:
        """The bytes from `start` to before `end`, piece by piece in `block`. Raises OSError: a file has changed."""
        number = bisect.bisect_right(self._starts, start) - 1
        while start < end:
            piece, offset = self._pieces[number], start - self._starts[number]
            count = min(end, self._starts[number + 1]) - start
            if isinstance(piece, tuple):
                yield from self._file(piece[0], offset, count, block)
            elif count:
                yield memoryview(piece)[offset : offset + count]
            start += count
            number += 1

    def _file(self, path: str, offset: int, count: int, block: bytearray) -> Iterator[memoryview]:
        descriptor = open_regular(self._bundle / path, follow=False)
        view = memoryview(block)
        try:
            while count:
                done = os.preadv(descriptor, [view[:count]], offset)
                if not done:
                    raise OSError(f"{self._bundle / path} has become shorter while it was read")
                yield view[:done]
                offset, count = offset + done, count - done
        finally:
            os.close(descriptor)


def _order(path: str) -> tuple[bool, bool, bytes]:
    """The sums come first: whoever unpacks the archive knows then what every file has to hold."""
    return path != SUMS, path != SIGNATURE, path.encode()


def _header(path: str, size: int) -> bytes:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = size, 0o644
    return entry.tobuf(tarfile.GNU_FORMAT)
