"""Raw answers on their way to a file, compressed, so that an hour of them fits in memory.

A thread of its own compresses and writes: a slow disk would stop the event loop, and zlib works without the
interpreter's lock.
"""

from __future__ import annotations

import json
import struct
import threading
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO, TypeAlias

from vllm_node.load.wire import Exchange

# index, scored, last part, scheduled, started, sent, end, reads, bytes of kind and detail
_HEAD = struct.Struct("<q??qqqqII")
_BLOCK = struct.Struct("<I")
_BLOCK_BYTES = 256 * 1024
# Head with texts, stamps, reads
_Item: TypeAlias = "tuple[bytes, array[int], list[bytes]]"
_DETAIL_LIMIT = 200
# Handed over together: each hand-over makes the event loop and the thread change places.
_AT_ONCE = 64


@dataclass(frozen=True)
class Part:
    """Some reads of one exchange with their stamps; `kind` and the times hold in its last part."""

    index: int
    scored: bool
    last: bool
    scheduled: int
    started: int
    sent: int
    end: int
    kind: str
    detail: str
    stamps: array[int]
    reads: list[bytes]


class SpoolWriter:
    """Takes exchanges from the event loop and writes them in blocks."""

    def __init__(self, path: Path) -> None:
        """Begin a new file."""
        self._file = path.open("wb")
        self._ready: list[_Item] = []
        self._queue: SimpleQueue[list[_Item] | None] = SimpleQueue()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._work, name="spool", daemon=True)
        self._thread.start()

    def put(self, exchange: Exchange) -> None:
        """Take what an exchange has read so far; its end when it has one."""
        text = json.dumps([exchange.kind, exchange.detail[:_DETAIL_LIMIT]]).encode() if exchange.kind else b""
        stamps, reads = exchange.take_reads()
        head = _HEAD.pack(
            exchange.index,
            exchange.scored,
            bool(exchange.kind),
            exchange.scheduled,
            exchange.started,
            exchange.sent,
            exchange.end,
            len(reads),
            len(text),
        )
        self._ready.append((head + text, stamps, reads))
        if len(self._ready) >= _AT_ONCE:
            self._hand_over()

    @property
    def backlog(self) -> int:
        """How many are waiting to be written, about."""
        return self._queue.qsize() * _AT_ONCE + len(self._ready)

    def close(self) -> None:
        """Write all that is left.

        Raises:
            OSError: something could not be written, now or before.
        """
        self._hand_over()
        self._queue.put(None)
        self._thread.join()
        self._file.close()
        if self._error:
            raise self._error

    def _hand_over(self) -> None:
        self._queue.put(self._ready)
        self._ready = []

    def _work(self) -> None:
        pending: list[bytes] = []
        size = 0
        while (items := self._queue.get()) is not None:
            if self._error:
                continue  # the queue still has to be emptied
            for head, stamps, reads in items:
                lengths = array("I", map(len, reads))
                pending += [head, stamps.tobytes(), lengths.tobytes(), *reads]
                size += len(head) + 12 * len(reads) + sum(lengths)
            if size >= _BLOCK_BYTES:
                self._write(pending)
                pending, size = [], 0
        if pending and not self._error:
            self._write(pending)

    def _write(self, pieces: list[bytes]) -> None:
        try:
            _write_block(self._file, pieces)
        except OSError as error:
            self._error = error


def _write_block(file: BinaryIO, pieces: list[bytes]) -> None:
    block = zlib.compress(b"".join(pieces), 1)
    file.write(_BLOCK.pack(len(block)))
    file.write(block)


def read(path: Path) -> Iterator[Part]:
    """The parts in the order in which they were taken; a last block that was cut off is left out."""
    with path.open("rb") as file:
        while len(head := file.read(_BLOCK.size)) == _BLOCK.size:
            (size,) = _BLOCK.unpack(head)
            block = file.read(size)
            if len(block) < size:
                return
            yield from _parts(zlib.decompress(block))


def _parts(block: bytes) -> Iterator[Part]:
    at = 0
    while at < len(block):
        index, scored, last, scheduled, started, sent, end, count, text_size = _HEAD.unpack_from(block, at)
        at += _HEAD.size
        kind, detail = json.loads(block[at : at + text_size]) if text_size else ("", "")
        at += text_size
        stamps, lengths = array("q"), array("I")
        stamps.frombytes(block[at : at + 8 * count])
        at += 8 * count
        lengths.frombytes(block[at : at + 4 * count])
        at += 4 * count
        reads = []
        for length in lengths:
            reads.append(block[at : at + length])
            at += length
        yield Part(index, scored, last, scheduled, started, sent, end, kind, detail, stamps, reads)
