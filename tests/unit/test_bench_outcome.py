"""The order of the stages, their figures over repeats, and the verdict of the whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_node.bench.outcome import steps, verdict
from vllm_node.bench.stages import Turn, turns


def result(word: str = "pass", ttft: Any = 0.1, reasons: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "verdict": {"verdict": word, "reasons": list(reasons)},
        "latency": {"ttft_scheduled_s": {"p95": ttft}},
        "rates": {"completed_per_s": 2.0},
        "error_rate": 0.0,
    }


def run(*done: tuple[float, int, dict[str, Any]]) -> list[dict[str, Any]]:
    return steps([(Turn(at, repeat, rate), client, None) for at, (rate, repeat, client) in enumerate(done, 1)])


@given(st.sets(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 4), st.integers())
def test_every_rate_has_its_repeats_and_none_comes_twice_before_all_came_once(
    rates: set[int], repeats: int, seed: int
) -> None:
    found = turns([float(rate) for rate in rates], [], repeats, seed)
    assert [turn.order for turn in found] == list(range(1, len(rates) * repeats + 1))
    for repeat in range(1, repeats + 1):
        own = [turn for turn in found if turn.repeat == repeat]
        assert sorted(turn.rate_per_s or 0 for turn in own) == sorted(rates)
        assert [turn.order for turn in own] == list(range((repeat - 1) * len(rates) + 1, repeat * len(rates) + 1))
    assert found == turns([float(rate) for rate in rates], [], repeats, seed)


def test_the_first_repeat_goes_up_and_closed_loops_come_after_open_ones() -> None:
    found = turns([4, 2], [8], 1, 7)
    assert [(turn.rate_per_s, turn.clients) for turn in found] == [(2, None), (4, None), (None, 8)]
    assert [turn.name for turn in found] == ["2 requests/s, repeat 1", "4 requests/s, repeat 1", "8 clients, repeat 1"]


def test_a_step_has_median_and_spread_of_its_repeats() -> None:
    (step,) = run((2, 1, result(ttft=0.1)), (2, 2, result(ttft=0.4)), (2, 3, result(ttft=0.2)))
    assert step["summary"]["ttft_p95_s"] == {"median": 0.2, "low": 0.1, "high": 0.4, "n": 3, "how": "derived"}


@pytest.mark.parametrize(
    ("done", "word", "sustainable"),
    [
        ([(2, 1, result()), (4, 1, result())], "pass", 4),
        ([(2, 1, result()), (4, 1, result("fail", reasons=("ttft",)))], "fail", 2),
        ([(2, 1, result()), (4, 1, result()), (4, 2, result("fail", reasons=("x",)))], "fail", 2),
        ([(2, 1, result("fail", reasons=("x",))), (4, 1, result())], "fail", None),
        ([(2, 1, result("insufficient", reasons=("few",)))], "insufficient", None),
        ([], "insufficient", None),
    ],
)
def test_the_sustainable_rate_held_in_all_repeats_and_so_did_all_below(
    done: list[tuple[float, int, dict[str, Any]]], word: str, sustainable: float | None
) -> None:
    found = verdict(run(*done), [], None)
    assert (found["verdict"], found["sustainable_rate_per_s"]) == (word, sustainable)
    assert bool(found["reasons"]) == (word != "pass")


def test_a_wrong_answer_fails_whatever_its_speed() -> None:
    wrong = [{"check": "usage counts the tokens", "outcome": "fail", "seen": "7"}]
    found = verdict(run((2, 1, result())), wrong, None)
    assert (found["verdict"], found["reasons"]) == ("fail", ["usage counts the tokens: 7"])


def test_a_run_that_was_cut_off_is_no_pass() -> None:
    found = verdict(run((2, 1, result())), [], "interrupted")
    assert (found["verdict"], found["reasons"]) == ("insufficient", ["the benchmark ended early: interrupted"])
