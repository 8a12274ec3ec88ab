"""Both readers of HTTP answers agree on every answer, wherever the reads are cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_node.load.framing import BadAnswerError, Framing, backend
from vllm_node.load.wire_httptools import httptools_framing
from vllm_node.load.wire_stdlib import StdlibFraming

READERS: list[Callable[[bool], Framing]] = [StdlibFraming, httptools_framing]
BODIES = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
CUTS = st.lists(st.integers(1, 30), max_size=40)


def cut(data: bytes, sizes: Iterable[int]) -> list[bytes]:
    """`data` in pieces of these sizes, the rest in one."""
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [piece for piece in (*pieces, data) if piece]


def chunked(pieces: Iterable[bytes], trailer: bytes = b"", extension: bytes = b"") -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces)
    return head + chunks + b"0\r\n" + trailer + b"\r\n"


def counted(body: bytes, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length:%d\r\n\r\n%b" % (status, len(body), body)


def read(framing: Framing, pieces: list[bytes]) -> tuple[bytes, list[bool]]:
    """The body, and after which reads the answer was complete."""
    body, complete = b"", []
    for piece in pieces:
        body += b"".join(framing.feed(piece))
        complete.append(framing.complete)
    return body, complete


@pytest.mark.parametrize("reader", READERS)
@given(pieces=BODIES, sizes=CUTS, trailer=st.sampled_from([b"", b"X-Sum: 1\r\n"]), extension=st.sampled_from([b"", b";a=b"]))
def test_chunked(reader: Callable[[bool], Framing], pieces: list[bytes], sizes: list[int], trailer: bytes, extension: bytes) -> None:
    framing = reader(True)
    reads = cut(chunked(pieces, trailer, extension), sizes)
    body, complete = read(framing, reads)
    assert body == b"".join(pieces)
    # Complete with the last read and not before.
    assert complete == [False] * (len(reads) - 1) + [True]
    assert (framing.status, framing.lazy, framing.keep_alive) == (200, True, True)
    assert framing.content_type == "text/event-stream"


@pytest.mark.parametrize("reader", READERS)
@given(body=st.binary(max_size=80), sizes=CUTS, status=st.sampled_from([200, 404, 500]))
def test_counted(reader: Callable[[bool], Framing], body: bytes, sizes: list[int], status: int) -> None:
    framing = reader(True)
    reads = cut(counted(body, status), sizes)
    seen, complete = read(framing, reads)
    assert (seen, framing.status, framing.lazy) == (body, status, False)
    assert complete == [False] * (len(reads) - 1) + [True]


@pytest.mark.parametrize("reader", READERS)
@given(body=st.binary(max_size=80), sizes=CUTS)
def test_until_the_connection_ends(reader: Callable[[bool], Framing], body: bytes, sizes: list[int]) -> None:
    framing = reader(True)
    seen, complete = read(framing, cut(b"HTTP/1.1 200 OK\r\n\r\n" + body, sizes))
    assert (seen, any(complete)) == (body, False)
    framing.end()
    assert (framing.complete, framing.keep_alive) == (True, False)


@pytest.mark.parametrize("reader", READERS)
@given(pieces=BODIES, short=st.integers(1, 4))
def test_end_in_the_middle_completes_nothing(reader: Callable[[bool], Framing], pieces: list[bytes], short: int) -> None:
    framing = reader(True)
    read(framing, [chunked(pieces)[:-short]])
    framing.end()
    assert not framing.complete


@pytest.mark.parametrize("reader", READERS)
def test_interim_answer_is_passed_over(reader: Callable[[bool], Framing]) -> None:
    framing = reader(True)
    body, complete = read(framing, [b"HTTP/1.1 100 Continue\r\n\r\n", counted(b"ok", 429)])
    assert (body, complete, framing.status) == (b"ok", [False, True], 429)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
    ],
)
def test_keeping_the_connection(reader: Callable[[bool], Framing], head: bytes, kept: bool) -> None:
    framing = reader(True)
    framing.feed(head)
    assert (framing.complete, framing.keep_alive) == (True, kept)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    ],
)
def test_no_http(reader: Callable[[bool], Framing], data: bytes) -> None:
    with pytest.raises(BadAnswerError):
        reader(True).feed(data)


def test_the_light_reader_sees_the_same_end() -> None:
    for data in (chunked([b"a", b"bc"]), counted(b"abc")):
        framing = httptools_framing(False)
        assert [framing.feed(data[:-1]), framing.complete] == [[], False]
        assert [framing.feed(data[-1:]), framing.complete] == [[], True]


def test_names_of_back_ends() -> None:
    assert backend("stdlib").name == "stdlib"
    assert backend("auto").name == backend("httptools").name == "httptools"
    with pytest.raises(ValueError, match="no back end 'curl'"):
        backend("curl")
