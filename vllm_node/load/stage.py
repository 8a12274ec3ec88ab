"""Runs one stage: sends what is due when it is due, and keeps watch over itself."""

from __future__ import annotations

import asyncio
import gc
import heapq
import math
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from vllm_node.load.alarm import Alarm, LagMeter, now_ns
from vllm_node.load.arrivals import NS, ClosedLoop, Schedule
from vllm_node.load.bodies import Bodies
from vllm_node.load.definitions import Window
from vllm_node.load.distribution import Distribution
from vllm_node.load.framing import Framing
from vllm_node.load.plan import Limits
from vllm_node.load.selfcheck import SelfCheck
from vllm_node.load.wire import COMPLETE, Client, Exchange

# Requests that are due at the same moment are sent some at a time, with the answers read in between.
_AT_ONCE = 16
# So that everything is set up when the first request is due.
_HEAD_START_NS = 20_000_000
# A thousand clients cannot begin in the same microsecond; that much apart, each can begin when it is due.
_CLIENTS_APART_NS = 50_000
# A generator this far behind has nothing to say any more, and would go on long after its window.
_GIVE_UP_NS = 10 * NS
# Over a window shorter than this a share of CPU time means nothing.
_CPU_LEAST_S = 0.1
_FOREVER_S = 30 * 86400.0
# A client of a closed loop that was refused would else come back at once, thousands of times a second.
_AFTER_FAILURE_S = 0.1


@dataclass
class Watch:
    """What can be told about a stage while it runs. `recent` are (scheduled, stamps, reads) of the last few answers."""

    sent: int = 0
    ended: int = 0
    failed: int = 0
    in_flight: int = 0
    recent: deque[tuple[int, array[int], list[bytes]]] = field(default_factory=lambda: deque(maxlen=20))


@dataclass(frozen=True)
class Outcome:
    """How a stage went. `started_at_s` is the Unix time of the window's start, for whoever asks a Prometheus."""

    window: Window
    started_at_s: float
    selfcheck: SelfCheck
    stopped: str | None
    connections_made: int


class Stage:
    """One stage over a client that is connected already."""

    def __init__(
        self,
        client: Client,
        bodies: Bodies,
        arrivals: Schedule | ClosedLoop,
        framing: Callable[[bool], Framing],
        ended: Callable[[Exchange], None],
        *,
        limits: Limits | None = None,
        lead_in_ns: int = 0,
        first_index: int = 0,
    ) -> None:
        """`ended` takes each exchange at its end; indexes of exchanges begin with `first_index`."""
        self.watch = Watch()
        self.stopped: str | None = None
        self._client = client
        self._bodies = bodies
        self._arrivals = arrivals
        self._framing = framing
        self._ended = ended
        self._limits = limits or Limits()
        self._lead_in_ns = lead_in_ns
        self._first_index = first_index
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        self._next = 0
        self._over = False
        self._last_end = 0
        self._last_sent = 0
        self._reached = 0
        self._lateness = Distribution()
        self._start_ns = 0
        self._started_at_s = 0.0
        self._cpu_s = (0.0, 0.0)
        self._stop_ns = 0
        self._thinking: list[int] = []
        # Calls of workflows that wait for their time: (when due, number, whether scored).
        self._waiting: list[tuple[int, int, bool]] = []

    @property
    def start_ns(self) -> int:
        """Start of the window; 0 before the stage has begun."""
        return self._start_ns

    async def run(self) -> Outcome:
        """Run to the end, or until it is stopped."""
        lag = LagMeter(self._loop)
        # A collection stops everything for milliseconds. What a stage makes has no cycles worth collecting.
        gc.collect()
        gc.freeze()
        gc.disable()
        self._calls_alarm = Alarm(self._loop, self._calls_send)
        try:
            begin = now_ns() + _HEAD_START_NS
            self._start_ns = begin + self._lead_in_ns
            self._started_at_s = time.time() + (self._start_ns - now_ns()) / NS
            starts = self._loop.call_at(self._loop.time() + (self._start_ns - now_ns()) / NS, self._open, lag)
            if isinstance(self._arrivals, Schedule):
                end = begin + self._arrivals.duration_ns
                ends = self._loop.call_at(self._loop.time() + (end - now_ns()) / NS, self._window_ends)
                alarm = Alarm(self._loop, lambda: self._send_due(alarm, begin))
                alarm.set(begin)
                await self._done.wait()
                alarm.close()
            else:
                ends = self._start_clients(self._arrivals, begin)
                await self._done.wait()
                self._clients_alarm.close()
                end = self._last_end or now_ns()
            starts.cancel()
            ends.cancel()
        finally:
            gc.enable()
            gc.unfreeze()
            lag.close()
            self._calls_alarm.close()
        if self.stopped is not None:
            end = min(end, self._stop_ns)
        return self._outcome(Window(self._start_ns, max(end, self._start_ns)), lag.lag)

    def stop(self, reason: str) -> None:
        """End early: nothing more is sent, and what is under way is cancelled."""
        if self.stopped is not None or self._done.is_set():
            return
        self.stopped = reason
        self._stop_ns = now_ns()
        self._over = True
        self._client.cancel_all("interrupted", reason)
        self._close()
        self._done.set()

    def finished(self, exchange: Exchange) -> None:
        """An exchange has ended; the client says so."""
        watch = self.watch
        watch.ended += 1
        watch.in_flight -= 1
        failed = exchange.kind not in (COMPLETE, "cancelled", "interrupted") or exchange.framing.status >= 400
        watch.failed += failed
        self._last_end = max(self._last_end, exchange.end)
        if exchange.stamps and exchange.stamps[0] == exchange.first_byte:
            watch.recent.append((exchange.scheduled, exchange.stamps, exchange.reads))
        self._ended(exchange)
        goes_on = exchange.kind == COMPLETE and not failed and self._next_call(exchange)
        self._look_for_end()
        if failed and self._limits.errors is not None and watch.failed >= self._limits.errors:
            self.stop(f"{watch.failed} requests failed, the limit of the plan (last: {_failure(exchange)})")
        if isinstance(self._arrivals, ClosedLoop) and not goes_on:
            self._client_goes_on(self._arrivals, failed, exchange.end)

    # The window

    def _open(self, lag: LagMeter) -> None:
        lag.reset()
        self._cpu_s = (time.process_time(), 0.0)

    def _close(self) -> None:
        if not self._cpu_s[1]:
            self._cpu_s = (self._cpu_s[0], time.process_time())

    def _window_ends(self) -> None:
        self._close()
        self._look_for_end()

    def _look_for_end(self) -> None:
        """An open loop ends with its window or with its last answer, whichever is later."""
        under_way = self.watch.in_flight or self._waiting
        if self._over and not under_way and (self._cpu_s[1] or isinstance(self._arrivals, ClosedLoop)):
            self._done.set()

    def _outcome(self, window: Window, lag: Distribution) -> Outcome:
        self._close()
        used = self._cpu_s[1] - self._cpu_s[0]
        offered = achieved = None
        if isinstance(self._arrivals, Schedule) and window.seconds > 0:
            due = self._due_inside(window)
            offered = due / window.seconds
            # The last of them may come after the window; then they took longer than they were given.
            taken = max(window.seconds, (self._last_sent - window.start_ns) / NS)
            achieved = min(due, self._reached) / taken
        check = SelfCheck(self._lateness, lag, used / max(window.seconds, _CPU_LEAST_S), offered, achieved)
        return Outcome(window, self._started_at_s, check, self.stopped, self._client.connects)

    def _due_inside(self, window: Window) -> int:
        assert isinstance(self._arrivals, Schedule)
        begin = window.start_ns - self._lead_in_ns
        return sum(1 for offset in self._arrivals.offsets_ns if window.start_ns <= begin + offset < window.end_ns)

    # Open loop

    def _send_due(self, alarm: Alarm, begin: int) -> None:
        assert isinstance(self._arrivals, Schedule)
        offsets: array[int] = self._arrivals.offsets_ns
        for _ in range(_AT_ONCE):
            if self._over or self._next >= len(offsets):
                self._over = True
                self._look_for_end()
                return
            due, now = begin + offsets[self._next], now_ns()
            if due > now:
                break
            if now - due > _GIVE_UP_NS:
                self.stop(f"the generator is {(now - due) / NS:.1f} s behind its schedule")
                return
            self._send(self._bodies.starts[self._next], due)
            self._next += 1
        alarm.set(begin + offsets[self._next] if self._next < len(offsets) else now_ns())

    # Closed loop

    def _start_clients(self, loop: ClosedLoop, begin: int) -> asyncio.TimerHandle:
        # Sorted as it is made, which is all that a heap asks for.
        apart_ns = max(_CLIENTS_APART_NS, round(loop.ramp_s * NS / loop.clients))
        self._thinking = [begin + apart_ns * number for number in range(loop.clients)]
        self._clients_alarm = Alarm(self._loop, self._clients_send)
        self._clients_alarm.set(begin)
        lasts_s = math.inf if loop.duration_s is None else loop.duration_s
        return self._loop.call_later((begin - now_ns()) / NS + min(lasts_s, _FOREVER_S), self._no_more)

    def _client_goes_on(self, loop: ClosedLoop, failed: bool, since: int) -> None:
        wait_s = max(loop.think_s, _AFTER_FAILURE_S if failed else 0.0)
        due = since + round(wait_s * NS)
        if not wait_s:
            self._client_sends(due)
        elif not self._over:
            heapq.heappush(self._thinking, due)
            if self._thinking[0] == due:
                self._clients_alarm.set(due)

    def _clients_send(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._thinking or self._thinking[0] > now_ns():
                break
            self._client_sends(heapq.heappop(self._thinking))
        if self._thinking and not self._over:
            self._clients_alarm.set(self._thinking[0])

    def _client_sends(self, due: int) -> None:
        if self._next >= len(self._bodies.starts):
            self._no_more()
        if self._over:
            return
        number = self._bodies.starts[self._next]
        self._next += 1
        self._send(number, due)

    def _no_more(self) -> None:
        self._over = True
        self._look_for_end()

    # Workflows

    def _next_call(self, exchange: Exchange) -> bool:
        """Whether the workflow of a call that was answered goes on; also when no new ones begin any more."""
        number = exchange.index - self._first_index + 1
        think_ns = self._bodies.follows.get(number)
        if think_ns is None or self.stopped is not None:
            return False
        if not think_ns:
            return self._send(number, exchange.end, exchange.scored)
        heapq.heappush(self._waiting, (exchange.end + think_ns, number, exchange.scored))
        self._calls_alarm.set(self._waiting[0][0])
        return True

    def _calls_send(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._waiting or self._waiting[0][0] > now_ns() or self.stopped is not None:
                break
            due, number, scored = heapq.heappop(self._waiting)
            self._send(number, due, scored)
        if self._waiting:
            self._calls_alarm.set(self._waiting[0][0])
        self._look_for_end()

    # Both

    def _send(self, number: int, due: int, scored: bool | None = None) -> bool:
        """Send now; False when a limit holds it back. All calls of a workflow are scored when its first one is."""
        scored = due >= self._start_ns if scored is None else scored
        arrived = number not in self._bodies.follows
        cancel_s = self._bodies.cancel_s.get(number)
        exchange = Exchange(self._first_index + number, due, scored, self._framing(False), cancel_s)
        if scored and arrived:
            self._reached += 1
        watch = self.watch
        if self._limits.in_flight is not None and watch.in_flight >= self._limits.in_flight:
            exchange.kind = "held_back"
            exchange.end = now_ns()
            self._ended(exchange)
            return False
        watch.sent += 1
        watch.in_flight += 1
        self._client.send(exchange, self._bodies[number])
        if scored:
            self._lateness.add(max(0, exchange.started - due) // 1000)
            if arrived:
                self._last_sent = exchange.started
        return True


def _failure(exchange: Exchange) -> str:
    if exchange.kind == COMPLETE:
        return f"HTTP {exchange.framing.status}"
    return f"{exchange.kind}: {exchange.detail}"
