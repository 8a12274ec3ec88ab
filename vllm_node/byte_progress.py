"""How far a long piece of work on bytes is, for a person: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from vllm_node.progress import elapsed

_EVERY_S = 10.0


def sized(size_bytes: float) -> str:
    """A size for people, with the unit that fits: `12.3 GiB`."""
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} GiB"


class Lines:
    """Says how far the work is, at most every ten seconds. `tell` prints a line."""

    def __init__(
        self, what: str, total_bytes: int, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin with nothing done."""
        self._what, self.total_bytes, self._tell, self._clock = what, total_bytes, tell, clock
        self._begun = self._told = clock()
        self._done = 0

    def add(self, count: int) -> None:
        """So many bytes more are done."""
        self._done += count
        now = self._clock()
        if now - self._told < _EVERY_S:
            return
        self._told = now
        rate = self._done / (now - self._begun)
        left = self.total_bytes - self._done
        time_left = f", {elapsed(left / rate)} left" if rate and left >= 0 else ""
        self._tell(f"{self._what}: {sized(self._done)} of {sized(self.total_bytes)}, {sized(rate)}/s{time_left}")


@contextlib.contextmanager
def shown(console: Console, what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """A function that is told of each piece of bytes done, and shows how far it is."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield Lines(what, total_bytes, lambda line: console.print(line, markup=False, soft_wrap=True)).add
        return
    columns = (TextColumn(what, markup=False), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(what, total=total_bytes)
        yield lambda count: bar.advance(task, count)
