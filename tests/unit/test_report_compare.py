"""Two runs beside each other: what may be compared, and what may be said."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit import run_documents
from tests.unit.report_figures import Reader, mismatches
from vllm_node.bench.report import compare, compare_page, document, html, markdown, write
from vllm_node.bench.report.measures import BY_KEY


def run(ttft_s: Sequence[float], rate: float = 2.0, **other: Any) -> dict[str, Any]:
    return run_documents.run([run_documents.step(rate, run_documents.repeated(ttft_s))], **other)


def finding(found: dict[str, Any], key: str = "ttft_p95_s") -> str:
    return str(found["steps"][0]["figures"][key]["finding"])


def test_a_difference_beyond_the_spread() -> None:
    found = compare.compare(run((0.10, 0.11, 0.12)), run((0.20, 0.21, 0.22)))
    assert finding(found) == "B is higher: worse"
    ratio = found["steps"][0]["figures"]["ttft_p95_s"]["ratio"]
    # p95 is 113.05 ms after the fastest: 313.05..333.05 by 213.05..233.05.
    assert ratio["low"] == pytest.approx(0.31305 / 0.23305, rel=1e-3)
    assert ratio["value"] == pytest.approx(0.32305 / 0.22305, rel=1e-3)
    assert ratio["high"] == pytest.approx(0.33305 / 0.21305, rel=1e-3)
    assert finding(compare.compare(run((0.2, 0.2, 0.2)), run((0.1, 0.1, 0.1)))) == "B is lower: better"


def test_overlapping_repeats_are_no_difference() -> None:
    found = compare.compare(run((0.10, 0.12, 0.14)), run((0.13, 0.15, 0.17)))
    assert finding(found) == compare.NO_DIFFERENCE
    page = markdown.render(compare_page.page(found))
    assert "In every figure the repeats of both runs overlap: no difference can be seen." in page


def test_a_run_against_itself_does_not_differ() -> None:
    found = compare.compare(run((0.10, 0.12, 0.14)), run((0.10, 0.12, 0.14)))
    assert {one["finding"] for one in found["steps"][0]["figures"].values()} == {compare.NO_DIFFERENCE, "unobservable"}


def test_one_repeat_has_no_spread() -> None:
    found = compare.compare(run((0.1,)), run((0.4,)))
    assert finding(found) == compare.TOO_FEW
    assert found["steps"][0]["by_chance"]["value"] is None
    page = markdown.render(compare_page.page(found))
    assert "Nothing can be said: repeat both runs" in page
    assert "One repeat has no spread" in page


@pytest.mark.parametrize(("a", "b", "chance"), [(3, 3, 0.1), (2, 2, 1 / 3), (5, 5, 1 / 126), (1, 9, None)])
def test_how_often_equal_runs_lie_apart_by_chance(a: int, b: int, chance: float | None) -> None:
    assert compare.by_chance(a, b) == (None if chance is None else pytest.approx(chance))


def spread(low: Any, high: Any, n: int = 3) -> dict[str, Any]:
    median = (low + high) / 2 if isinstance(low, float) and isinstance(high, float) else low
    return {"median": median, "low": low, "high": high, "n": n, "how": "derived"}


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (spread(1.0, 2.0), spread(2.0, 3.0), "no difference can be seen"),
        (spread(1.0, 2.0), spread(2.1, 3.0), "B is higher: worse"),
        (spread(0.0, 0.0), spread(0.0, 0.0), "no difference can be seen"),
        (spread(0.0, 0.0), spread(0.1, 0.2), "B is higher: worse"),
        (spread(1.0, "timed out"), spread(5.0, 6.0), "insufficient"),
        (spread("insufficient", "insufficient", 0), spread(5.0, 6.0), "insufficient"),
        (spread(None, None, 0), spread(5.0, 6.0), "unobservable"),
        (spread("void", "void", 0), spread(5.0, 6.0), "insufficient"),
    ],
)
def test_findings(a: dict[str, Any], b: dict[str, Any], said: str) -> None:
    assert compare.finding(BY_KEY["ttft_p95_s"], a, b) == said


def test_what_is_neither_good_nor_bad_is_only_higher_or_lower() -> None:
    assert compare.finding(BY_KEY["server_kv_usage_max"], spread(0.1, 0.2), spread(0.3, 0.4)) == "B is higher"
    assert compare.finding(BY_KEY["goodput_requests_per_s"], spread(1.0, 2.0), spread(3.0, 4.0)) == "B is higher: better"


@pytest.mark.parametrize(("a", "b"), [(spread(0.0, 0.0), spread(1.0, 2.0)), (spread(-1.0, 1.0), spread(1.0, 2.0)), (spread(None, None, 0), spread(1.0, 2.0))])
def test_there_is_no_ratio_to_nothing(a: dict[str, Any], b: dict[str, Any]) -> None:
    found = compare.ratio(a, b)
    assert found["value"] is None
    assert found["high"] is None


def other_workload(b: dict[str, Any]) -> None:
    b["workload"]["lengths"]["prompt_tokens"]["p50"] = 400


def other_seed(b: dict[str, Any]) -> None:
    b["workload"]["seed"] = 2


def other_cache(b: dict[str, Any]) -> None:
    b["workload"]["cache"] = "warm"


def other_share(b: dict[str, Any]) -> None:
    b["workload"]["shared_prefix_share"]["asked"] = 0.9


def other_slo(b: dict[str, Any]) -> None:
    b["slo"]["ttft_p95_s"] = 2.0


def more_slo(b: dict[str, Any]) -> None:
    b["slo"]["e2e_p95_s"] = 2.0


def other_kind(b: dict[str, Any]) -> None:
    b["kind"] = "smoke"


def other_rate(b: dict[str, Any]) -> None:
    b["steps"][0]["rate_per_s"] = 3.0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (other_workload, "workload lengths: A has .*300.*, B .*400"),
        (other_seed, "workload seed: A has 1, B 2"),
        (other_cache, "workload cache: A has cold, B warm"),
        (other_share, "workload shared_prefix_share: A has 0.3, B 0.9"),
        (other_slo, "SLO ttft_p95_s: A has 0.5, B 2.0"),
        (more_slo, "SLO e2e_p95_s: A has none, B 2.0"),
        (other_kind, "A is a benchmark run and B a smoke run"),
        (other_rate, "no step is in both: A has 2 requests/s, B 3 requests/s"),
    ],
)
def test_runs_that_must_not_be_compared(change: Callable[[dict[str, Any]], None], reason: str) -> None:
    a = run((0.1, 0.1, 0.1))
    b = copy.deepcopy(a)
    change(b)
    with pytest.raises(ValueError, match=reason) as caught:
        compare.compare(a, b)
    assert isinstance(caught.value, compare.NotComparableError)
    assert len(caught.value.reasons) == 1


def test_all_reasons_are_given_at_once() -> None:
    a = run((0.1,))
    b = copy.deepcopy(a)
    for change in (other_seed, other_cache, other_slo):
        change(b)
    with pytest.raises(compare.NotComparableError) as caught:
        compare.compare(a, b)
    assert len(caught.value.reasons) == 3


def test_what_came_of_a_workload_and_words_about_it_may_differ() -> None:
    a = run((0.1,))
    b = copy.deepcopy(a)
    b["workload"]["shared_prefix_share"]["measured"] = 0.1
    b["workload"]["description"] = "the same in other words"
    b["slo"]["goodput_share"] = None
    compare.compare(a, b)


def test_a_wrong_document_is_named() -> None:
    with pytest.raises(document.RunDocumentError, match=r"^run B: "):
        compare.compare(run((0.1,)), {"schema": 1})


def test_the_page_says_what_is_only_in_one_and_what_else_differs() -> None:
    a, b = run_documents.run(), run((0.1, 0.1, 0.1), id="later", partial="interrupted")
    b["provenance"]["images"]["vllm"] = "sha256:" + "b" * 64
    page = markdown.render(compare_page.page(compare.compare(a, b)))
    assert "Only in A: 4 requests/s." in page
    assert "Run B is partial: interrupted." in page
    assert f"| images.vllm | sha256:{'a' * 64} | sha256:{'b' * 64} |" in page
    assert "3 repeats of A and 3 of B count." in page
    assert "10 % lie so by chance (inferred)" in page
    assert "Unobservable in both runs: Queue slope;" in page
    assert page.splitlines()[4] == "## What differs"


def test_every_figure_is_that_of_the_comparison() -> None:
    found = compare.compare(run((0.10, 0.11, 0.12)), run((0.20, 0.21, 0.22)))
    page = html.render(compare_page.page(found))
    read = Reader(page)
    assert read.problems == []
    assert len(read.figures()) > 200
    assert mismatches(read.figures(), found) == []
    found["steps"][0]["figures"]["ttft_p95_s"]["ratio"]["high"] += 0.01
    assert len(mismatches(read.figures(), found)) == 1
    assert html.render(compare_page.page(compare.compare(run((0.10, 0.11, 0.12)), run((0.20, 0.21, 0.22))))) == page


def test_comparisons_are_written(tmp_path: Path) -> None:
    found = compare.compare(run((0.1,)), run((0.2,)))
    assert [path.name for path in write.comparison(found, tmp_path)] == ["comparison.json", "comparison.md", "comparison.html"]
