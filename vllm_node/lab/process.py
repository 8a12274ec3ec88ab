"""Processes that a lab starts and must find again after the program that started them has ended.

A process is known by its pid together with its start time: a pid alone may belong to somebody else by now.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_node.lab.errors import LabError


@dataclass(frozen=True)
class Process:
    """A process of ours; `started` is its start time in clock ticks since boot."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return _start_time(self.pid) == self.started

    def end(self, grace_s: float = 10) -> None:
        """End the process and what it started: politely first, then for good."""
        if self.alive:
            os.kill(self.pid, signal.SIGTERM)
            _wait(lambda: not self.alive, grace_s)
        if self.alive:
            for pid in [*descendants(self.pid), self.pid]:
                _kill(pid)
            if not _wait(lambda: not self.alive, 10):
                raise LabError(f"process {self.pid} does not end; look at it with `ps -fp {self.pid}`")

    def kill(self) -> None:
        """End the process and its descendants at once, innermost first."""
        if self.alive:
            for pid in reversed(descendants(self.pid)):
                _kill(pid)
            if not _wait(lambda: not self.alive, 5):
                _kill(self.pid)
                _wait(lambda: not self.alive, 5)


def start(argv: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None) -> Process:
    """Start `argv` in a session of its own with its output in `log`, so that it outlives this program."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=env,
        )
    return Process(child.pid, _start_time(child.pid) or 0)


def descendants(pid: int) -> list[int]:
    """Pids below `pid`, parents before their children."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found: list[int] = []
    queue = [pid]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def _start_time(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _wait(condition: Callable[[], bool], limit_s: float) -> bool:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return condition()
