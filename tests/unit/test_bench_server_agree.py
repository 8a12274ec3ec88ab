"""Client and server tell the same story, or it is said which of them knows more."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.server_answers import WINDOW, answers, buckets, rows
from vllm_node.bench import server
from vllm_node.bench.agreement import silent_share, story


def client(completed: float = 200.0, in_flight: int = 4, **latency: Any) -> dict[str, Any]:
    """Of a server of `answers`: its p50 lies in 0 to 100 ms, its p95 and p99 in 250 ms to 1 s, its mean is 150 ms."""
    usual = {"n": 200, "mean": 0.15, "p50": 0.1, "p95": 0.8, "p99": 0.9}
    changes = {"ttft": "ttft_sent_s", "e2e": "e2e_sent_s", "tpot": "tpot_s", "itl": "itl_s"}
    return {
        "window": {"seconds": 60.0},
        "rates": {"completed_per_s": completed / 60},
        "counts": {"completed": 200, "empty_events": 0},
        "left_out": {"tpot_one_token": 0},
        "latency": {
            # From the schedule it is longer, and the server cannot know that.
            "ttft_scheduled_s": {"p95": 99.0},
            **{own: {**usual, **latency.get(name, {})} for name, own in changes.items()},
        },
        "timeline": {"in_flight": [0, in_flight]},
    }


def told(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(one for one in found if one["figure"] == name)


def agree(result: dict[str, Any], **changes: Any) -> list[dict[str, Any]]:
    return server.agree(result, server.figures(answers(**changes), WINDOW))


def said(result: dict[str, Any], **changes: Any) -> dict[str, Any]:
    found = story(result, server.figures(answers(**changes), WINDOW))
    assert found is not None
    return found


def test_in_the_buckets_they_agree() -> None:
    found = agree(client())
    assert [one["agrees"] for one in found] == [True] * 17
    p95 = told(found, "ttft_p95_s")
    assert (p95["client"], p95["bucket"], p95["difference"]) == (0.8, [0.25, 1.0], pytest.approx(0.8 - 0.8125))
    assert p95["says"] == "TTFT p95: the client measured 800 ms, the server's histogram says 812.5 ms (between 250 ms and 1 s); they agree"
    whole = said(client())
    assert whole["agrees"] is True
    assert whole["says"].startswith("client and server tell the same story: of 16 latencies 16 can be compared")


@pytest.mark.parametrize(
    ("name", "seen", "agrees"),
    [
        # What ended just outside of the window may move a quantile by a tenth; what lies between the two adds 5 ms.
        ("ttft", 0.2251, True),
        ("ttft", 0.2249, False),
        ("ttft", 1.1049, True),
        ("ttft", 1.1051, False),
        ("e2e", 1.1049, True),
        ("e2e", 1.1051, False),
        # In gaps between tokens it cancels out.
        ("itl", 1.0999, True),
        ("itl", 1.1001, False),
        ("tpot", 1.1001, False),
    ],
)
def test_the_bucket_is_the_limit(name: str, seen: float, agrees: bool) -> None:
    changes: dict[str, Any] = {name: {"p95": seen}}
    assert told(agree(client(**changes)), f"{name}_p95_s")["agrees"] is agrees


@pytest.mark.parametrize(("seen", "agrees"), [(0.121, True), (0.119, False), (0.184, True), (0.186, False)])
def test_a_mean_has_no_bucket_and_a_fifth_of_room(seen: float, agrees: bool) -> None:
    assert told(agree(client(e2e={"mean": seen})), "e2e_mean_s")["agrees"] is agrees


def test_who_knows_more_is_told() -> None:
    narrow = buckets(0, 200, 0, 0)
    longer = told(agree(client(e2e={"p95": 0.6}), e2e_buckets=narrow), "e2e_p95_s")
    assert longer["agrees"] is False
    assert "the client waited 357.5 ms longer than the server knows of" in longer["says"]
    shorter = told(agree(client(e2e={"p95": 0.05}), e2e_buckets=narrow), "e2e_p95_s")
    assert shorter["agrees"] is False
    assert "the server saw 192.5 ms more" in shorter["says"]
    whole = said(client(e2e={"p95": 0.6}, ttft={"p95": 9.0}), e2e_buckets=narrow)
    assert whole["agrees"] is False
    assert whole["says"].startswith("client and server contradict each other: TTFT p95: the client measured 9 s")
    # Of the histogram that was made narrow the median is another one as well.
    assert whole["says"].endswith("(and 2 more)")


@pytest.mark.parametrize(
    ("result", "changes", "why"),
    [
        (client(ttft={"p95": "insufficient"}), {}, "the client says 'insufficient'"),
        (client(ttft={"p95": "timed out"}), {}, "the client says 'timed out'"),
        (client(), {"ttft_buckets": None}, "the server has no such figure"),
        (client(), {"ttft_buckets": buckets(0, 0, 0, 200)}, "the server has no such figure"),
        (client(), {"ttft_buckets": buckets(0, 10, 0, 0)}, "the server says 'insufficient'"),
    ],
)
def test_what_cannot_be_compared_is_not_called_agreement(result: dict[str, Any], changes: dict[str, Any], why: str) -> None:
    found = told(agree(result, **changes), "ttft_p95_s")
    assert found["agrees"] is None
    assert why in found["says"]


def test_a_server_that_finished_many_more_has_other_clients() -> None:
    assert told(agree(client(completed=190)), "requests")["agrees"] is True
    others = agree(client(completed=150))
    assert told(others, "requests")["agrees"] is False
    assert "others used the server" in told(others, "requests")["says"]
    # Of different requests nothing else can be compared, and one thing that is wrong is told once.
    assert {one["agrees"] for one in others if one["figure"] != "requests"} == {None}
    assert said(client(completed=150))["says"].startswith("client and server contradict each other: requests: 150 answers")
    fewer = told(agree(client(completed=300)), "requests")
    assert fewer["agrees"] is False
    assert told(agree(client(), finished_count=None), "requests")["agrees"] is None


def test_tokens_without_a_text_are_tokens_to_the_server_only() -> None:
    result = client()
    result["counts"]["empty_events"] = 100
    assert silent_share(result) == pytest.approx(0.2)
    found = agree(result)
    assert {one["figure"].split("_")[0] for one in found if one["agrees"] is None} == {"ttft", "tpot", "itl"}
    assert "20 % of the events had no text" in told(found, "itl_mean_s")["says"]
    assert silent_share({}) is None


def test_answers_of_one_token_pull_the_servers_tpot_down() -> None:
    result = client()
    result["left_out"]["tpot_one_token"] = 50
    found = agree(result)
    assert {one["figure"].split("_")[0] for one in found if one["agrees"] is None} == {"tpot"}
    assert "50 of 200 answers had one token" in told(found, "tpot_p50_s")["says"]


def test_without_any_figure_nothing_is_said_of_agreement() -> None:
    whole = said({})
    assert whole["agrees"] is None
    assert whole["says"] == "client and server cannot be compared (TTFT mean cannot be compared: the client has no such figure)"


def test_a_window_that_the_server_says_nothing_of_has_no_story() -> None:
    refused = server.figures(answers(restarts=rows(({}, 1.0))), WINDOW)
    assert server.agree(client(), refused) == []
    assert story(client(), refused) is story(client(), None) is None
