"""A silence is known by its comment: it is made once, extended, ended, and never silences everything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.role_code import load, run_module
from tests.unit.web import Site, nobody, serving

OURS = {"id": "one", "comment": "benchmark window", "createdBy": "vllm-node", "status": {"state": "active"}}
MATCHER = {"name": "severity", "value": "warning|info", "regex": True}


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site({"/api/v2/silences": (200, "[]")})) as found:
        yield found


class Silence:
    def __init__(self, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
        self.site, self.capsys, self.module = site, capsys, load("roles/alertmanager/library/alert_silence.py")

    def known(self, *silences: dict[str, Any]) -> None:
        # The same page answers a POST, with the id of what was made beside the list.
        self.site.pages["/api/v2/silences"] = (200, json.dumps(list(silences)))

    def run(self, **more: Any) -> dict[str, Any]:
        given = {"url": self.site.url, "comment": "benchmark window", "matchers": [MATCHER], **more}
        return run_module(self.module, self.capsys, **given)

    @property
    def sent(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.site.asked if body]


@pytest.fixture
def silence(site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Silence:
    made = Silence(site, capsys)
    ask = made.module.ask

    def answered(url: str, method: str = "GET", body: Any = None) -> Any:
        found = ask(url, method, body)
        return {"silenceID": "new"} if method == "POST" else found

    monkeypatch.setattr(made.module, "ask", answered)
    return made


def test_a_silence_says_who_made_it_what_it_silences_and_when_it_ends(silence: Silence) -> None:
    assert silence.run(duration_s=60) | {"invocation": None} == {"changed": True, "ids": ["new"], "invocation": None}
    (sent,) = silence.sent
    assert sent["createdBy"] == "vllm-node"
    assert sent["matchers"] == [{"name": "severity", "value": "warning|info", "isRegex": True, "isEqual": True}]
    assert sent["startsAt"] < sent["endsAt"]
    assert "id" not in sent


def test_a_second_one_extends_the_first(silence: Silence) -> None:
    silence.known({**OURS, "comment": "something else"}, OURS)
    silence.run()
    assert silence.sent[0]["id"] == "one"


@pytest.mark.parametrize("other", [{"createdBy": "a person"}, {"status": {"state": "expired"}}, {"comment": "x"}])
def test_other_silences_are_left_alone(silence: Silence, other: dict[str, Any]) -> None:
    silence.known({**OURS, **other})
    assert silence.run(state="absent") | {"invocation": None} == {"changed": False, "ids": [], "invocation": None}


def test_it_ends_when_asked(silence: Silence) -> None:
    silence.known(OURS)
    silence.site.pages["/api/v2/silence/one"] = (200, "")
    assert silence.run(state="absent")["ids"] == ["one"]
    assert [path for path, _ in silence.site.asked] == ["/api/v2/silences", "/api/v2/silence/one"]


def test_check_mode_asks_and_changes_nothing(silence: Silence) -> None:
    silence.known(OURS)
    assert silence.run(_ansible_check_mode=True)["changed"] is True
    assert silence.run(state="absent", _ansible_check_mode=True)["changed"] is True
    assert {path for path, _ in silence.site.asked} == {"/api/v2/silences"}
    assert silence.sent == []


def test_a_silence_of_everything_is_refused(silence: Silence) -> None:
    assert "would silence everything" in silence.run(matchers=[])["msg"]


def test_alertmanagers_own_words_are_handed_on(silence: Silence) -> None:
    silence.site.pages["/api/v2/silences"] = (400, "bad matcher format")
    assert "answers 400: bad matcher format" in silence.run()["msg"]
    assert "does not answer" in silence.run(url=nobody())["msg"]
