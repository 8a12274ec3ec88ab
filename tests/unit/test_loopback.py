"""Questions on loopback: an answer comes whole and in time, or words say why it did not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.role_code import shared_code
from tests.unit.web import Site, nobody, serving


@pytest.fixture
def loopback() -> Any:
    return shared_code("loopback")


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site({"/good": (200, "here"), "/no": (503, "later"), "/gone": (404, "")})) as found:
        yield found


def test_a_refusal_is_an_answer_with_its_words(loopback: Any, site: Site) -> None:
    assert loopback.ask(site.url + "/good", 5) == (200, "here")
    assert loopback.ask(site.url + "/no", 5) == (503, "later")


def test_a_body_goes_as_json(loopback: Any, site: Site) -> None:
    loopback.ask(site.url + "/good", 5, {"a": [1]}, headers={"Authorization": "Bearer k"})
    loopback.ask(site.url + "/good", 5, method="DELETE")
    assert [json.loads(body) if body else None for _, body in site.asked] == [{"a": [1]}, None]


def test_a_proxy_of_the_node_is_not_asked(loopback: Any, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, nobody())
    assert loopback.ask(site.url + "/good", 5)[0] == 200


def silence(loopback: Any, url: str, limit_s: float = 5) -> str:
    with pytest.raises(loopback.SilentError) as caught:
        loopback.ask(url, limit_s)
    return str(caught.value)


def test_nobody_half_of_it_too_late_and_too_much_are_told_apart(
    loopback: Any, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert silence(loopback, nobody()) == "Connection refused"
    assert "unknown url type" in silence(loopback, "here")
    site.cut = True
    assert "cut off" in silence(loopback, site.url + "/good")
    site.cut, site.delay_s = False, 1
    assert "timed out" in silence(loopback, site.url + "/good", 0.2)
    site.delay_s = 0
    monkeypatch.setattr(loopback, "LARGEST_BYTES", 3)
    assert "larger than" in silence(loopback, site.url + "/good")
