"""HTTP/1.1 answers read by httptools, as uvicorn has it: the vLLM image brings it."""

from __future__ import annotations

import httptools

from vllm_node.load.framing import BadAnswerError


class HttptoolsEnd:
    """See `Framing`; gives no bodies, which spares one call for each chunk."""

    def __init__(self) -> None:
        """Nothing has been read."""
        self.status = 0
        self.content_type = ""
        self.lazy = False
        self.between_chunks = False
        self.complete = False
        self.keep_alive = True
        self._counted = False
        self._body: list[bytes] = []
        # It refers back to this object. The circle is cut at the end, as a stage runs without garbage collection.
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> list[bytes]:
        """See `Framing.feed`."""
        if self._parser is None:
            return []
        self._body = []
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            # What follows a whole answer is the connection's business, not this answer's.
            if not self.complete:
                raise BadAnswerError(str(error)) from None
        if self.complete:
            self._parser = None
        return self._body

    def end(self) -> None:
        """See `Framing.end`."""
        if self.status and not self.lazy and not self._counted:
            self.complete = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """A line of the head or a trailer; called by httptools."""
        lowered = name.lower()
        if lowered == b"transfer-encoding":
            self.lazy = value.lower().endswith(b"chunked")
        elif lowered == b"content-length":
            self._counted = True
        elif lowered == b"content-type":
            self.content_type = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head has been read; called by httptools."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
            self.keep_alive = self._parser.should_keep_alive() and (self.lazy or self._counted or status in (204, 304))

    def on_message_complete(self) -> None:
        """The answer has ended; called by httptools, for interim answers as well."""
        if self.status:
            self.complete = True


class HttptoolsFraming(HttptoolsEnd):
    """See `Framing`; gives the bodies."""

    def on_body(self, piece: bytes) -> None:
        """Part of the body; called by httptools."""
        self._body.append(piece)
        self.between_chunks = False

    def on_chunk_header(self) -> None:
        """A chunk begins; called by httptools."""
        self.between_chunks = False

    def on_chunk_complete(self) -> None:
        """A chunk has ended; called by httptools."""
        self.between_chunks = True


def httptools_framing(body: bool = True) -> HttptoolsEnd:
    """A reader of one answer."""
    return HttptoolsFraming() if body else HttptoolsEnd()
