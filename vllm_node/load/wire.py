"""Sends requests and keeps what comes back: the raw bytes, and one time stamp for each read of a socket.

Nothing is decoded here but the end of an answer, because every microsecond spent on one stream is an error in the
times of all others.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from vllm_node.load.alarm import now_ns
from vllm_node.load.arrivals import NS
from vllm_node.load.framing import BadAnswerError, Framing
from vllm_node.load.target import request

# How an exchange ends on the wire; what a whole answer means is said in `answer`.
COMPLETE = "complete"
# A body that is kept in this many reads is handed on, so that long answers do not fill the memory.
SPILL_READS = 512
SWEEP_S = 0.05
READ_BYTES = 16384
_CLOSE_NS = 2 * NS


@dataclass(frozen=True)
class Timeouts:
    """Seconds: to connect, from send to first byte, between two reads, and from send to the end."""

    connect_s: float = 5.0
    first_byte_s: float = 60.0
    stall_s: float = 30.0
    total_s: float = 600.0


class Exchange:
    """One request and what came back so far. Times are `time.monotonic_ns`; 0 means not yet."""

    __slots__ = (
        "cancel_ns",
        "connection",
        "detail",
        "end",
        "fed",
        "first_byte",
        "framing",
        "index",
        "kind",
        "last",
        "reads",
        "scheduled",
        "scored",
        "sent",
        "stamps",
        "started",
    )

    def __init__(self, index: int, scheduled: int, scored: bool, framing: Framing, cancel_s: float | None) -> None:
        """Nothing has been sent; `cancel_s` after the start it is given up on purpose."""
        self.index = index
        self.scheduled = scheduled
        self.scored = scored
        self.started = 0
        self.sent = 0
        self.first_byte = 0
        self.last = 0
        self.end = 0
        self.kind = ""
        self.detail = ""
        self.stamps = array("q")
        self.reads: list[bytes] = []
        self.fed = 0
        self.framing = framing
        self.cancel_ns = round(cancel_s * NS) if cancel_s is not None else 0
        self.connection: Connection | None = None

    def take_reads(self) -> tuple[array[int], list[bytes]]:
        """What has been read and handed on by nobody yet."""
        taken = self.stamps, self.reads
        self.stamps, self.reads, self.fed = array("q"), [], 0
        return taken


class Connection(asyncio.Protocol):
    """One connection, which carries one exchange at a time."""

    __slots__ = ("client", "exchange", "idle_since", "transport")

    def __init__(self, client: Client) -> None:
        """Not connected yet."""
        self.client = client
        self.exchange: Exchange | None = None
        self.idle_since = 0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self.transport = cast("asyncio.Transport", transport)
        if hasattr(transport, "max_size"):
            # asyncio takes a quarter of a megabyte for each read, however little there is to read.
            transport.max_size = READ_BYTES
        self.client.made(self)

    def send(self, exchange: Exchange, data: bytes) -> None:
        """Send a request; the connection has to be free."""
        assert self.transport is not None
        self.exchange = exchange
        exchange.connection = self
        exchange.sent = now_ns()
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Called by the loop, once for each read."""
        stamp = now_ns()
        exchange = self.exchange
        if exchange is None:
            self.close()  # nobody asked: whatever this is, it would be taken for the next answer
            return
        exchange.stamps.append(stamp)
        exchange.reads.append(data)
        exchange.last = stamp
        # A chunked message ends with an empty line, whatever its trailers are. Until one ends a read, the reads are
        # only kept: this is the path that each token takes.
        if exchange.framing.lazy and len(data) >= 4 and data[-4:] != b"\r\n\r\n":
            return
        self.look(exchange)

    def eof_received(self) -> bool:
        """Called by the loop; the connection is closed after it."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the loop, once."""
        self.client.lost(self)
        exchange = self.exchange
        if exchange is None:
            return
        self._feed(exchange)
        if not exchange.kind:
            exchange.framing.end()
            if exchange.framing.complete:
                self.client.finish(exchange, COMPLETE)
            elif error is not None:
                self.client.finish(exchange, "reset", str(error))
            else:
                self.client.finish(exchange, "truncated", "the connection was closed before the end of the answer")

    def close(self) -> None:
        """Close at once, with whatever is under way."""
        if self.transport is not None:
            self.transport.abort()

    def look(self, exchange: Exchange) -> None:
        """Read the framing of what came so far."""
        self._feed(exchange)
        if exchange.framing.complete and not exchange.kind:
            self.client.finish(exchange, COMPLETE)

    def _feed(self, exchange: Exchange) -> None:
        """Read the framing of what has not been looked at; each byte is looked at once."""
        if not exchange.first_byte and exchange.stamps:
            exchange.first_byte = exchange.stamps[0]
        unread = exchange.reads[exchange.fed :]
        try:
            # In one go: a call for each read would take most of the time that the end of an answer takes.
            exchange.framing.feed(unread[0] if len(unread) == 1 else b"".join(unread))
        except BadAnswerError as error:
            self.client.finish(exchange, "protocol", str(error))
        exchange.fed = len(exchange.reads)


class Client:
    """Sends exchanges over kept or fresh connections, and watches over their time.

    `finished` is called once for each exchange, `spill` with those whose reads should be taken off before their end.
    """

    def __init__(
        self,
        address: tuple[str, int],
        head: bytes,
        timeouts: Timeouts,
        finished: Callable[[Exchange], None],
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        keep_alive: bool = True,
        idle_s: float = 4.0,
        spill: Callable[[Exchange], None] = lambda _exchange: None,
    ) -> None:
        """`head` is that of each request (see `target`); idle connections are used for `idle_s`."""
        self.loop = asyncio.get_running_loop()
        self.active: dict[int, Exchange] = {}
        self.connects = 0
        self._address = address
        self._head = head
        self._tls = tls
        self._server_name = server_name if tls else None
        self._timeouts = timeouts
        self._limits_ns = [
            round(one * NS) for one in (timeouts.connect_s, timeouts.first_byte_s, timeouts.stall_s, timeouts.total_s)
        ]
        self._finished = finished
        self._spill = spill
        self._keep_alive = keep_alive
        # A server closes a connection that was idle for long (uvicorn after five seconds); a request that crosses
        # with its goodbye would be lost.
        self._idle_ns = round(idle_s * NS)
        self._idle: deque[Connection] = deque()
        self._all: set[Connection] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)

    async def open(self, count: int) -> None:
        """Open connections ahead, some at a time. Failures are left to the requests, which will meet them again."""
        while count > 0 and self._keep_alive:
            found = await asyncio.gather(*(self._connect() for _ in range(min(64, count))), return_exceptions=True)
            if any(isinstance(one, BaseException) for one in found):
                return
            for one in found:
                assert isinstance(one, Connection)
                self._free(one)
            count -= 64

    def send(self, exchange: Exchange, body: bytes) -> None:
        """Send now. The name of a request is its index."""
        data = request(self._head, b"%d" % exchange.index, body)
        exchange.started = now_ns()
        self.active[exchange.index] = exchange
        connection = self._take(exchange.started)
        if connection is not None:
            connection.send(exchange, data)
            return
        self._tasks[exchange.index] = self.loop.create_task(self._connect_and_send(exchange, data))

    def finish(self, exchange: Exchange, kind: str, detail: str = "") -> None:
        """End an exchange; what ended before stays as it is."""
        if exchange.kind:
            return
        whole = kind == COMPLETE
        exchange.kind = kind
        exchange.detail = detail
        # The last byte of a whole answer came with the last read.
        exchange.end = exchange.last if whole and exchange.last else now_ns()
        self.active.pop(exchange.index, None)
        connection, exchange.connection = exchange.connection, None
        if connection is not None:
            connection.exchange = None
            if whole and self._keep_alive and exchange.framing.keep_alive:
                self._free(connection)
            else:
                connection.close()
        task = self._tasks.pop(exchange.index, None)
        if task is not None and not task.done() and task is not asyncio.current_task(self.loop):
            task.cancel()
        self._finished(exchange)

    def cancel_all(self, kind: str, detail: str) -> None:
        """End all that is under way."""
        for exchange in list(self.active.values()):
            self.finish(exchange, kind, detail)

    def made(self, connection: Connection) -> None:
        """A connection has been made."""
        self._all.add(connection)
        self.connects += 1

    def lost(self, connection: Connection) -> None:
        """A connection has ended."""
        self._all.discard(connection)
        if connection.exchange is None and connection in self._idle:
            self._idle.remove(connection)

    async def close(self) -> None:
        """Close all connections."""
        self._sweeper.cancel()
        for connection in list(self._all):
            connection.close()
        # The loop tells of the end of each connection in a later turn; a result must not wait for one that it forgot.
        ends = now_ns() + _CLOSE_NS
        while self._all and now_ns() < ends:
            await asyncio.sleep(0.001)

    def _take(self, now: int) -> Connection | None:
        # The one that was used last: the others grow old and are closed.
        while self._idle:
            connection = self._idle.pop()
            assert connection.transport is not None
            if now - connection.idle_since < self._idle_ns and not connection.transport.is_closing():
                return connection
            connection.close()
        return None

    def _free(self, connection: Connection) -> None:
        connection.idle_since = now_ns()
        self._idle.append(connection)

    async def _connect(self) -> Connection:
        _, connection = await self.loop.create_connection(
            lambda: Connection(self), *self._address, ssl=self._tls, server_hostname=self._server_name
        )
        return connection

    async def _connect_and_send(self, exchange: Exchange, data: bytes) -> None:
        try:
            connection = await self._connect()
        except ssl.SSLError as error:
            self.finish(exchange, "tls_error", str(error))
        except OSError as error:
            # asyncio's own words say where to, but not why not.
            self.finish(exchange, "connect_error", os.strerror(error.errno) if error.errno else str(error))
        else:
            self._tasks.pop(exchange.index, None)
            if exchange.kind:
                connection.close()
            else:
                connection.send(exchange, data)

    def _sweep(self) -> None:
        """Look after all that is under way, in one go: a timer for each request and read would cost more."""
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)
        now = now_ns()
        for exchange in list(self.active.values()):
            late = self._overdue(exchange, now)
            if late is not None:
                self.finish(exchange, *late)
            elif len(exchange.reads) >= SPILL_READS and exchange.connection is not None:
                exchange.connection.look(exchange)
                if not exchange.kind:
                    self._spill(exchange)
        while self._idle and now - self._idle[0].idle_since > self._idle_ns:
            self._idle.popleft().close()

    def _overdue(self, exchange: Exchange, now: int) -> tuple[str, str] | None:
        connect, first_byte, stall, total = self._limits_ns
        if exchange.cancel_ns and now - exchange.started > exchange.cancel_ns:
            return "cancelled", "as planned"
        if not exchange.sent:
            if now - exchange.started > connect:
                return "connect_timeout", f"no connection within {self._timeouts.connect_s:g} s"
        elif now - exchange.sent > total:
            return "total_timeout", f"not finished within {self._timeouts.total_s:g} s"
        elif not exchange.last:
            if now - exchange.sent > first_byte:
                return "first_byte_timeout", f"no byte within {self._timeouts.first_byte_s:g} s"
        elif now - exchange.last > stall:
            return "stall_timeout", f"no byte for {self._timeouts.stall_s:g} s"
        return None
