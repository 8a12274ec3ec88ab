"""A process of a lab is known by its pid and its start time, and ends with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vllm_node.lab import process
from vllm_node.lab.errors import LabError
from vllm_node.lab.process import Process, descendants, start

# A parent with a child; both ignore SIGTERM where the test says so. The line tells that both are there.
FAMILY = """
import signal, subprocess, sys, time
if "stubborn" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "child" not in sys.argv:
    subprocess.Popen([sys.executable, "-c", sys.argv[1], *sys.argv[1:], "child"])
else:
    print("ready", flush=True)
time.sleep(60)
"""


def wait_for(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def begin(*how: str) -> Process:
        log = tmp_path / f"log{len(started)}"
        parent = start([sys.executable, "-c", FAMILY, FAMILY, *how], log)
        started.append(parent)
        assert wait_for(lambda: "ready" in log.read_text())
        return parent

    yield begin
    for parent in started:
        for pid in [*descendants(parent.pid), parent.pid]:
            if parent.alive:
                os.kill(pid, signal.SIGKILL)


def gone(pid: int) -> bool:
    return process._start_time(pid) is None


def test_a_process_is_alive_until_it_has_ended_and_a_zombie_is_not(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    me = Process(child.pid, process._start_time(child.pid) or 0)
    assert me.alive
    child.kill()
    assert wait_for(lambda: not me.alive)  # it has not been waited for: that is a zombie
    child.wait()
    assert not me.alive


def test_another_process_with_the_same_pid_is_not_ours_and_is_left_alone() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        stranger = Process(child.pid, (process._start_time(child.pid) or 0) - 1)
        assert not stranger.alive
        stranger.end(0.1)
        stranger.kill()
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_start_outlives_its_session_and_writes_to_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    done = start(
        [sys.executable, "-c", "import os; print(os.getsid(0) == os.getpid(), os.environ['WORD'])"], log, {"WORD": "w"}
    )
    assert wait_for(lambda: not done.alive)
    assert log.read_text() == "before\nTrue w\n"


def test_descendants_come_parents_first(family: Callable[..., Process]) -> None:
    parent = family()
    (child,) = descendants(parent.pid)
    assert child in descendants(os.getpid())
    assert descendants(os.getpid()).index(parent.pid) < descendants(os.getpid()).index(child)


def test_a_polite_end_is_enough_for_a_polite_process(family: Callable[..., Process]) -> None:
    parent = family()
    parent.end()
    assert not parent.alive


def test_a_stubborn_process_ends_with_its_children(family: Callable[..., Process]) -> None:
    parent = family("stubborn")
    (child,) = descendants(parent.pid)
    parent.end(grace_s=0.1)
    assert not parent.alive
    assert wait_for(lambda: gone(child))


def test_kill_takes_the_children_first_and_the_parent_when_it_stays(
    family: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[int] = []
    really = process._kill

    def kill(pid: int) -> None:
        order.append(pid)
        really(pid)

    monkeypatch.setattr(process, "_kill", kill)
    monkeypatch.setattr(process, "_wait", lambda condition, _: wait_for(condition) if len(order) > 1 else condition())
    parent = family("stubborn")
    (child,) = descendants(parent.pid)
    parent.kill()
    assert order == [child, parent.pid]
    assert not parent.alive


def test_a_process_that_cannot_be_ended_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        me = Process(child.pid, process._start_time(child.pid) or 0)
        monkeypatch.setattr("os.kill", lambda *_: None)
        monkeypatch.setattr(process, "_wait", lambda condition, _: condition())
        with pytest.raises(LabError, match=f"ps -fp {child.pid}"):
            me.end(0)
    finally:
        monkeypatch.undo()
        child.kill()
        child.wait()
