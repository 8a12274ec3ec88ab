"""The Markdown report: the verdict comes first, words stand where there is no number, hostile text stays text."""

from __future__ import annotations

from typing import Any

import pytest
from markdown_it import MarkdownIt

from tests.unit import run_documents
from tests.unit.load_values import record
from tests.unit.report_figures import Reader
from vllm_node.bench.report import html, markdown, run_page

HOSTILE = "# x | y\n\n<b onclick='x'>&lt;\n- [a](javascript:1) `c` ![i](j) **b** _e_ \\| ~~d~~ <https://e.example>"


def text(**other: Any) -> str:
    return markdown.render(run_page.page(run_documents.run(**other)))


def rendered(page: str) -> Reader:
    return Reader(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(page))


def test_a_report() -> None:
    lines = text().splitlines()
    assert lines[:9] == [
        "# Benchmark: chat on gpu1, tiny",
        "",
        "tiny-model, 2026-11-30T02:45:00Z to 2026-11-30T02:47:00Z.",
        "",
        "## Verdict",
        "",
        "**pass**: every promise was kept.",
        "",
        "Sustainable rate: 4/s (measured: the highest step that held in all repeats).",
    ]
    assert [line.removeprefix("## ") for line in lines if line.startswith("## ")] == [
        "Verdict",
        "Service level objectives",
        "Steps",
        "Correctness",
        "Did the load generator keep up?",
        "Workload",
        "Provenance",
        "Definitions",
        "What remains unmeasured",
    ]
    for line in (
        "| TTFT p95, at most | 2 requests/s | 1 | 500 ms | 213.0 ms | 120 | **pass** | measured |",
        "| TPOT, p95 | 25 ms | 25 ms | 25 ms | 25 ms | 25 ms | 25 ms | derived |",
        "| KV cache use, maximum | 42 % (n 15) | 42 % (n 15) | 42 % (n 15) | 42 % | 42 % | 42 % | measured |",
        "| 2 requests/s | 3 of 3 | 223.1 ms | 25 ms | 274.1 ms | 8/s | 0 % | unobservable | 42 % | 0.01250 | 31 % |",
        "| a wrong key is refused | **pass** | 401 |",
        "| shared prefix | 30 % asked for, 28 % measured |",
        "| vllm | sha256:" + "a" * 64 + " |",
        "| GPU power | there is no GPU | the whole run |",
    ):
        assert line in lines


def test_both_forms_have_the_same_tables_in_the_same_order() -> None:
    document = run_documents.run()
    page = run_page.page(document)
    ours, theirs = rendered(markdown.render(page)), Reader(html.render(page))
    rows = [[" ".join(cell.split()) for cell in one] for one in (ours.texts("th", "td"), theirs.texts("th", "td"))]
    # The table of the timeline is the chart's, and Markdown has no charts.
    start = rows[1].index("Preemptions")
    while rows[1][start] != "Step":
        start += 1
    begin = rows[1].index("From")
    assert rows[0] == rows[1][:begin] + rows[1][start:]


@pytest.mark.parametrize("how", ["measured", "derived", "inferred", "illustrative"])
def test_each_word_is_defined(how: str) -> None:
    assert f"- **{how}**: " in text()


def test_a_failed_run_says_why_first() -> None:
    slow = run_documents.step(2.0, run_documents.repeated((1.0,)))
    verdict = {"verdict": "fail", "reasons": ["2 requests/s: ttft_p95_s: 1.1 s of at most 0.5 s"], "sustainable_rate_per_s": None}
    page = text(steps=[slow], verdict=verdict, partial="interrupted", contradictions=["e2e_p95_s contradicts tpot_p95_s"])
    first = page.partition("## Service")[0]
    assert "**fail**: a promise was broken, or a check failed." in first
    assert "- 2 requests/s: ttft_p95_s: 1.1 s of at most 0.5 s" in first
    assert "Sustainable rate: none can be named from this run." in first
    assert "This run is partial (interrupted)" in first
    assert "- e2e_p95_s contradicts tpot_p95_s" in first
    assert "| TTFT p95, at most | 2 requests/s | 1 | 500 ms | 1.113 s | 120 | **fail** | measured |" in page


def test_a_void_repeat_and_a_promise_that_was_not_judged() -> None:
    void = run_documents.client(late_s=0.05)
    page = text(steps=[run_documents.step(2.0, [void])])
    assert "Void, and in no median: repeat 1" in page
    assert "| TTFT p95, at most | 2 requests/s | 1 | 500 ms | not judged | 0 | **insufficient** | measured |" in page
    assert "lateness p99 50.0 ms, above 10 ms" in page
    assert "| 2 requests/s | 0 of 1 | void | void |" in page


def test_errors_stand_by_kind() -> None:
    records = [record("http_500", index=1), record("reset", index=2), *run_documents.answers(50)]
    page = text(steps=[run_documents.step(2.0, [run_documents.client(records)])])
    assert "| What did not complete, by kind | 1 http_500, 1 reset | measured |" in page
    assert "| Errors | 2 | measured |" in page


def test_the_queue_slope_has_its_interval() -> None:
    waiting = [(float(at), 2.0 * at + at % 2) for at in range(15)]
    page = text(steps=[run_documents.step(2.0, [run_documents.client(waiting=waiting)])])
    line = next(line for line in page.splitlines() if line.startswith("| Queue slope"))
    assert "/s (95 % interval " in line
    assert line.endswith("| inferred |")


def test_a_closed_loop_says_what_it_hides() -> None:
    page = text(steps=[run_documents.step(None, [run_documents.client()], clients=4)])
    assert "### 4 clients" in page
    assert "they say nothing about capacity" in page


def test_the_whole_run_of_an_agent() -> None:
    workflow = {"runs": 7, "e2e_s": {"p50": 12.5, "p95": "insufficient", "samples": 7}, "calls_per_run": {"p50": 4}, "how": "measured"}
    page = text(workflow=workflow)
    assert "| E2E of a run, p50 | 12.50 s | measured |" in page
    assert "| E2E of a run, p95 | insufficient | measured |" in page
    assert "| E2E of a run, samples | 7 | measured |" in page
    assert "| Calls per run, p50 | 4 | measured |" in page


def test_the_figures_of_workflows_stand_in_their_step_and_in_no_other() -> None:
    client = run_documents.client()
    client["workflow"] = {"runs": 9, "complete": 8, "failed": 1, "e2e_s": {"p50": 4.5, "p95": "insufficient", "n": 9}}
    client["requests"] = {"prompt_tokens": {"p50": 310, "p95": 1400, "p99": 3000}, "shared_prefix_share": 0.29}
    page = text(steps=[run_documents.step(2.0, [client]), run_documents.step(4.0, [run_documents.client()])])
    assert "### 2 workflows/s" in page
    for line in (
        "| E2E of a workflow, p50 | 4.500 s | measured |",
        "| E2E of a workflow, p95 | insufficient | measured |",
        "| Workflows, failed | 1 | measured |",
        "| Prompt tokens asked for, p50 | 310 | measured |",
        "| Shared prefix, counted | 29 % | measured |",
    ):
        assert page.splitlines().count(line) == 1
    assert page.count("E2E of a workflow, p50") == 1


def test_what_the_server_did_not_tell_is_listed_once_with_its_place() -> None:
    server = run_documents.server(prefix_hit_ratio=None)
    server["unobservable"] = [{"what": "prefix_hit_ratio", "why": "no prompt token was looked up"}]
    reset = {**run_documents.server(), "figures": {}, "refused": "a counter was reset inside the window"}
    step = run_documents.step(2.0, run_documents.repeated((0.1, 0.1, 0.1)), [server, server, reset])
    page = text(steps=[step])
    assert "| prefix_hit_ratio | no prompt token was looked up | 2 requests/s, repeat 1; 2 requests/s, repeat 2 |" in page
    assert "| all figures of the server | a counter was reset inside the window | 2 requests/s, repeat 3 |" in page
    line = next(line for line in page.splitlines() if line.startswith("| Prefix cache hits over queries"))
    assert line.count("unobservable") == 2 + 1 + 3


def test_the_server_s_quantiles_have_their_bucket() -> None:
    server = run_documents.server()
    server["figures"]["ttft_p95_s"] = {"value": 0.2, "how": "derived", "samples": 40, "bucket": [0.1, 0.25]}
    page = text(steps=[run_documents.step(2.0, [run_documents.client()], [server])])
    assert "| TTFT by the server's histogram, p95 | 200 ms (n 40), bucket 100 ms to 250 ms | derived |" in page


def test_figures_of_the_server_that_are_not_known_here_are_shown_all_the_same() -> None:
    page = text(steps=[run_documents.step(2.0, [run_documents.client()], [run_documents.server(prefill_time_p95_s=0.25)])])
    assert "| prefill time p95 s | 250 ms (n 15) | measured |" in page


def test_the_promises_of_a_long_sweep_are_those_around_the_sustainable_rate() -> None:
    steps = [run_documents.step(float(rate), [run_documents.client()]) for rate in (1, 2, 3, 4, 5)]
    verdict = {"verdict": "fail", "reasons": [], "sustainable_rate_per_s": 3.0, "how": "measured"}
    page = text(steps=steps, verdict=verdict)
    part = page.partition("## Service")[2].partition("## Steps")[0]
    assert [f"| {rate} requests/s |" in part for rate in (1, 2, 3, 4, 5)] == [False, False, True, True, False]
    assert "5 requests/s: each promise against what was seen:" in page


def test_a_run_without_steps() -> None:
    page = text(steps=[], verdict={"verdict": "insufficient", "reasons": ["no stage was run"], "sustainable_rate_per_s": None})
    assert "No step was run" in page


def test_hostile_text_stays_text() -> None:
    found = run_documents.run(host=HOSTILE)
    found["verdict"].update(reasons=[HOSTILE, "1. one", "- two", "=== three", "+ four", "> five"])
    found["correctness"][0].update(check=HOSTILE, seen=HOSTILE)
    found["provenance"] = {HOSTILE: {HOSTILE: HOSTILE}}
    read = rendered(markdown.render(run_page.page(found)))
    plain = rendered(text(provenance={"x": {"y": "z"}}))
    assert [tag for tag, _, _ in read.elements if tag in ("a", "b", "img", "em", "s", "code", "ol", "hr", "blockquote")] == []
    assert len(read.of("h1", "h2", "h3", "th")) <= len(plain.of("h1", "h2", "h3", "th"))
    shown = " ".join(HOSTILE.split())
    assert shown in read.texts("li")
    assert shown in read.texts("td")
    assert {"1. one", "- two", "=== three", "+ four", "> five"} <= set(read.texts("li"))
