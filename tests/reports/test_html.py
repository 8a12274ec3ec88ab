"""The HTML report: its figures are those of the JSON, it loads nothing, and a screen reader finds its way."""

from __future__ import annotations

import copy
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit import run_documents
from tests.unit.report_figures import Reader, mismatches
from vllm_node.bench.report import html, run_page, write

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\'{{ 7*7 }}\x07\u202eevil\ud800'


@pytest.fixture(scope="module")
def run() -> dict[str, Any]:
    return run_documents.run()


@pytest.fixture(scope="module")
def page(run: dict[str, Any]) -> str:
    return html.render(run_page.page(run))


@pytest.fixture(scope="module")
def read(page: str) -> Reader:
    return Reader(page)


def test_every_figure_is_that_of_the_document(run: dict[str, Any], read: Reader) -> None:
    figures = read.figures()
    assert len(figures) > 500
    assert mismatches(figures, run) == []


@pytest.mark.parametrize(
    "keys",
    [
        ("steps", 0, "repeats", 1, "client", "latency", "ttft_scheduled_s", "p95"),
        ("steps", 0, "summary", "ttft_p95_s", "median"),
        ("steps", 1, "repeats", 2, "server", "figures", "kv_usage_max", "value"),
        ("steps", 1, "repeats", 2, "client", "verdict", "checks", 0, "seen"),
        ("steps", 0, "repeats", 0, "client", "selfcheck", "cpu_share"),
        ("verdict", "sustainable_rate_per_s"),
        ("steps", 0, "repeats", 0, "server", "timeline", "kv_usage", 3),
        ("steps", 0, "repeats", 0, "client", "timeline", "scheduled", 4),
        ("steps", 0, "repeats", 0, "client", "histograms", "itl_s", 0, 1),
    ],
)
def test_a_figure_that_is_not_that_of_the_document_is_noticed(run: dict[str, Any], read: Reader, keys: tuple[str | int, ...]) -> None:
    other = copy.deepcopy(run)
    place: Any = other
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] += 0.001
    assert mismatches(read.figures(), other)


def test_what_a_person_reads_is_what_a_program_reads(read: Reader) -> None:
    one = next(each for each in read.figures() if each["data-path"] == "/steps/0/repeats/0/client/latency/ttft_scheduled_s/p95")
    assert one["text"] == f"{float(one['value']) * 1000:.1f} ms"


def test_the_same_document_gives_the_same_bytes(run: dict[str, Any], page: str) -> None:
    assert html.render(run_page.page(copy.deepcopy(run))) == page


def test_nothing_is_loaded_and_nothing_runs(page: str, read: Reader) -> None:
    policy = next(attributes["content"] for tag, attributes, _ in read.of("meta") if attributes.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline';")
    assert not read.of("script", "link", "img", "iframe", "object", "embed", "video", "audio", "form", "base")
    for tag, attributes, _ in read.elements:
        for name, value in attributes.items():
            assert not name.startswith("on")
            assert name not in ("src", "href", "action", "xlink:href") or str(value).startswith("#"), (tag, name, value)
    assert "http:" not in page
    assert "https:" not in page
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", page)


def test_the_page_is_well_formed_and_in_order(read: Reader) -> None:
    assert read.problems == []
    assert read.elements[0][:2] == ("html", {"lang": "en"})
    levels = [int(tag[1]) for tag, _, _ in read.of("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    titles = read.texts("h2")
    assert titles[:5] == ["Verdict", "Service level objectives", "Latency distributions", "Timeline", "Steps"]
    assert titles[-3:] == ["Provenance", "Definitions", "What remains unmeasured"]


def test_ids_are_unique_and_every_reference_leads_somewhere(read: Reader) -> None:
    ids = [attributes["id"] for _, attributes, _ in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes, _ in read.elements:
        for name in ("href", "aria-labelledby"):
            for one in (attributes.get(name) or "").split():
                assert one.removeprefix("#") in ids
        for value in attributes.values():
            assert set(re.findall(r"url\(#([^)]*)\)", value or "")) <= set(ids)


def test_tables_and_pictures_say_what_they_are(read: Reader) -> None:
    assert len(read.of("table")) == len(read.of("caption")) > 5
    assert all(attributes.get("scope") in ("col", "row") for _, attributes, _ in read.of("th"))
    pictures = read.of("svg")
    assert len(pictures) == 2
    for _, attributes, text in pictures:
        assert attributes["role"] == "img"
        assert attributes["aria-labelledby"]
        assert "".join(text).strip()
    assert {"2/s #1", "offered", "waiting"} <= {text.strip() for text in read.texts("text")}


def test_pictures_have_the_colours_of_the_page(page: str) -> None:
    drawn = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert "#010" not in drawn
    assert "var(--line-1)" in drawn
    assert "var(--ink)" in drawn
    used, known = set(re.findall(r"var\((--[\w-]+)\)", page)), set(re.findall(r"(--[\w-]+):", page))
    assert used <= known
    assert set(re.findall(r"(?:fill|stroke): (#\w+)", drawn)) <= {"#000000", "#ffffff"}


def test_what_nobody_saw_is_said_in_words_and_never_as_0() -> None:
    few = run_documents.client(run_documents.answers(5))
    found = run_documents.run([run_documents.step(2.0, [few], [None])])
    read = Reader(html.render(run_page.page(found)))
    texts = {one["data-path"]: one["text"] for one in read.figures()}
    repeat = "/steps/0/repeats/0"
    assert texts[f"{repeat}/client/latency/ttft_scheduled_s/p95"] == "insufficient"
    assert texts[f"{repeat}/client/verdict/queue/slope"] == "unobservable"
    assert texts[f"{repeat}/server/figures/prefix_hit_ratio/value"] == "unobservable"
    assert "nobody looked at the server" in read.texts("td")
    assert "unobservable" in read.texts("text")


def test_hostile_text_stays_text() -> None:
    found = run_documents.run(host=HOSTILE, instance=HOSTILE, id=HOSTILE)
    found["workload"].update(name=HOSTILE, description=HOSTILE)
    found["verdict"].update(reasons=[HOSTILE], how=HOSTILE)
    found["provenance"] = {HOSTILE: {HOSTILE: HOSTILE}}
    found["correctness"][0].update(check=HOSTILE, seen=HOSTILE)
    client = found["steps"][0]["repeats"][0]["client"]
    client["notices"] = [HOSTILE]
    client["counts"]["by_kind"] = {HOSTILE: 3, "a/b~c": 4}
    client["verdict"]["checks"][0]["name"] = HOSTILE
    found["steps"][0]["repeats"][0]["server"]["figures"][HOSTILE] = {"value": HOSTILE, "how": "measured"}
    page = html.render(run_page.page(found))
    read = Reader(page)
    assert read.problems == []
    assert not read.of("script", "img")
    assert "49" not in " ".join(read.texts("td"))
    assert not re.search("[\x00-\x08\u202e\ud800-\udfff]", page)
    page.encode()
    assert any("<script>alert(1)</script>" in text for text in read.texts("li"))
    kinds = [one for one in read.figures() if "by_kind" in one["data-path"]]
    assert ("4", "/steps/0/repeats/0/client/counts/by_kind/a~1b~0c") in {(one["value"], one["data-path"]) for one in kinds}


def test_a_long_sweep_stays_small() -> None:
    def repeat(start: float) -> dict[str, Any]:
        return run_documents.client(seconds=600.0, start=start)

    steps = [
        run_documents.step(float(rate), [repeat(run_documents.STARTED_AT_S + 700 * (3 * rate + one)) for one in range(3)], [run_documents.server(600)] * 3)
        for rate in range(1, 9)
    ]
    found = run_documents.run(steps)
    page = html.render(run_page.page(found))
    assert len(page.encode()) < 1_500_000
    read = Reader(page)
    assert mismatches(read.figures(), found) == []
    assert any(int(one["data-to"]) - int(one["data-from"]) > 1 for one in read.figures() if "data-to" in one)


def test_reports_are_written_beside_their_document(run: dict[str, Any], tmp_path: Path) -> None:
    paths = write.run(run, tmp_path / "new")
    assert [path.name for path in paths] == ["run.json", "report.md", "report.html"]
    assert sorted((tmp_path / "new").iterdir()) == sorted(paths)
    assert json.loads(paths[0].read_text()) == run


def test_a_document_that_cannot_be_shown_is_kept_nevertheless(run: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="verdict"):
        write.run({**run, "verdict": None}, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_the_plotting_library_is_imported_only_to_draw() -> None:
    code = "import sys, vllm_node.bench.report.write; print([name for name in ('matplotlib', 'numpy', 'jsonschema') if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_medians_that_the_document_lacks_are_those_of_its_repeats() -> None:
    step = run_documents.step(2.0, run_documents.repeated((0.1, 0.3, 0.2)))
    whole = html.render(run_page.page(run_documents.run([step])))
    found = run_documents.run([{**step, "summary": {"itl_p95_s": step["summary"]["itl_p95_s"]}}])
    read = Reader(html.render(run_page.page(found)))
    assert mismatches(read.figures(), found) == []
    medians = [one for one in read.figures() if one.get("data-by") == "median"]
    assert len(medians) > 30
    assert all(len(one["data-path"].split()) == 3 for one in medians)
    assert read.texts("td") == Reader(whole).texts("td")
