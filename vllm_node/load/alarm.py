"""An alarm in the event loop that is exact to some ten microseconds, and the measure of the loop's lag.

The loops' own timers round to whole milliseconds, which would be most of the error of a generator.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import time
from collections.abc import Callable

from vllm_node.load.arrivals import NS
from vllm_node.load.distribution import Distribution

now_ns = time.monotonic_ns
_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_ABSOLUTE = 1


class _ItimerSpec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("again_s", "again_ns", "first_s", "first_ns")]


def _timerfd() -> tuple[ctypes.CDLL, int]:
    """The C library and a new timerfd, or -1 where the system has none. Python itself has them from 3.13 on only."""
    library = ctypes.CDLL(None, use_errno=True)
    try:
        return library, library.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
    except AttributeError:
        return library, -1


class Alarm:
    """Calls `ring` once at the time that was set last (`time.monotonic_ns`)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        """It is silent until it is set."""
        self._loop = loop
        self._ring = ring
        self._library, self._fd = _timerfd()
        self._handle: asyncio.TimerHandle | None = None
        if self._fd >= 0:
            loop.add_reader(self._fd, self._read)

    def set(self, at_ns: int) -> None:
        """Ring at `at_ns`, at once when that is past; what was set before is forgotten."""
        if self._fd < 0:
            if self._handle:
                self._handle.cancel()
            self._handle = self._loop.call_later(max(0, at_ns - now_ns()) / NS, self._ring)
            return
        spec = _ItimerSpec(0, 0, *divmod(max(1, at_ns), NS))
        if self._library.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        """Never ring again."""
        if self._handle:
            self._handle.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        # It may have been set anew between its ringing and this call.
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
            self._ring()


class LagMeter:
    """How late the event loop comes to what is due, looked at every ten milliseconds.

    A loop that stood still for long missed several looks; each of these counts with the lag that it would have seen,
    else a long stop would be one sample among hundreds.
    """

    EVERY_NS = 10_000_000

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to look."""
        self.lag = Distribution()
        self._alarm = Alarm(loop, self._look)
        self._due = now_ns() + self.EVERY_NS
        self._alarm.set(self._due)

    def reset(self) -> None:
        """Forget what has been seen."""
        self.lag = Distribution()

    def close(self) -> None:
        """Look no more."""
        self._alarm.close()

    def _look(self) -> None:
        now = now_ns()
        while self._due <= now:
            self.lag.add((now - self._due) // 1000)
            self._due += self.EVERY_NS
        self._alarm.set(self._due)
