"""What another client measured, and whether client and server tell the same story: in the document and in both reports."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from tests.unit import run_documents
from tests.unit.report_figures import Reader, mismatches
from tests.unit.test_bench_cross_check import REQUESTS, results
from vllm_node.bench.agreement import story
from vllm_node.bench.cross_figures import judged
from vllm_node.bench.report import document, html, markdown, run_page


def crossed(**other: Any) -> dict[str, Any]:
    return {
        "peer": "vllm bench serve",
        "peer_version": "0.32.0",
        "command": "vllm bench serve --backend openai --model tiny",
        "load": {"rate_per_s": 20.0, "requests": REQUESTS, "prompt_tokens": 64, "output_tokens": 16, "arrivals": "constant", "most_streams": 64},
        "order": ["ours", "vllm bench serve", "ours"],
        **judged(results("ours"), results("peer"), REQUESTS),
        **other,
    }


def run(cross_check: Any = None, agreement: Any = None) -> dict[str, Any]:
    steps = [run_documents.step(2.0, run_documents.repeated((0.1, 0.11)))]
    for repeat in steps[0]["repeats"]:
        repeat["agreement"] = agreement
    found = run_documents.run(steps, cross_check=cross_check)
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def pages(found: dict[str, Any]) -> tuple[str, str]:
    document.check(found)
    page = run_page.page(found)
    return markdown.render(page), html.render(page)


def test_both_reports_show_the_other_client_and_every_figure_is_the_documents() -> None:
    found = run(crossed())
    text, page = pages(found)
    for word in ("Does another load generator see the same?", "agrees", "by the clocks' allowance only: TTFT mean", "vllm bench serve 0.32.0"):
        assert word in text
    read = Reader(page)
    assert "cross-check" in [attributes.get("id") for _, attributes, _ in read.of("h2")]
    figures = [one for one in read.figures() if one["data-path"].startswith("/cross_check/")]
    # Of each of 15 figures two medians, their ratio, what is allowed, and the runs.
    assert len(figures) == 15 * (4 + 3 + 2)
    assert mismatches(figures, found) == []
    assert (figures[0]["text"], figures[1]["text"]) == ("50.29 ms", "52.23 ms")
    other = copy.deepcopy(found)
    other["cross_check"]["figures"][0]["ratio"] += 0.01
    assert mismatches(figures, other)


@pytest.mark.parametrize(
    ("agrees", "word"), [(True, "agrees"), (False, "disagrees"), (None, "insufficient")]
)
def test_the_answer_is_the_first_word(agrees: bool | None, word: str) -> None:
    text, page = pages(run(crossed(agrees=agrees, why="so it is")))
    assert f"**{word}**: so it is." in text
    assert f'<strong class="mark {word}">{word}</strong>: so it is.' in page


def test_a_cross_check_that_came_to_nothing_is_shown_with_its_reason() -> None:
    nothing = judged([], [], REQUESTS, "the image is not here")
    assert nothing["agrees"] is None
    text, page = pages(run(crossed(**nothing)))
    assert "insufficient: the image is not here" in text
    assert mismatches(Reader(page).figures(), run(crossed(**nothing))) == []


def test_a_run_without_one_says_nothing_of_it() -> None:
    for text in pages(run()):
        assert "another load generator" not in text
        assert "same story" not in text


def agreeing(**figures: Any) -> Any:
    """Of a server with these figures, beside the client of `run_documents`."""
    seconds = {"ttft_mean_s": 0.159, "e2e_mean_s": 0.21, **figures}
    return story(run_documents.client(), {"figures": {name: {"value": value} for name, value in seconds.items()}})


def test_one_line_a_repeat_says_whether_client_and_server_tell_the_same_story() -> None:
    same = agreeing()
    assert same["agrees"] is True
    text, page = pages(run(agreement=same))
    for number in (1, 2):
        assert f"- **agrees**: repeat {number}: client and server tell the same story" in text
    assert page.count("client and server tell the same story") == 2


def test_a_contradiction_is_also_among_what_has_to_be_known() -> None:
    against = agreeing(ttft_mean_s=0.05)
    assert against["agrees"] is False
    text, _ = pages(run(agreement=against))
    assert "- **disagrees**: repeat 1: client and server contradict each other: TTFT mean" in text
    notices = text.partition("To be known beside the numbers")[2].partition("##")[0]
    assert "TTFT mean: the client measured 159.5 ms, the server's histogram says 50 ms; the client waited" in notices
    assert "(2 requests/s, repeat 1; 2 requests/s, repeat 2)" in notices


@pytest.mark.parametrize(
    ("part", "value"),
    [("cross_check", crossed(agrees="yes")), ("cross_check", {"peer": "x"}), ("agreement", {"agrees": True})],
)
def test_a_document_that_says_it_wrong_is_refused(part: str, value: Any) -> None:
    with pytest.raises(document.RunDocumentError, match=part):
        document.check(run(**{part: value}))
