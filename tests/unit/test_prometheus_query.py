"""Asking Prometheus: what it answers, what it refuses, and what it cannot know stay three different things."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.role_code import load, run_module
from tests.unit.web import Site, nobody, serving

AT = 1_800_000_000.0


@pytest.fixture
def module() -> Any:
    return load("roles/prometheus/library/prometheus_query.py")


class AnyQuery(dict[str, tuple[int, str]]):
    """Pages by path, and answers by the expression in the query string."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, tuple[int, str]] = {}

    def get(self, path: str, default: Any = None) -> Any:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query).get("query", [""])[0]
        return self.answers.get(query) or super().get(path, default)


@pytest.fixture
def prometheus() -> Iterator[tuple[Site, AnyQuery]]:
    pages = AnyQuery()
    pages["/-/ready"] = (200, "Prometheus Server is Ready.\n")
    with serving(Site(pages=pages)) as site:
        yield site, pages


def vector(*samples: tuple[dict[str, str], str]) -> tuple[int, str]:
    result = [{"metric": labels, "value": [AT, value]} for labels, value in samples]
    return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})


def test_each_expression_has_its_own_answer(
    module: Any, prometheus: tuple[Site, AnyQuery], capsys: pytest.CaptureFixture[str]
) -> None:
    site, pages = prometheus
    pages.answers["up"] = vector(({"instance": "tiny"}, "1"), ({"instance": "big"}, "0"))
    pages.answers['rate(x{a="b&c"}[5m])'] = vector()
    answer = run_module(module, capsys, url=site.url + "/", queries={"up": "up", "rate": 'rate(x{a="b&c"}[5m])'}, at=AT)
    assert answer["answers"] == {
        "up": {
            "result": [
                {"labels": {"instance": "tiny"}, "value": 1.0},
                {"labels": {"instance": "big"}, "value": 0.0},
            ],
            "error": None,
        },
        # Nothing is not zero.
        "rate": {"result": [], "error": None},
    }
    assert answer["changed"] is False
    asked = [urllib.parse.parse_qs(urllib.parse.urlsplit(path).query) for path, _ in site.asked[1:]]
    assert {one["time"][0] for one in asked} == {str(AT)}
    assert answer["at"] == AT


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0.0), ("1e3", 1000.0), ("NaN", "NaN"), ("+Inf", "+Inf"), ("-Inf", "-Inf")]
)
def test_what_is_no_number_stays_a_word(
    module: Any, prometheus: tuple[Site, AnyQuery], capsys: pytest.CaptureFixture[str], text: str, value: object
) -> None:
    site, pages = prometheus
    pages.answers["x"] = vector(({}, text))
    answer = run_module(module, capsys, url=site.url, queries={"x": "x"})
    assert answer["answers"]["x"]["result"] == [{"labels": {}, "value": value}]


def test_a_scalar_is_a_sample_without_labels_and_a_text_is_an_error(
    module: Any, prometheus: tuple[Site, AnyQuery], capsys: pytest.CaptureFixture[str]
) -> None:
    site, pages = prometheus
    for name, result in (("scalar", [AT, "3"]), ("string", [AT, "three"])):
        document = {"status": "success", "data": {"resultType": name, "result": result}}
        pages.answers[name] = (200, json.dumps(document))
    answer = run_module(module, capsys, url=site.url, queries={"a": "scalar", "b": "string"})["answers"]
    assert answer["a"] == {"result": [{"labels": {}, "value": 3.0}], "error": None}
    assert answer["b"]["result"] == []
    assert "'three'" in answer["b"]["error"]


def test_a_refused_expression_costs_only_its_own_answer(
    module: Any, prometheus: tuple[Site, AnyQuery], capsys: pytest.CaptureFixture[str]
) -> None:
    site, pages = prometheus
    pages.answers["up"] = vector(({}, "1"))
    refusal = {"status": "error", "errorType": "bad_data", "error": "1:3: parse error: unexpected end"}
    pages.answers["up{"] = (400, json.dumps(refusal))
    pages.answers["page"] = (502, "<html>bad gateway</html>")
    answer = run_module(module, capsys, url=site.url, queries={"good": "up", "bad": "up{", "page": "page"})
    assert answer["answers"]["good"]["error"] is None
    assert answer["answers"]["bad"] == {"result": [], "error": "bad_data: 1:3: parse error: unexpected end"}
    assert answer["answers"]["page"]["error"].startswith("answer 502 cannot be read: <html>")


def test_a_range_gives_pairs(
    module: Any, prometheus: tuple[Site, AnyQuery], capsys: pytest.CaptureFixture[str]
) -> None:
    site, pages = prometheus
    result = [{"metric": {"gpu": "0"}, "values": [[AT, "1"], [AT + 15, "NaN"]]}]
    pages.answers["x"] = (200, json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}))
    wanted = {"start": AT, "end": AT + 15, "step": 15}
    answer = run_module(module, capsys, url=site.url, queries={"x": "x"}, range=wanted)
    assert answer["answers"]["x"]["result"] == [{"labels": {"gpu": "0"}, "values": [[AT, 1.0], [AT + 15, "NaN"]]}]
    assert "at" not in answer
    path = urllib.parse.urlsplit(site.asked[-1][0])
    assert path.path == "/api/v1/query_range"
    assert urllib.parse.parse_qs(path.query)["step"] == ["15.0"]


def test_a_range_and_a_moment_exclude_each_other(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = {"start": 1, "end": 2, "step": 1}
    answer = run_module(module, capsys, url=nobody(), queries={}, range=wanted, at=1)
    assert answer["failed"]
    assert "mutually exclusive" in answer["msg"]


def test_a_prometheus_that_is_down_fails_with_the_next_step(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    url = nobody()
    answer = run_module(module, capsys, url=url, queries={"up": "up"})
    assert answer["failed"]
    assert url in answer["msg"]
    assert "refused" in answer["msg"]
    assert "systemctl status prometheus.service" in answer["msg"]


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [(503, "Service Unavailable", "not ready yet"), (404, "nothing", "no Prometheus")],
)
def test_what_is_no_ready_prometheus_is_told(
    module: Any, capsys: pytest.CaptureFixture[str], status: int, text: str, said: str
) -> None:
    with serving(Site(pages={"/-/ready": (status, text)})) as site:
        answer = run_module(module, capsys, url=site.url, queries={"up": "up"})
    assert answer["failed"]
    assert said in answer["msg"]


def test_the_time_limit_is_that_of_the_whole_call(
    module: Any, prometheus: tuple[Site, AnyQuery], capsys: pytest.CaptureFixture[str]
) -> None:
    site, pages = prometheus
    module.PARALLEL = 1
    pages.answers["up"] = vector(({}, "1"))
    site.delay_s = 0.2
    queries = {f"q{number:02}": "up" for number in range(9)}
    answers = run_module(module, capsys, url=site.url, queries=queries, time_limit_s=0.7)["answers"]
    assert answers["q00"]["error"] is None
    assert answers["q08"] == {"result": [], "error": "not asked: the time limit was over"}


def test_an_answer_that_is_cut_off_is_an_error_and_not_nothing(
    module: Any, prometheus: tuple[Site, AnyQuery], capsys: pytest.CaptureFixture[str]
) -> None:
    site, pages = prometheus
    pages.answers["up"] = vector(({}, "1"))
    module.look = lambda *_: None
    site.cut = True
    answer = run_module(module, capsys, url=site.url, queries={"up": "up"}, time_limit_s=1)["answers"]["up"]
    assert answer["result"] == []
    assert answer["error"]
