"""The end of a bring-up: what runs where, and the models' own words, untouched."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vllm_node.report import Report, text
from vllm_node.smoke import Measurement, Verdict

DIGEST = "sha256:0123456789abcdef" + "0" * 48
LOCK = {"vllm": {"repository": "registry:5000/vllm/vllm-openai", "tag": "v1", "digest": DIGEST}}
UNITS = [
    {"unit": "vllm-chat.service", "image": "vllm", "address": "http://127.0.0.1:8000"},
    {"unit": "gpu-cdi-ready.service"},
]
STATES = {"vllm-chat.service": {"state": "ready"}, "gpu-cdi-ready.service": {"state": "loading"}}


def said(text: str = "4", tokens: int = 1) -> dict[str, Any]:
    return {"model": "chat", "text": text, "tokens": tokens}


def build(*answers: dict[str, Any] | None) -> Report:
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


def test_an_instance_that_gave_no_answer_has_none() -> None:
    assert build(said(), None).answers == [said()]


@pytest.mark.parametrize(
    "words", ["[bold]no[/bold] markup", "[/closed]", "a :fire: of one's own", "[link=http://x]y[/link]"]
)
def test_the_model_is_quoted_as_it_spoke(words: str) -> None:
    assert repr(words) in text(build(said(words)))


def test_the_page_names_units_states_places_and_short_digests() -> None:
    page = text(build(said()), width=160)
    for word in ("node-a", "vllm-chat.service", "ready", "loading", "http://127.0.0.1:8000", "0123456789ab", "2+2?"):
        assert word in page
    assert "0123456789abc" not in page


def test_the_page_ends_with_a_whole_line_for_each_measurement() -> None:
    report = build(said())
    path = "/var/lib/runs/" + "a-long-name/" * 20 + "report.html"
    before = {"verdict": "pass", "measured_at": "2026-11-30T05:10:00+00:00", "report": path}
    report.measurements = [Measurement("chat", reason="it has not [b]started[/b]", before=Verdict(**before)).as_dict()]
    assert text(report, width=80).splitlines()[-1] == (
        "node-a: chat: not measured: it has not [b]started[/b]; last measured 2026-11-30 05:10 UTC: PASS; "
        f"report: {path}"
    )


def test_a_program_gets_the_same() -> None:
    known = json.loads(json.dumps(build(said()).as_dict()))
    assert known["host"] == "node-a"
    assert known["answers"][0]["tokens"] == 1
    assert known["rows"][0]["digest"] == DIGEST
