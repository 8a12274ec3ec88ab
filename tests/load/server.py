"""The timed server as tests use it: compiled once, started with a log, and asked how late it was."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from vllm_node.lab.cache import entry, recipe_hash

SOURCE = Path(__file__).with_name("timed_server.c")


@dataclass(frozen=True)
class Stream:
    """One line of the log. Times are nanoseconds of CLOCK_MONOTONIC."""

    name: str
    received: int
    outcome: str
    tokens: int
    events: tuple[int, ...]

    @property
    def ttft_s(self) -> float:
        return (self.events[0] - self.received) / 1e9

    @property
    def tpot_s(self) -> float:
        return (self.events[-1] - self.events[0]) / 1e9 / (self.tokens - 1)

    @property
    def e2e_s(self) -> float:
        return (self.events[-1] - self.received) / 1e9

    @property
    def gaps_s(self) -> list[float]:
        return [(after - before) / 1e9 for before, after in zip(self.events, self.events[1:], strict=False)]

    def late_s(self, ttft_s: float, itl_s: float) -> list[float]:
        """How late each event was against the plan."""
        return [(at - self.received) / 1e9 - ttft_s - number * itl_s for number, at in enumerate(self.events)]


@dataclass(frozen=True)
class TimedServer:
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.load(answer)

    def mark(self) -> int:
        """A place in the log: what is there now."""
        self.get("/stats")  # which also writes the log out
        return len(self.log.read_text().splitlines())

    def truth(self, mark: int = 0) -> list[Stream]:
        """Streams of the log that ended after a mark."""
        self.mark()
        return [_stream(line) for line in self.log.read_text().splitlines()[mark:]]


def _stream(line: str) -> Stream:
    _, name, received, outcome, tokens, events = line.split(",")
    return Stream(name, int(received), outcome, int(tokens), tuple(map(int, events.split(";"))) if events else ())


def binary() -> Path:
    """The compiled server; skips the test where it cannot be compiled."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("the timed server is written in C, and there is no gcc here")

    def build(folder: Path) -> None:
        words = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(folder / "timed_server"), str(SOURCE)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    return entry("timed-server", recipe_hash(SOURCE), build) / "timed_server"


@contextmanager
def serving(folder: Path, *words: str) -> Iterator[TimedServer]:
    """A running server that logs into `folder`."""
    log = folder / "truth.csv"
    process = subprocess.Popen([binary(), "--log", log, "--max-seconds", "300", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield TimedServer(int(process.stdout.readline()), log)
    finally:
        process.kill()
        process.wait()
