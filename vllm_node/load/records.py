"""One compact record for each request: what was asked for, when, and when each piece of content came.

A record takes about a hundred bytes and four more for each content event: the gaps between these, in microseconds.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

MAGIC = b"vllm-node load records 2\n"
OK = "ok"
_LENGTH = struct.Struct("<I")
# index, scored, status, scheduled, started, sent, first byte, end, bytes, prompt, cached and output tokens,
# empty events, workflow, call, content events, bytes of kind, finish reason and detail
_HEAD = struct.Struct("<q?HqqqqqQiiiIiIIBBB")
_REFUSED = frozenset({"http_429", "http_503"})
_CANCELLED = frozenset({"cancelled", "interrupted"})
_HELD_BACK = "held_back"


@dataclass
class Record:
    """Times are `time.monotonic_ns` of the generator's machine; 0 means that it did not come to that.

    `contents_us` are the times of content events in microseconds after `sent`. Token counts are the server's own
    (`usage`), None where it gave none. `kind` is "ok" or what went wrong. `call` counts the calls of a `workflow`
    from 0; a request on its own belongs to none.
    """

    index: int
    kind: str
    scored: bool = True
    status: int = 0
    scheduled: int = 0
    started: int = 0
    sent: int = 0
    first_byte: int = 0
    end: int = 0
    size: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    empty_events: int = 0
    finish_reason: str = ""
    detail: str = ""
    contents_us: array[int] = field(default_factory=lambda: array("q"))
    workflow: int | None = None
    call: int = 0

    @property
    def group(self) -> str:
        """ok, error, timeout, refused, cancelled or held_back (never sent, by a limit of the plan)."""
        if self.kind in (OK, _HELD_BACK):
            return self.kind
        if self.kind in _REFUSED:
            return "refused"
        if self.kind in _CANCELLED:
            return "cancelled"
        return "timeout" if self.kind.endswith("_timeout") else "error"

    def ttft_sent_us(self) -> int | None:
        """Send to first content; None without content."""
        return self.contents_us[0] if self.contents_us else None

    def ttft_scheduled_us(self) -> int | None:
        """Scheduled arrival to first content, which is what a user waits; None without content."""
        return self.contents_us[0] + (self.sent - self.scheduled) // 1000 if self.contents_us else None

    def tpot_us(self) -> float | None:
        """(last content - first content) / (output tokens - 1); None below two tokens or without usage."""
        if not self.output_tokens or self.output_tokens < 2 or not self.contents_us:
            return None
        return (self.contents_us[-1] - self.contents_us[0]) / (self.output_tokens - 1)

    def gaps_us(self) -> Iterator[int]:
        """Every gap between content events."""
        return (after - before for before, after in zip(self.contents_us, self.contents_us[1:], strict=False))

    def e2e_sent_us(self) -> int:
        """Send to last byte."""
        return (self.end - self.sent) // 1000

    def e2e_scheduled_us(self) -> int:
        """Scheduled arrival to last byte."""
        return (self.end - self.scheduled) // 1000


class RecordWriter:
    """Writes records to a file as they come; use it as a context."""

    def __init__(self, path: Path) -> None:
        """Begin a new file."""
        self._file = path.open("wb")
        self._file.write(MAGIC)

    def __enter__(self) -> RecordWriter:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()

    def write(self, record: Record) -> None:
        """Write one."""
        body = pack(record)
        self._file.write(_LENGTH.pack(len(body)) + body)


def pack(record: Record) -> bytes:
    """A record as bytes."""
    texts = [text.encode()[:255] for text in (record.kind, record.finish_reason, record.detail)]
    head = _HEAD.pack(
        record.index,
        record.scored,
        record.status,
        record.scheduled,
        record.started,
        record.sent,
        record.first_byte,
        record.end,
        record.size,
        *(-1 if count is None else count for count in (record.prompt_tokens, record.cached_tokens)),
        -1 if record.output_tokens is None else record.output_tokens,
        record.empty_events,
        -1 if record.workflow is None else record.workflow,
        record.call,
        len(record.contents_us),
        *map(len, texts),
    )
    gaps = array("I")
    before = 0
    for at in record.contents_us:
        gaps.append(at - before)
        before = at
    return head + b"".join(texts) + gaps.tobytes()


def unpack(body: bytes) -> Record:
    """A record out of its bytes."""
    index, scored, status, scheduled, started, sent, first_byte, end, size, *counts = _HEAD.unpack_from(body)
    prompt, cached, output, empty, workflow, call, contents, *lengths = counts
    at = _HEAD.size
    texts = []
    for length in lengths:
        texts.append(body[at : at + length].decode(errors="ignore"))
        at += length
    gaps = array("I")
    gaps.frombytes(body[at : at + 4 * contents])
    times = array("q")
    now = 0
    for gap in gaps:
        now += gap
        times.append(now)
    prompt, cached, output = (None if count < 0 else count for count in (prompt, cached, output))
    return Record(
        *(index, texts[0], scored, status, scheduled, started, sent, first_byte, end, size, prompt, cached, output),
        *(empty, texts[1], texts[2], times, None if workflow < 0 else workflow, call),
    )


def read(path: Path) -> Iterator[Record]:
    """Records in the order in which they were written; a last one that was cut off is left out.

    Raises:
        ValueError: the file holds no records of this kind.
    """
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"{path} does not hold records that this version can read")
        while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
            (size,) = _LENGTH.unpack(head)
            body = file.read(size)
            if len(body) < size:
                return
            yield unpack(body)
