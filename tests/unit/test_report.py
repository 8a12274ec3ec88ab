"""The end of a bring-up: what runs where, and the models' own words, untouched."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vllm_node.report import Report, text

DIGEST = "sha256:0123456789abcdef" + "0" * 48
LOCK = {"vllm": {"repository": "registry:5000/vllm/vllm-openai", "tag": "v1", "digest": DIGEST}}
UNITS = [
    {"unit": "vllm-chat.service", "image": "vllm", "address": "http://127.0.0.1:8000"},
    {"unit": "gpu-cdi-ready.service"},
]
STATES = {"vllm-chat.service": {"state": "ready"}, "gpu-cdi-ready.service": {"state": "loading"}}


def chat(content: str | None = "4", tokens: int = 1) -> dict[str, Any]:
    reply = {"model": "chat", "choices": [{"message": {"content": content}}], "usage": {"completion_tokens": tokens}}
    return {"json": reply}


def build(*answers: dict[str, Any]) -> Report:
    report = Report.build("node-a", UNITS, STATES, LOCK, list(answers))
    report.question = "2+2?"
    return report


def test_each_unit_has_a_row_and_a_plain_unit_no_image() -> None:
    assert build().rows == [
        {
            "unit": "vllm-chat.service",
            "state": "ready",
            "image": "registry:5000/vllm/vllm-openai:v1",
            "digest": DIGEST,
            "address": "http://127.0.0.1:8000",
        },
        {"unit": "gpu-cdi-ready.service", "state": "loading", "image": "", "digest": "", "address": ""},
    ]


def test_answers_are_read_from_both_apis_and_a_failed_request_has_none() -> None:
    completion = {"model": "base", "choices": [{"text": " four"}], "usage": {"completion_tokens": 2}}
    report = build(chat(), {"json": completion}, {"status": -1, "msg": "refused"})
    assert report.answers == [
        {"model": "chat", "text": "4", "tokens": 1},
        {"model": "base", "text": " four", "tokens": 2},
    ]


def test_an_answer_without_content_is_empty_and_keeps_its_tokens() -> None:
    assert build(chat(None, 32)).answers == [{"model": "chat", "text": "", "tokens": 32}]


@pytest.mark.parametrize(
    "said", ["[bold]no[/bold] markup", "[/closed]", "a :fire: of one's own", "[link=http://x]y[/link]"]
)
def test_the_model_is_quoted_as_it_spoke(said: str) -> None:
    assert repr(said) in text(build(chat(said)))


def test_the_page_names_units_states_places_and_short_digests() -> None:
    page = text(build(chat()), width=160)
    for word in ("node-a", "vllm-chat.service", "ready", "loading", "http://127.0.0.1:8000", "0123456789ab", "2+2?"):
        assert word in page
    assert "0123456789abc" not in page


def test_a_program_gets_the_same() -> None:
    known = json.loads(json.dumps(build(chat()).as_dict()))
    assert known["host"] == "node-a"
    assert known["answers"][0]["tokens"] == 1
    assert known["rows"][0]["digest"] == DIGEST
