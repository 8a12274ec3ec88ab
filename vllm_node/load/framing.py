"""What both readers of HTTP/1.1 answers offer, and the choice between them."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class BadAnswerError(Exception):
    """The bytes are no HTTP/1.1 answer."""


class Framing(Protocol):
    """Reads one answer from bytes that come in pieces cut anywhere.

    `status` is 0 until the head has been read. `lazy` says that the body is chunked, so that its end can be seen
    from the last bytes of a read. `between_chunks`: a whole chunk has just ended. `complete` is the end of the message.
    """

    status: int
    content_type: str
    lazy: bool
    between_chunks: bool
    complete: bool
    keep_alive: bool

    def feed(self, data: bytes) -> list[bytes]:
        """Pieces of the body in `data`.

        Raises:
            BadAnswerError: this is no HTTP/1.1 answer.
        """

    def end(self) -> None:
        """The connection has ended, which completes a body of unknown length."""


@dataclass(frozen=True)
class Backend:
    """A reader of answers and the event loop that goes with it.

    `framing(True)` reads bodies too; `framing(False)` may leave them out and only look for the end.
    """

    name: str
    framing: Callable[[bool], Framing]
    new_loop: Callable[[], asyncio.AbstractEventLoop]


NAMES = ("auto", "stdlib", "httptools")


def backend(name: str = "auto") -> Backend:
    """The back end of that name; `auto` takes httptools with uvloop where both are installed.

    Raises:
        ValueError: no such name, or it is not installed here.
    """
    if name not in NAMES:
        raise ValueError(f"no back end {name!r}; there are {', '.join(NAMES)}")
    installed = all(importlib.util.find_spec(one) for one in ("httptools", "uvloop"))
    if name == "httptools" and not installed:
        raise ValueError("the back end httptools needs the packages httptools and uvloop")
    if name == "stdlib" or not installed:
        from vllm_node.load.wire_stdlib import StdlibFraming

        return Backend("stdlib", StdlibFraming, asyncio.SelectorEventLoop)
    import uvloop

    from vllm_node.load.wire_httptools import httptools_framing

    return Backend("httptools", httptools_framing, uvloop.new_event_loop)
