"""Progress: bytes and time left in a log, a line that moves on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from vllm_node.bundle.reporter import Reporter


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_log_speaks_up_now_and_then() -> None:
    out, clock = io.StringIO(), Clock()
    with Reporter(Console(file=out, width=200), clock) as reporter:
        reporter.step("images", 100_000_000)
        for _second in range(25):
            clock.now += 1
            reporter.advance(1_000_000)
        reporter.step("sums")
        reporter.note("[bold]as it is")
    assert out.getvalue().splitlines() == [
        "images: 100.0 MB",
        "images: 10.0 MB of 100.0 MB, 1.0 MB/s, 1:30 left",
        "images: 20.0 MB of 100.0 MB, 1.0 MB/s, 1:20 left",
        "sums",
        "[bold]as it is",
    ]


def test_a_size_that_nobody_knows_and_one_that_was_too_small() -> None:
    out, clock = io.StringIO(), Clock()
    with Reporter(Console(file=out, width=200), clock) as reporter:
        reporter.step("wheels")
        clock.now = 11
        reporter.advance(1000)
        reporter.step("images", 10)
        clock.now = 30
        reporter.advance(5000)
    assert out.getvalue().splitlines() == ["wheels", "wheels: 1.0 kB, 90 bytes/s", "images: 10 bytes", "images: 5.0 kB of 10 bytes, 263 bytes/s"]


def test_a_terminal_gets_a_bar_that_goes_and_a_line_that_stays() -> None:
    out, clock = io.StringIO(), Clock()
    with Reporter(Console(file=out, width=100, force_terminal=True), clock) as reporter:
        reporter.step("images", 1000)
        clock.now = 2
        reporter.advance(1000)
    assert "images: 1.0 kB in 2.0 s" in out.getvalue()
    assert "━" in out.getvalue()
