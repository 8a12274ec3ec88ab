"""Ready is what we say it is: a model is listed and makes a token, a page is there, a metric is on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.role_code import load
from tests.unit.web import Site, nobody, serving


@pytest.fixture(scope="module")
def step() -> Any:
    return load("roles/stack/library/stack_step.py")


@pytest.fixture
def site() -> Iterator[Site]:
    models = {"data": [{"id": "base"}, {"id": "chat"}]}
    completion = {"usage": {"completion_tokens": 1}}
    pages = {"/v1/models": (200, json.dumps(models)), "/v1/completions": (200, json.dumps(completion))}
    with serving(Site(pages)) as found:
        yield found


def reason(step: Any, site: Site, model: str = "chat") -> Any:
    return step.not_ready({"kind": "vllm", "url": site.url, "model": model})


def test_a_model_that_is_listed_and_makes_a_token_is_ready(step: Any, site: Site) -> None:
    assert reason(step, site) is None
    path, body = site.asked[-1]
    assert path == "/v1/completions"
    assert json.loads(body) == {"model": "chat", "prompt": "Hello", "max_tokens": 1}


def test_a_proxy_of_the_node_is_not_asked(step: Any, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, nobody())
    assert reason(step, site) is None


def test_a_model_that_is_not_listed_is_named_with_those_that_are(step: Any, site: Site) -> None:
    assert reason(step, site, "other") == "serves base, chat, not other"
    assert [path for path, _ in site.asked] == ["/v1/models"]


TROUBLE: list[tuple[str, tuple[int, str], str]] = [
    ("/v1/models", (500, "oh"), "/v1/models answers 500"),
    ("/v1/models", (200, "<html>"), "does another program have the port"),
    ("/v1/models", (200, "[]"), "does another program have the port"),
    ("/v1/models", (200, '{"data": [{}]}'), "does another program have the port"),
    ("/v1/models", (200, '{"data": []}'), "serves , not chat"),
    ("/v1/completions", (500, "engine died"), "a completion answers 500: engine died"),
    ("/v1/completions", (200, '{"usage": {"completion_tokens": 0}}'), "no token was generated"),
    ("/v1/completions", (200, '{"usage": null}'), "without a count of tokens"),
    ("/v1/completions", (200, "<html>"), "without a count of tokens: <html>"),
]


@pytest.mark.parametrize(("path", "page", "said"), TROUBLE)
def test_anything_else_is_not_ready_and_says_why(
    step: Any, site: Site, path: str, page: tuple[int, str], said: str
) -> None:
    site.pages[path] = page
    assert said in reason(step, site)


def test_a_server_that_hangs_up_in_the_middle_is_not_ready(step: Any, site: Site) -> None:
    site.cut = True
    assert reason(step, site) == "no answer: the page was cut off"


@pytest.mark.parametrize("kind", ["vllm", "http", "metrics"])
def test_nobody_listens_yet(step: Any, kind: str) -> None:
    ready = {"kind": kind, "url": nobody(), "model": "chat", "metric": "X"}
    assert step.not_ready(ready) == "not listening yet"


def test_a_page_that_is_there_is_ready_and_one_that_is_not_is_not(step: Any, site: Site) -> None:
    site.pages["/health"] = (200, "ok")
    assert step.not_ready({"kind": "http", "url": site.url + "/health"}) is None
    assert step.not_ready({"kind": "http", "url": site.url + "/other"}) == "answers 404"


@pytest.mark.parametrize(
    ("text", "ready"),
    [
        ('# HELP GPU_UTIL x\nGPU_UTIL{gpu="0"} 3\n', True),
        ("GPU_UTIL 3\n", True),
        ("# HELP GPU_UTIL x\n# TYPE GPU_UTIL gauge\n", False),
        ('GPU_UTIL_MAX{gpu="0"} 3\n', False),
        ("", False),
    ],
)
def test_metrics_are_ready_with_a_sample_and_not_with_its_help(step: Any, site: Site, text: str, ready: bool) -> None:
    site.pages["/metrics"] = (200, text)
    found = step.not_ready({"kind": "metrics", "url": site.url + "/metrics", "metric": "GPU_UTIL"})
    assert found == (None if ready else "answers, but without GPU_UTIL")


def test_a_unit_without_a_question_is_ready_when_it_is_active(step: Any) -> None:
    assert step.not_ready(None) is None
