"""The HTML report in a real browser without a network: it says nothing, asks for nothing, and shows the JSON's figures."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import chromium
from tests.unit import run_documents
from tests.unit.report_figures import mismatches
from vllm_node.bench.report import compare, write

pytestmark = pytest.mark.skipif(
    chromium.program() is None, reason=f"no Chromium is here: apt-get install --no-install-recommends {chromium.PACKAGE}"
)

FIGURES = """[...document.querySelectorAll('data')].map(one => ({
  ...Object.fromEntries([...one.attributes].map(each => [each.name, each.value])), text: one.textContent}))"""
# WCAG's contrast of each text with what lies behind it; inside of a picture that is the page.
CONTRASTS = """(() => {
  const light = colour => {
    const parts = colour.match(/[\\d.]+/g).map(Number).slice(0, 3).map(part => part / 255)
      .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const found = {};
  for (const one of document.querySelectorAll('h1, h2, h3, p, li, a, th, td, caption, figcaption, dt, dd, strong, svg text')) {
    const style = getComputedStyle(one);
    const colour = one.namespaceURI.endsWith('svg') ? style.fill : style.color;
    const ink = light(colour);
    found[one.tagName + ' ' + colour] = (Math.max(paper, ink) + 0.05) / (Math.min(paper, ink) + 0.05);
  }
  return found;
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    with chromium.running(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages with their documents: a run, a poor run, a comparison."""
    folder = tmp_path_factory.mktemp("reports")
    hostile = "\"><script>console.error('x')</script><img src=https://host.example/x onerror=alert(1)>"
    run = run_documents.run(host=hostile)
    few = run_documents.client(run_documents.answers(5))
    other = run_documents.run([run_documents.step(2.0, run_documents.repeated((0.3, 0.31, 0.32)))])
    write.run(run, folder / "run")
    write.run(run_documents.run([run_documents.step(2.0, [few], [None])]), folder / "poor")
    write.comparison(compare.compare(run, other), folder / "comparison")
    return folder


PAGES = pytest.mark.parametrize(
    ("page", "document"),
    [("run/report.html", "run/run.json"), ("poor/report.html", "poor/run.json"), ("comparison/comparison.html", "comparison/comparison.json")],
)


@PAGES
def test_a_report_opens_quietly_and_alone(browser: chromium.Browser, reports: Path, page: str, document: str) -> None:
    browser.open(reports / page)
    assert browser.complaints() == []
    assert browser.requests() == [(reports / page).as_uri()]
    assert browser.evaluate("document.images.length + document.scripts.length") == 0


@PAGES
def test_its_figures_are_those_of_the_json(browser: chromium.Browser, reports: Path, page: str, document: str) -> None:
    browser.open(reports / page)
    figures = browser.evaluate(FIGURES)
    assert len(figures) > 60
    assert mismatches(figures, json.loads((reports / document).read_text())) == []
    assert all(one["text"].strip() for one in figures if "hidden" not in one)


def test_a_figure_that_was_changed_in_the_page_is_noticed(browser: chromium.Browser, reports: Path) -> None:
    browser.open(reports / "run/report.html")
    browser.evaluate("document.querySelectorAll('data')[7].setAttribute('value', '12.5')")
    assert len(mismatches(browser.evaluate(FIGURES), json.loads((reports / "run/run.json").read_text()))) == 1


@pytest.mark.parametrize(
    ("body", "said", "asked"),
    [
        ("<script>console.error('broken')</script>", "broken", ""),
        ("<script>throw new Error('thrown')</script>", "thrown", ""),
        ("<img src='https://host.example/x.png'>", "net::ERR", "https://host.example/x.png"),
        ("<style>@import url(https://host.example/x.css);</style>", "net::ERR", "https://host.example/x.css"),
    ],
)
def test_a_page_that_complains_or_asks_is_noticed(browser: chromium.Browser, tmp_path: Path, body: str, said: str, asked: str) -> None:
    page = tmp_path / "page.html"
    page.write_text(f"<!DOCTYPE html><html lang='en'><meta charset='utf-8'><title>x</title>{body}")
    browser.open(page)
    assert any(said in one for one in browser.complaints())
    assert not asked or asked in browser.requests()


def test_the_page_s_own_policy_stops_what_would_be_loaded(browser: chromium.Browser, reports: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    text = (reports / "run/report.html").read_text()
    page.write_text(text.replace("</main>", "<img src='https://host.example/x.png'><script>document.title = 'ran'</script></main>"))
    browser.open(page)
    stopped = [one["blockedReason"] for method, one in browser.events if method == "Network.loadingFailed"]
    assert stopped == ["csp"]
    assert browser.evaluate("document.title") != "ran"
    assert any("Content Security Policy" in one for one in browser.complaints())


@PAGES
@pytest.mark.parametrize("media", [("screen", "light"), ("screen", "dark"), ("print", "light"), ("print", "dark")], ids="-".join)
def test_it_can_be_read_in_the_light_in_the_dark_and_on_paper(
    browser: chromium.Browser, reports: Path, page: str, document: str, media: tuple[str, str]
) -> None:
    browser.call("Emulation.setEmulatedMedia", media=media[0], features=[{"name": "prefers-color-scheme", "value": media[1]}])
    browser.open(reports / page)
    found = browser.evaluate(CONTRASTS)
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    browser.call("Emulation.setEmulatedMedia", media="", features=[])
    assert (paper == "rgb(255, 255, 255)") == (media != ("screen", "dark"))
    assert len(found) > 8
    assert {what: contrast for what, contrast in found.items() if contrast < 4.5} == {}


@PAGES
def test_a_narrow_screen_scrolls_tables_and_not_the_page(browser: chromium.Browser, reports: Path, page: str, document: str) -> None:
    browser.call("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=False)
    browser.open(reports / page)
    wide = browser.evaluate("document.documentElement.scrollWidth")
    browser.call("Emulation.clearDeviceMetricsOverride")
    assert wide <= 400


def test_a_screen_reader_finds_headings_tables_and_named_pictures(browser: chromium.Browser, reports: Path) -> None:
    browser.open(reports / "run/report.html")
    nodes = [node for node in browser.call("Accessibility.getFullAXTree")["nodes"] if not node.get("ignored")]
    by_role: dict[str, list[Any]] = {}
    for node in nodes:
        by_role.setdefault(node.get("role", {}).get("value", ""), []).append(node.get("name", {}).get("value"))
    assert {"Verdict", "Steps", "What remains unmeasured"} <= set(by_role["heading"])
    pictures = [name for role in ("image", "img", "graphics-document") for name in by_role.get(role, [])]
    assert [name.split(" ")[0] for name in pictures] == ["Latency", "Timeline"]
    assert all(by_role["table"])
    assert {"columnheader", "rowheader", "main", "navigation"} <= set(by_role)


def test_it_prints(browser: chromium.Browser, reports: Path) -> None:
    browser.open(reports / "run/report.html")
    assert len(browser.call("Page.printToPDF")["data"]) > 50_000


def test_nothing_of_the_browser_stays(tmp_path: Path) -> None:
    with chromium.running(tmp_path) as found:
        found.evaluate("1")

    def own() -> list[Path]:
        numbered = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return [entry for entry in numbered if str(tmp_path).encode() in _command(entry)]

    # Its helpers end a moment after it.
    end = time.monotonic() + 20
    while own() and time.monotonic() < end:
        time.sleep(0.1)
    assert own() == []


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
