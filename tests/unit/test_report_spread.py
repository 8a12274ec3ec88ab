"""Figures in words, and their spread over repeats."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit import run_documents
from vllm_node.bench.report import spread
from vllm_node.bench.report.measures import BY_KEY
from vllm_node.bench.report.numbers import shown


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "s", "unobservable"),
        ("insufficient", "s", "insufficient"),
        (0, "s", "0 s"),
        (0.0, "share", "0 %"),
        (0.28, "share", "28 %"),
        (0.21306, "s", "213.1 ms"),
        (0.0000123, "s", "0.01230 ms"),
        (12.3456, "s", "12.35 s"),
        (1234567, "", "1234567"),
        (3.0, "/s", "3/s"),
        (1e-7, "", "1.000e-07"),
        (float("inf"), "s", "∞ s"),
    ],
)
def test_figures_in_words(value: Any, unit: str, text: str) -> None:
    assert shown(value, unit) == text


@pytest.mark.parametrize(
    ("values", "median", "low", "high", "n"),
    [
        ([3.0, 1.0, 2.0], 2.0, 1.0, 3.0, 3),
        ([1.0, 2.0], 1.5, 1.0, 2.0, 2),
        ([1.0, "timed out", 2.0], 2.0, 1.0, "timed out", 3),
        ([1.0, "timed out", "timed out"], "timed out", 1.0, "timed out", 3),
        (["insufficient", 1.0], 1.0, 1.0, 1.0, 1),
        (["insufficient", None], "insufficient", "insufficient", "insufficient", 0),
        ([None, None], None, None, None, 0),
        ([], "void", "void", "void", 0),
    ],
)
def test_a_spread(values: list[Any], median: Any, low: Any, high: Any, n: int) -> None:
    found = spread.spread(values)
    assert (found["median"], found["low"], found["high"], found["n"]) == (median, low, high, n)


def test_a_void_repeat_is_in_no_median() -> None:
    clients = [*run_documents.repeated((0.1, 0.1)), run_documents.client(run_documents.answers(120, 9.0), late_s=0.5)]
    step = run_documents.step(2.0, clients)
    assert spread.that_count(step) == [0, 1]
    assert step["summary"]["ttft_p95_s"]["high"] < 1
    assert step["summary"]["ttft_p95_s"]["n"] == 2


def test_what_the_median_of_several_is() -> None:
    step = run_documents.step(2.0, run_documents.repeated((0.1, 0.2)))
    one = run_documents.step(2.0, run_documents.repeated((0.1,)))
    assert step["summary"]["ttft_p95_s"]["how"] == "derived"
    assert one["summary"]["ttft_p95_s"]["how"] == "measured"


def test_how_a_figure_of_the_server_was_obtained_is_its_own_word() -> None:
    repeat = {"server": {"figures": {"energy_per_token_j": {"value": 1.0, "how": "inferred: mean power by time"}}}}
    assert BY_KEY["server_energy_per_token_j"].how_in(repeat) == "inferred"
    assert BY_KEY["server_energy_per_token_j"].how_in({"server": None}) == "derived"
