"""A server that streams at known times, in a process of its own: what the self-test measures against.

It knows how late it was itself, so that its own limit is not taken for the generator's.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import re
import sys
from dataclasses import dataclass
from typing import cast

from vllm_node.load.alarm import Alarm, now_ns
from vllm_node.load.distribution import Distribution
from vllm_node.load.framing import backend

_MAX_TOKENS = re.compile(rb'"max_tokens":(\d+)')
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass(frozen=True)
class Timing:
    """Nanoseconds from a request to its first token, and between tokens."""

    ttft_ns: int
    itl_ns: int


def _chunk(event: object) -> bytes:
    data = b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


# As long as one of vLLM's, so that reading it costs as much.
_TOKEN = _chunk(
    {
        "id": "cmpl-0123456789abcdef0123456789abcdef",
        "object": "text_completion",
        "created": 1795982416,
        "model": "timed",
        "choices": [
            {
                "index": 0,
                "text": " the",
                "logprobs": None,
                "finish_reason": None,
                "stop_reason": None,
                "prompt_token_ids": None,
                "token_ids": None,
            }
        ],
    }
)


class _Stream(asyncio.Protocol):
    def __init__(self, server: _Server) -> None:
        self.server = server
        self.transport: asyncio.Transport | None = None
        self.rest = b""
        self.left = self.tokens = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self.left = 0
        self.transport = None

    def data_received(self, data: bytes) -> None:
        self.rest += data
        ends = self.rest.find(b"\r\n\r\n")
        length = _LENGTH.search(self.rest, 0, max(0, ends))
        if ends < 0 or length is None or len(self.rest) < ends + 4 + int(length[1]):
            return
        asked = _MAX_TOKENS.search(self.rest, ends)
        self.rest = b""
        self.left = self.tokens = int(asked[1]) if asked else 1
        assert self.transport is not None
        self.transport.write(_HEAD)
        self.server.push(now_ns() + self.server.timing.ttft_ns, self)

    def token(self, due: int) -> None:
        if self.transport is None or not self.left:
            return
        self.left -= 1
        if self.left:
            self.transport.write(_TOKEN)
            self.server.push(due + self.server.timing.itl_ns, self)
            return
        usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": self.tokens}}
        self.transport.write(_TOKEN + _chunk(usage) + _chunk(b"[DONE]") + b"0\r\n\r\n")


class _Server:
    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.late = Distribution()
        self._heap: list[tuple[int, int, _Stream]] = []
        self._number = 0
        self._alarm = Alarm(asyncio.get_running_loop(), self._fire)

    def push(self, due: int, stream: _Stream) -> None:
        self._number += 1
        heapq.heappush(self._heap, (due, self._number, stream))
        if self._heap[0][0] == due:
            self._alarm.set(due)

    def _fire(self) -> None:
        for _ in range(64):
            if not self._heap or self._heap[0][0] > now_ns():
                break
            due, _, stream = heapq.heappop(self._heap)
            self.late.add((now_ns() - due) // 1000)
            stream.token(due)
        if self._heap:
            self._alarm.set(self._heap[0][0])


async def _serve(timing: Timing) -> None:
    loop = asyncio.get_running_loop()
    server = _Server(timing)
    listener = await loop.create_server(lambda: _Stream(server), "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(f"{listener.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    done = asyncio.Event()
    # Whoever started it closes its standard input, or has died and so closed it.
    loop.add_reader(sys.stdin.fileno(), done.set)
    await done.wait()
    sys.stdout.write(json.dumps({"late_p99_s": server.late.nearest_rank(0.99), **server.late.summary()}) + "\n")


def main() -> None:
    """`python -m vllm_node.load.timed TTFT_US ITL_US`: prints its port, then, when its input ends, how late it was."""
    ttft_us, itl_us = map(int, sys.argv[1:])
    loop = backend().new_loop()
    loop.run_until_complete(_serve(Timing(ttft_us * 1000, itl_us * 1000)))


if __name__ == "__main__":
    main()
