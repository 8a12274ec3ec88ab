"""HTTP/1.1 answers read with nothing but the standard library."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from vllm_node.load.framing import BadAnswerError

_HEAD_LIMIT = 65536
_LINE_LIMIT = 256
_State: TypeAlias = "Callable[[StdlibFraming, bytes, int, list[bytes]], int]"


class StdlibFraming:
    """See `Framing`."""

    __slots__ = (
        "_bodies",
        "_left",
        "_rest",
        "_state",
        "between_chunks",
        "complete",
        "content_type",
        "keep_alive",
        "lazy",
        "status",
    )

    def __init__(self, body: bool = True) -> None:
        """Nothing has been read."""
        self.status = 0
        self.content_type = ""
        self.lazy = False
        self.between_chunks = False
        self.complete = False
        self.keep_alive = True
        self._rest = b""
        # A function and no method of this object: a stage runs without garbage collection, so no circles.
        self._state: _State = StdlibFraming._head
        self._left = 0
        self._bodies = body

    def feed(self, data: bytes) -> list[bytes]:
        """See `Framing.feed`."""
        found: list[bytes] = []
        buffer = self._rest + data if self._rest else data
        at = 0
        while not self.complete:
            after = self._state(self, buffer, at, found)
            if after < 0:
                break
            at = after
        self._rest = buffer[at:]
        self.between_chunks = self._state is StdlibFraming._chunk_size and not self._rest
        return found

    def end(self) -> None:
        """See `Framing.end`."""
        if self._state is StdlibFraming._until_end:
            self.complete = True

    # Each state takes the buffer and where to read, and returns where it stopped, or -1 when it needs more.

    def _head(self, buffer: bytes, at: int, _found: list[bytes]) -> int:
        ends = buffer.find(b"\r\n\r\n", at)
        if ends < 0:
            if len(buffer) - at > _HEAD_LIMIT:
                raise BadAnswerError(f"the head of the answer is longer than {_HEAD_LIMIT} bytes")
            if len(buffer) - at >= 5 and not buffer.startswith(b"HTTP/", at):
                raise BadAnswerError(f"an answer that begins with {buffer[at : at + 16]!r}")
            return -1
        first, *lines = buffer[at:ends].split(b"\r\n")
        version, status = _status_line(first)
        if 100 <= status < 200:
            return ends + 4  # an interim answer; the real one follows
        self.status = status
        headers = _headers(lines)
        connection = headers.get(b"connection", b"").lower()
        self.keep_alive = b"close" not in connection and (version != b"HTTP/1.0" or b"keep-alive" in connection)
        self.content_type = headers.get(b"content-type", b"").decode("latin-1")
        self._body(headers)
        return ends + 4

    def _body(self, headers: dict[bytes, bytes]) -> None:
        if self.status in (204, 304):
            self.complete = True
        elif headers.get(b"transfer-encoding", b"").lower().endswith(b"chunked"):
            self.lazy = True
            self._state = StdlibFraming._chunk_size
        elif b"content-length" in headers:
            self._left = _number(headers[b"content-length"], 10)
            self._state = StdlibFraming._counted
            self.complete = self._left == 0
        else:
            self.keep_alive = False
            self._state = StdlibFraming._until_end

    def _chunk_size(self, buffer: bytes, at: int, found: list[bytes]) -> int:
        ends = buffer.find(b"\r\n", at)
        if ends < 0:
            if len(buffer) - at > _LINE_LIMIT:
                raise BadAnswerError(f"a chunk that begins with {buffer[at : at + 16]!r}")
            return -1
        # At the end of an answer there are many whole chunks, so these are passed over here.
        while ends >= 0:
            size = _number(buffer[at:ends].partition(b";")[0], 16)
            start, after = ends + 2, ends + 2 + size
            if not size or after + 2 > len(buffer):
                self._left = size
                self._state = StdlibFraming._chunk if size else StdlibFraming._trailer
                return start
            if not buffer.startswith(b"\r\n", after):
                raise BadAnswerError(f"a chunk that is longer than it says: {buffer[after : after + 16]!r}")
            if self._bodies:
                found.append(buffer[start:after])
            at = after + 2
            ends = buffer.find(b"\r\n", at)
        return at

    def _chunk(self, buffer: bytes, at: int, found: list[bytes]) -> int:
        piece = buffer[at : at + self._left]
        if not piece:
            return -1
        found.append(piece)
        self._left -= len(piece)
        if not self._left:
            self._state = StdlibFraming._chunk_end
        return at + len(piece)

    def _chunk_end(self, buffer: bytes, at: int, _found: list[bytes]) -> int:
        if len(buffer) - at < 2:
            return -1
        if not buffer.startswith(b"\r\n", at):
            raise BadAnswerError(f"a chunk that is longer than it says: {buffer[at : at + 16]!r}")
        self._state = StdlibFraming._chunk_size
        return at + 2

    def _trailer(self, buffer: bytes, at: int, _found: list[bytes]) -> int:
        ends = buffer.find(b"\r\n", at)
        if ends == at:
            self.complete = True
        return ends + 2 if ends >= 0 else -1

    def _counted(self, buffer: bytes, at: int, found: list[bytes]) -> int:
        piece = buffer[at : at + self._left]
        if not piece:
            return -1
        found.append(piece)
        self._left -= len(piece)
        self.complete = self._left == 0
        return at + len(piece)

    def _until_end(self, buffer: bytes, at: int, found: list[bytes]) -> int:
        if at == len(buffer):
            return -1
        found.append(buffer[at:])
        return len(buffer)


def _status_line(line: bytes) -> tuple[bytes, int]:
    version, _, rest = line.partition(b" ")
    if not version.startswith(b"HTTP/1."):
        raise BadAnswerError(f"an answer that begins with {line[:32]!r}")
    return version, _number(rest[:3], 10)


def _headers(lines: list[bytes]) -> dict[bytes, bytes]:
    found = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise BadAnswerError(f"a header line without a colon: {line[:32]!r}")
        found[name.strip().lower()] = value.strip()
    return found


def _number(text: bytes, base: int) -> int:
    digits = text.strip()
    # int() would take a sign and underscores.
    if not digits.isalnum():
        raise BadAnswerError(f"{text[:16]!r} where a number should be")
    try:
        return int(digits, base)
    except ValueError:
        raise BadAnswerError(f"{text[:16]!r} where a number should be") from None
