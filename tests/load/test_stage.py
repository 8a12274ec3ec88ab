"""A stage as a whole: void when the generator is too slow, honest when it is interrupted, and no friend of overload."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.load.runs import BACKENDS, measure, plan, undisturbed
from tests.load.server import TimedServer, serving
from vllm_node.load import records, selftest
from vllm_node.load.stage import Stage


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TimedServer]:
    with serving(tmp_path_factory.mktemp("server"), "--ttft-us", "20000", "--itl-us", "5000") as one:
        yield one


def generated(count: int, tokens: int = 4) -> dict[str, Any]:
    return {"kind": "generated", "count": count, "vocabulary": [10, 1000], "prompt_tokens": 8, "output_tokens": tokens}


def open_loop(server: TimedServer, rate: float, duration_s: float, **other: Any) -> dict[str, Any]:
    arrivals = {"kind": "constant", "rate": rate, "duration_s": duration_s}
    return plan(server, arrivals=arrivals, requests=generated(1), slo={"ttft_p95_s": 5}, **other)


@contextlib.contextmanager
def process(document: dict[str, Any], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The engine in a process of its own, as it runs on a node."""
    (folder / "plan.json").write_text(json.dumps(document))
    words = [sys.executable, "-m", "vllm_node.load", "run", "--plan", str(folder / "plan.json"), "--out", str(folder)]
    running = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def wait_for(running: subprocess.Popen[str], event: str) -> dict[str, Any]:
    """The next line of progress that tells of this event."""
    assert running.stderr is not None
    for line in running.stderr:
        told: dict[str, Any] = json.loads(line)
        if told["event"] == event:
            return told
    raise AssertionError(f"the run ended without an event {event}")


@pytest.mark.usefixtures("first_in_line")
def test_generator_that_is_stopped_now_and_then_voids_its_run(server: TimedServer, tmp_path: Path) -> None:
    """It gets no CPU for 60 ms of each 160, as under a CPU limit that is too tight."""
    with process(open_loop(server, 100, 2), tmp_path) as running:
        wait_for(running, "progress")
        ends = time.monotonic() + 0.8
        while time.monotonic() < ends:
            running.send_signal(signal.SIGSTOP)
            time.sleep(0.06)
            running.send_signal(signal.SIGCONT)
            time.sleep(0.1)
        assert running.wait(timeout=20) == 11
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["selfcheck"]["verdict"] == "INVALID (client-saturated)"
    assert result["verdict"]["verdict"] == "insufficient"
    said = " ".join(result["verdict"]["reasons"])
    assert "lateness" in said
    assert "lag" in said


@pytest.mark.usefixtures("first_in_line")
@pytest.mark.parametrize("backend", BACKENDS)
def test_busy_loop_voids_its_run(server: TimedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """Something else in the process takes 30 ms out of each 40."""
    send = Stage._send

    def slow(self: Stage, *given: Any) -> None:
        ends = time.monotonic() + 0.03
        while time.monotonic() < ends:
            pass
        send(self, *given)

    monkeypatch.setattr(Stage, "_send", slow)
    result, _ = measure(open_loop(server, 50, 1, backend=backend), tmp_path)
    assert not result["selfcheck"]["valid"]
    # How much of a core it used depends on what else runs here; that it came late does not.
    assert any("event-loop lag" in reason for reason in result["selfcheck"]["reasons"])
    assert result["verdict"]["verdict"] == "insufficient"


@pytest.mark.usefixtures("first_in_line")
def test_more_than_it_can_send_voids_its_run(server: TimedServer, tmp_path: Path) -> None:
    result, _ = measure(open_loop(server, 40000, 0.2, backend="stdlib"), tmp_path)
    assert result["selfcheck"]["achieved_share"] < 0.98
    assert any("scheduled" in reason for reason in result["selfcheck"]["reasons"])
    assert result["rates"]["achieved_per_s"] < result["rates"]["offered_per_s"] == pytest.approx(40000)


@pytest.mark.usefixtures("first_in_line")
@pytest.mark.parametrize("backend", BACKENDS)
def test_undisturbed_generator_is_valid(server: TimedServer, tmp_path: Path, backend: str) -> None:
    document = open_loop(server, 200, 1, backend=backend, connections={"open_first": 32})
    result, taken = undisturbed(document, tmp_path)
    assert result["verdict"]["verdict"] == "pass"
    assert result["selfcheck"]["achieved_share"] == pytest.approx(1)
    assert result["selfcheck"]["lateness_s"]["p95"] < 0.001
    assert [one.scheduled for one in taken] == sorted(one.scheduled for one in taken)
    assert all(after.scheduled - before.scheduled == 5_000_000 for before, after in itertools.pairwise(taken))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_leaves_a_valid_result(server: TimedServer, tmp_path: Path, how: signal.Signals) -> None:
    with process(open_loop(server, 50, 60), tmp_path) as running:
        wait_for(running, "progress")
        told = wait_for(running, "progress")
        assert told["sent"] > 50
        assert 50 < told["left_s"] < 60
        assert 0.02 < told["ttft_s"] < 1
        running.send_signal(how)
        assert running.wait(timeout=60) == 11
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["partial"], result["stopped"]) == (True, f"{how.name} was received")
    assert 1.5 < result["window"]["seconds"] < 10
    assert result["counts"]["completed"] > 50
    assert result["counts"]["errors"] == 0
    assert result["verdict"]["verdict"] == "insufficient"
    taken = list(records.read(tmp_path / "records.bin"))
    assert len(taken) == result["counts"]["offered"]
    assert {one.kind for one in taken} <= {"ok", "interrupted"}
    assert not (tmp_path / "raw.spool").exists()


@pytest.mark.usefixtures("first_in_line")
def test_overload_is_called_one_and_a_closed_loop_does_not_see_it(tmp_path: Path) -> None:
    """Four at a time, 35 ms each: 114 requests/s at most. The SLO is so loose that only the queue gives it away."""
    with serving(tmp_path, "--ttft-us", "20000", "--itl-us", "5000", "--slots", "4") as server:
        watched = {"metrics": {"url": server.url + "/metrics", "every_s": 0.1}}
        result, _ = undisturbed(open_loop(server, 170, 3, **watched), tmp_path / "open")
        closed = plan(server, arrivals={"kind": "closed", "clients": 4}, requests=generated(200), slo={"ttft_p95_s": 5}, **watched)
        hidden, _ = undisturbed(closed, tmp_path / "closed")
    assert result["verdict"]["verdict"] == "fail"
    assert result["verdict"]["reasons"][0].startswith("overload")
    assert result["verdict"]["queue"]["slope"] == pytest.approx(56, rel=0.3)
    assert result["rates"]["completed_per_s"] < 0.8 * result["rates"]["offered_per_s"]
    assert max(result["server"]["waiting"]) > 80
    assert hidden["verdict"]["verdict"] == "pass"
    assert max(hidden["server"]["waiting"]) == 0
    assert any("hides" in notice or "does not show" in notice for notice in hidden["notices"])


@pytest.mark.usefixtures("first_in_line")
def test_self_test_finds_where_a_generator_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few streams are within the reach of any machine; a step that does not hold ends the search and says who failed."""
    monkeypatch.setattr(selftest, "STREAMS", (4, 8))
    monkeypatch.setattr(selftest, "RATES", (20, 50000))
    found = selftest.ceiling("auto", 0.4)
    assert found["streams"]["held"] == 8, found
    assert found["arrivals_per_s"]["held"] == 20, found
    assert found["arrivals_per_s"]["limited_by"] in ("the generator", "the test server")
    last = found["steps"][-1]
    assert (last["held"], bool(last["reasons"])) == (False, True)


def test_limit_of_errors_stops_the_stage(server: TimedServer, tmp_path: Path) -> None:
    document = open_loop(server, 100, 30, limits={"errors": 5}, parameters={"fault": "http_500"})
    result, taken = measure(document, tmp_path)
    assert result["partial"]
    assert "the limit of the plan (last: HTTP 500)" in result["stopped"]
    assert result["counts"]["errors"] >= 5
    assert len(taken) < 50
    assert result["verdict"]["verdict"] in ("fail", "insufficient")


def test_limit_of_requests_in_flight(server: TimedServer, tmp_path: Path) -> None:
    result, taken = measure(open_loop(server, 100, 1, limits={"in_flight": 2}), tmp_path)
    counts = result["counts"]
    assert counts["offered"] == 100 == counts["completed"] + counts["held_back"] == len(taken)
    assert 20 < counts["held_back"] < 80
    assert max(result["timeline"]["in_flight"]) <= 2
    # The generator kept up: holding back was its order.
    assert result["selfcheck"]["achieved_share"] == pytest.approx(1)
    assert any("held back" in reason for reason in result["verdict"]["reasons"]) or not result["selfcheck"]["valid"]


def test_lead_in_is_not_scored(server: TimedServer, tmp_path: Path) -> None:
    result, taken = measure(open_loop(server, 100, 2, warmup={"lead_in_s": 1, "requests": 5}), tmp_path)
    assert result["window"]["seconds"] == pytest.approx(1)
    assert result["counts"]["offered"] == 100
    assert [one.scored for one in taken] == [False] * 100 + [True] * 100
    assert result["rates"]["offered_per_s"] == pytest.approx(100)
    assert result["rates"]["completed_per_s"] == pytest.approx(100, abs=6)


def test_think_time(server: TimedServer, tmp_path: Path) -> None:
    arrivals = {"kind": "closed", "clients": 1, "think_s": 0.1}
    _, taken = measure(plan(server, arrivals=arrivals, requests=generated(4)), tmp_path)
    for before, after in itertools.pairwise(taken):
        assert after.scheduled - before.end == pytest.approx(100e6, abs=1)
        assert after.sent >= after.scheduled
