"""How far a bundle is, on stderr: a line that moves on a terminal, and a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from vllm_node.progress import elapsed

_LOG_EVERY_S = 10.0


class Reporter:
    """Tells which step it is, how many of its bytes are done, and notes. Use it as a context.

    `advance` may be called from threads, one at a time.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Write to stderr, or to another console."""
        self._console = console or Console(stderr=True, highlight=False)
        self._clock = clock
        live = self._console.is_terminal and not self._console.is_dumb_terminal
        columns = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._bar = Progress(TextColumn("{task.description}"), BarColumn(), *columns, console=self._console)
        self._live = live
        self._task: TaskID | None = None
        self._what = ""
        self._total = self._done = 0
        self._began = self._told = clock()

    def __enter__(self) -> Reporter:
        """Begin to show."""
        if self._live:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the terminal as it was."""
        self._end_step()
        if self._live:
            self._bar.stop()

    def step(self, what: str, total: int = 0) -> None:
        """A step begins; `total` are its bytes, 0 where nobody knows."""
        self._end_step()
        self._what, self._total, self._done = what, total, 0
        self._began = self._told = self._clock()
        if self._live:
            self._task = self._bar.add_task(what, total=total or None)
        else:
            self.note(f"{what}: {decimal(total)}" if total else what)

    def advance(self, count: int) -> None:
        """More bytes of the step are done."""
        self._done += count
        if self._task is not None:
            self._bar.advance(self._task, count)
        elif self._clock() - self._told >= _LOG_EVERY_S:
            self._told = self._clock()
            self.note(f"{self._what}: {self._so_far()}")

    def note(self, text: str) -> None:
        """Say something that stays."""
        self._console.print(Text(text), soft_wrap=True)

    def _so_far(self) -> str:
        spent = self._clock() - self._began
        rate = self._done / spent if spent > 0 else 0
        words = f"{decimal(self._done)} of {decimal(self._total)}" if self._total else decimal(self._done)
        left = max(0, self._total - self._done)
        return f"{words}, {decimal(int(rate))}/s" + (f", {elapsed(left / rate)} left" if rate and left else "")

    def _end_step(self) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
            if self._done:
                spent = self._clock() - self._began
                self.note(f"{self._what}: {decimal(self._done)} in {elapsed(spent)}")
