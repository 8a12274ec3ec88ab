"""What is waited for and what is given up: slow is not dead, and the same death twice is not slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_node.waiting import SILENCE_S, Patience, Watch, explained, shortened, waiting_line

UNIT = "vllm-chat.service"
SAMPLES: dict[str, list[str]] = yaml.safe_load((Path(__file__).with_name("data") / "last_words.yml").read_text())
RESTART = f"{UNIT}: Scheduled restart job, restart counter is at 1.\n"


def state(detail: str = "loading", restarts: int = 0, **more: Any) -> dict[str, dict[str, Any]]:
    return {UNIT: {"state": "loading", "detail": detail, "restarts": restarts, **more}}


def watch(budget_s: float = 3600, estimate_s: float | None = None) -> Watch:
    return Watch({UNIT: Patience(budget_s, estimate_s)})


def deaths(*names: str) -> str:
    """The journal of a unit whose starts died so, one after the other."""
    return RESTART.join(SAMPLES[name][0] + "\n" for name in names)


def test_a_start_that_goes_on_is_waited_for_until_its_time_is_over() -> None:
    waits = watch(600, 60)
    assert not any(waits.lost(state(f"loading shard {number} of 9"), number * 60) for number in range(1, 10))
    assert waits.lost(state("loading shard 9 of 9"), 601) == {UNIT: "loading shard 9 of 9; start_budget_s is over"}


def test_past_its_estimate_a_start_that_stands_still_is_given_up() -> None:
    waits = watch(36000, 1200)
    assert not waits.lost(state("loading shard 1 of 9"), 100)
    assert not waits.lost(state("compiling"), 1199)
    assert not waits.lost(state("compiling"), 1199 + SILENCE_S)
    assert "compiling; that for 10:01" in waits.lost(state("compiling"), 1200 + SILENCE_S)[UNIT]


def test_without_an_estimate_silence_is_waited_out() -> None:
    waits = watch(36000)
    assert not waits.lost(state("compiling"), 0)
    assert not waits.lost(state("compiling"), 35999)


def test_before_its_estimate_a_silent_start_is_waited_for() -> None:
    waits = watch(36000, 9000)
    assert not waits.lost(state("compiling"), 0)
    assert not waits.lost(state("compiling"), 8999)


def test_a_dead_unit_is_given_up_at_once_and_a_ready_one_never() -> None:
    dead = {**state("failed (exit-code)")[UNIT], "state": "dead"}
    ready = {**state("")[UNIT], "state": "ready"}
    assert watch(0).lost({UNIT: dead, "other.service": ready}, 1) == {UNIT: "failed (exit-code)"}


@pytest.mark.parametrize(
    ("names", "restarts", "lost"),
    [
        (["heads"], 1, False),  # the second start has only begun
        (["heads", "heads"], 1, True),
        (["heads", "heads"], 0, False),  # both died before the wait began
        (["heads", "tokenizer"], 1, False),
        (["cuda-802", "cuda-802"], 1, False),  # the fabric may come up
        (["tokenizer", "heads", "heads"], 2, False),
        (["tokenizer", "heads", "heads"], 1, True),  # what lies before the wait does not count
        ([], 1, False),
    ],
)
def test_the_same_death_twice_is_no_slowness(names: list[str], restarts: int, lost: bool) -> None:
    waits = watch()
    waits.lost(state(restarts=3), 0)
    found = waits.lost(state("activating (auto-restart)", 3 + restarts, log=deaths(*names)), 20)
    assert bool(found) is lost
    assert not lost or found == {UNIT: "activating (auto-restart); each start died with the same words"}


def test_a_unit_without_a_time_of_its_own_has_three_minutes() -> None:
    assert not Watch({}).lost(state(), 180)
    assert Watch({}).lost(state(), 181)


@pytest.mark.parametrize(
    ("phase", "said"),
    [
        (None, "loading"),
        ({"phase": "weights", "done": 3, "total": 8, "left_s": 50}, "loading, about 50 s left"),
        ({"phase": "weights", "done": 0, "total": 8, "left_s": None}, "loading, about 2:00 for all of them"),
        ({"phase": "loaded", "done": 8, "total": 8, "left_s": None}, "loading"),
    ],
)
def test_one_line_says_what_all_of_a_host_do(phase: Any, said: str) -> None:
    states = {**state("loading", phase=phase), "grafana.service": {"detail": "not listening yet"}}
    line = waiting_line("node1", states, 42, {UNIT: 120.0})
    assert line == f"node1: vllm-chat {said}; grafana not listening yet (42 s)"


def test_a_failure_comes_with_last_lines_cause_and_next_step() -> None:
    log = "\n".join([SAMPLES["safetensors-header"][0], *(f"frame {number}" for number in range(60))])
    said = explained("node1", {UNIT: "failed"}, state(log=log), 48)
    assert said.splitlines()[0] == f"node1: {UNIT} is not ready after 48 s: failed"
    assert "  | frame 59" in said
    assert "  | frame 30" not in said
    assert "likely cause: a file of weights is cut off" in said
    assert "it said further up: safetensors_rust.SafetensorError" in said
    assert said.endswith(f"next: journalctl -u {UNIT} on node1; mend it and run the same playbook again")


def test_a_cause_that_is_shown_is_not_shown_twice_and_an_unknown_one_is_admitted() -> None:
    assert "further up" not in explained("node1", {UNIT: "failed"}, state(log=SAMPLES["heads"][0]), 48)
    assert "not one that is known" in explained("node1", {UNIT: "failed"}, state(), 48)


def test_states_are_kept_with_no_more_of_a_log_than_is_read() -> None:
    found = shortened({**state(log="\n".join(map(str, range(99)))), "other.service": {"state": "ready"}})
    assert found[UNIT]["log"].splitlines() == [str(number) for number in range(74, 99)]
    assert found["other.service"] == {"state": "ready"}
