"""Client and server tell the same story, or it is said which of them knows more."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.server_answers import WINDOW, answers, buckets, rows
from vllm_node.bench import server


def client(ttft: Any = 0.8, e2e: Any = 0.8, completed: float = 200.0, in_flight: int = 4) -> dict[str, Any]:
    return {
        "window": {"seconds": 60.0},
        "rates": {"completed_per_s": completed / 60},
        "latency": {
            # From the schedule it is longer, and the server cannot know that.
            "ttft_scheduled_s": {"p95": 99.0},
            "ttft_sent_s": {"p50": 0.1, "p95": ttft, "p99": 0.9},
            "e2e_sent_s": {"p50": 0.1, "p95": e2e, "p99": 0.9},
        },
        "timeline": {"in_flight": [0, in_flight]},
    }


def told(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(one for one in found if one["figure"] == name)


def agree(result: dict[str, Any], **changes: Any) -> list[dict[str, Any]]:
    return server.agree(result, server.figures(answers(**changes), WINDOW))


def test_within_the_width_of_the_bucket_they_agree() -> None:
    found = agree(client())
    assert [one["agrees"] for one in found] == [True] * 7
    p95 = told(found, "ttft_p95_s")
    assert (p95["client"], p95["bucket"], p95["difference"]) == (0.8, [0.25, 1.0], pytest.approx(0.8 - 0.8125))
    assert p95["says"].endswith("they agree within the width of the bucket")


@pytest.mark.parametrize(("seen", "agrees"), [(0.07, True), (1.56, True), (1.57, False), (9.0, False)])
def test_the_width_of_the_bucket_is_the_limit(seen: float, agrees: bool) -> None:
    assert told(agree(client(ttft=seen)), "ttft_p95_s")["agrees"] is agrees


def test_a_narrow_bucket_is_a_sharp_judge_on_either_side() -> None:
    narrow = buckets(0, 200, 0, 0)
    longer = told(agree(client(e2e=0.6), e2e_buckets=narrow), "e2e_p95_s")
    assert longer["agrees"] is False
    assert "the client waited 357.5 ms longer than the server knows of" in longer["says"]
    shorter = told(agree(client(e2e=0.05), e2e_buckets=narrow), "e2e_p95_s")
    assert shorter["agrees"] is False
    assert "the server saw 192.5 ms more" in shorter["says"]


@pytest.mark.parametrize(
    ("result", "changes", "said"),
    [
        (client(ttft="insufficient"), {}, "the client says 'insufficient'"),
        (client(ttft="timed out"), {}, "the client says 'timed out'"),
        (client(), {"ttft_buckets": None}, "the server has no such figure"),
        (client(), {"ttft_buckets": buckets(0, 0, 0, 200)}, "the server has no such figure"),
        (client(), {"ttft_buckets": buckets(0, 10, 0, 0)}, "the server says 'insufficient'"),
    ],
)
def test_what_cannot_be_compared_is_not_called_agreement(
    result: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    found = told(agree(result, **changes), "ttft_p95_s")
    assert found["agrees"] is None
    assert said in found["says"]


def test_a_server_that_finished_many_more_has_other_clients() -> None:
    assert told(agree(client(completed=190)), "requests")["agrees"] is True
    others = told(agree(client(completed=150)), "requests")
    assert others["agrees"] is False
    assert "others used the server" in others["says"]
    fewer = told(agree(client(completed=300)), "requests")
    assert fewer["agrees"] is False
    assert told(agree(client(), finished_count=None), "requests")["agrees"] is None


def test_a_refused_window_is_not_compared() -> None:
    assert agree(client(), restarts=rows(({}, 1.0))) == []
