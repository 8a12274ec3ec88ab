"""What a person sees while a playbook runs: which host, which task, for how long.

On a terminal a small region is redrawn in place. Elsewhere (a log, a pipe) each finished task is one line,
and a long one speaks up now and then, so that silence never has to be guessed at.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from vllm_node.runner import (
    Event,
    FileDiff,
    HostResult,
    HostStarted,
    Line,
    NoHosts,
    PlayStarted,
)

# A task is worth a line above the live region when it took this long.
_WORTH_TELLING_S = 2.0
# In a log: the least time between two lines of one running task, and the longest silence.
_LOG_EVERY_S = 10.0
_LOG_SILENCE_S = 30.0

_STYLE = {"changed": "yellow", "failed": "bold red", "unreachable": "bold red", "ignored": "yellow"}
# Between the columns of the live region. What a task says stands below its row, whole, where the row has no room.
_GAPS = 6
# These only lead to other tasks, which are told themselves.
_NOT_TOLD = ("include_role", "include_tasks", "import_role", "import_tasks", "meta")


class View(Protocol):
    """Something that shows events. Use it as a context."""

    def __enter__(self) -> View:
        """Begin to show."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the terminal as it was."""

    def show(self, event: Event) -> None:
        """Take note of one event."""

    def note(self, text: str) -> None:
        """Say something of our own."""


def elapsed(seconds: float) -> str:
    """`3.2 s` below a minute, then `1:05` and `1:02:03`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def label(task: str, role: str | None) -> str:
    """How a task is called everywhere in the output."""
    return f"{role}: {task}" if role else task


def open_view(console: Console, verb: str, clock: Callable[[], float] = time.monotonic) -> View:
    """The view that fits this console."""
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveView(console, verb, clock)
    return LogView(console, clock)


@dataclass
class _Row:
    label: str
    since: float
    line: str = ""
    state: str | None = None  # None while the task runs
    told: float = 0.0


class _Rows:
    """What each host is at. Shared by both views."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.begun = clock()
        self.play = ""
        self.hosts: dict[str, _Row] = {}

    def take(self, event: Event) -> None:
        if isinstance(event, PlayStarted):
            self.play = event.name
        elif isinstance(event, HostStarted):
            now = self.clock()
            self.hosts[event.host] = _Row(label(event.task, event.role), now, told=now)
        elif isinstance(event, HostResult) and event.host in self.hosts:
            self.hosts[event.host].state = event.state
        elif isinstance(event, Line) and event.kind == "progress":
            for host, row in self.hosts.items():
                if row.state is None and event.host in (host, None):
                    row.line = event.text

    def running(self) -> list[tuple[str, _Row]]:
        return [(host, row) for host, row in self.hosts.items() if row.state is None]

    def took(self, event: HostResult) -> float:
        if event.duration_s is not None:
            return event.duration_s
        row = self.hosts.get(event.host)
        return self.clock() - row.since if row else 0.0


def _is_told(event: HostResult) -> bool:
    return event.state != "skipped" and event.action.rpartition(".")[2] not in _NOT_TOLD


def _messages(event: Event) -> list[tuple[str, str]]:
    """What both views print as it is: (text, style)."""
    if isinstance(event, Line) and event.kind in ("warning", "error"):
        return [(event.text, "red" if event.kind == "error" else "yellow")]
    if isinstance(event, FileDiff):
        return [(f"{event.host}: {label(event.task, event.role)}", "bold"), (event.text, "")]
    if isinstance(event, NoHosts):
        return [(f"no host matched the play {event.play}", "yellow")]
    return []


class LogView:
    """One line a finished task: `host: role: task … state (time, total)`."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        """Write to this console, at the full length of each line."""
        self._console = console
        self._rows = _Rows(clock)

    def __enter__(self) -> LogView:
        """Nothing to prepare."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to put back."""

    def show(self, event: Event) -> None:
        """Print what has ended, and what takes long."""
        self._rows.take(event)
        for text, _ in _messages(event):
            self.note(text)
        if isinstance(event, HostResult) and _is_told(event):
            total = elapsed(self._rows.clock() - self._rows.begun)
            took = elapsed(self._rows.took(event))
            state = event.state.upper() if event.state in ("failed", "unreachable") else event.state
            self.note(f"{event.host}: {label(event.task, event.role)} … {state} ({took}, total {total})")
        self._tell_long_tasks()

    def note(self, text: str) -> None:
        """Print one line."""
        self._console.print(Text(text), soft_wrap=True)

    def _tell_long_tasks(self) -> None:
        now = self._rows.clock()
        for host, row in self._rows.running():
            silence = now - row.told
            if silence >= _LOG_SILENCE_S or (row.line and silence >= _LOG_EVERY_S):
                self.note(
                    f"{host}: {row.label} … {row.line or 'still at it'} (so far {elapsed(now - row.since)})"
                )
                row.told, row.line = now, ""


class LiveView:
    """A region that is redrawn: total time; for each host its task, how long that takes, and what it says."""

    def __init__(self, console: Console, verb: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Draw on this console."""
        self._console = console
        self._verb = verb
        self._rows = _Rows(clock)
        self._spinner = Spinner("dots")
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveView:
        """Begin to draw."""
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the region."""
        self._live.stop()

    def show(self, event: Event) -> None:
        """Update the region; print above it what is worth keeping."""
        self._rows.take(event)
        for text, style in _messages(event):
            self._console.print(Text(text, style=style))
        if isinstance(event, HostResult) and _is_told(event):
            took = self._rows.took(event)
            if event.state != "ok" or took >= _WORTH_TELLING_S:
                line = Text(f"{event.host}: {label(event.task, event.role)} … ")
                line.append(event.state, style=_STYLE.get(event.state, "green"))
                line.append(f" ({elapsed(took)})", style="dim")
                self._console.print(line)

    def note(self, text: str) -> None:
        """Print one line above the region."""
        self._console.print(Text(text, style="bold"))

    def draw_now(self) -> None:
        """Draw without waiting for the next turn."""
        self._live.refresh()

    def _draw(self) -> RenderableType:
        now = self._rows.clock()
        head = Text(f"{self._verb}  {elapsed(now - self._rows.begun)}  {self._rows.play}", style="bold")
        self._spinner.update(text=head)
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=2, overflow="ellipsis", no_wrap=True)
        grid.add_column(justify="right", no_wrap=True)
        grid.add_column(ratio=3, overflow="ellipsis", no_wrap=True)
        below = []
        for host, row in list(self._rows.hosts.items()):
            if row.state is None:
                cells = [host, row.label, elapsed(now - row.since), row.line]
                if sum(map(cell_len, cells)) + _GAPS > self._console.width:
                    below.append(Text(f"  {host}: {cells.pop()}"))
                grid.add_row(*map(Text, cells))
            else:
                style = _STYLE.get(row.state, "dim")
                grid.add_row(Text(host), Text(row.label, style="dim"), Text(row.state, style=style), Text(""))
        return Group(self._spinner, grid, *below)
