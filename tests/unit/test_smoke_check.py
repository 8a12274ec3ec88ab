"""The smoke checks see what is wrong with a server that answers, and with one that does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.model_server import Model, serving
from tests.unit.role_code import load, run_module
from tests.unit.web import nobody

FAULTS = {
    "lists another": "the model is listed",
    "takes any model": "an unknown model is refused",
    "answers anew": "the same question has the same answer",
    "counts wrong": "usage counts the tokens",
    "one piece": "a stream comes in pieces and ends",
    "no end": "a stream comes in pieces and ends",
    "other text in streams": "a stream brings the same text",
    "takes any key": "a wrong key is refused",
    "has no chat": "the question is answered",
    "says nothing": "the question is answered",
}
QUESTION = "What is a GPU node for?"


@pytest.fixture
def model() -> Iterator[Model]:
    with serving(Model()) as made:
        yield made


def failed(capsys: pytest.CaptureFixture[str], url: str, **more: Any) -> dict[str, str]:
    """What failed, with what was seen."""
    module = load("roles/smoke/library/smoke_check.py")
    found = run_module(module, capsys, url=url, model="chat", **more)["checks"]
    assert len({one["check"] for one in found}) == len(found)
    return {one["check"]: one["seen"] for one in found if one["outcome"] == "fail"}


def test_a_good_server_passes(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    assert failed(capsys, model.url, has_key=True, key="right") == {}
    assert failed(capsys, model.url) == {}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_seen_by_its_check(model: Model, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    model.fault = fault
    assert FAULTS[fault] in failed(capsys, model.url, has_key=True, key="right", question=QUESTION)


@pytest.mark.parametrize("turn", range(1, 5))
def test_one_answer_that_was_turned_by_its_batch_is_no_fault(
    model: Model, capsys: pytest.CaptureFixture[str], turn: int
) -> None:
    model.fault, model.turn = "turned once", turn
    assert failed(capsys, model.url) == {}


def test_a_question_is_answered_by_the_api_that_is_asked_for(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    module = load("roles/smoke/library/smoke_check.py")
    by_chat = run_module(module, capsys, url=model.url, model="chat", question=QUESTION, max_tokens=5)["answer"]
    assert by_chat == {"model": "chat", "text": f"an answer to {QUESTION}", "tokens": 5}
    completed = run_module(module, capsys, url=model.url, model="chat", question=QUESTION, api="completions")["answer"]
    assert completed == {"model": "chat", "text": "one two", "tokens": 32}
    assert run_module(module, capsys, url=model.url, model="chat")["answer"] is None


def test_an_answer_without_content_is_empty_and_keeps_its_tokens() -> None:
    module = load("roles/smoke/library/smoke_check.py")

    class Thinks:
        def ask(self, *_: Any) -> Any:
            said = {"model": "chat", "choices": [{"message": {"content": None}}], "usage": {"completion_tokens": 32}}
            return module.Answer(200, json.dumps(said))

    assert module.answer_to("x", Thinks(), "chat", "chat", 32)[0] == {"model": "chat", "text": "", "tokens": 32}


def test_another_program_at_the_port_is_told_and_breaks_nothing(capsys: pytest.CaptureFixture[str], model: Model) -> None:
    module = load("roles/smoke/library/smoke_check.py")
    assert module.Answer(200, '["a list"]').data() == {}
    model.fault = "lists another"
    assert failed(capsys, model.url)["the model is listed"] == "other"


def test_without_a_key_that_check_does_not_apply(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    module = load("roles/smoke/library/smoke_check.py")
    found = run_module(module, capsys, url=model.url, model="chat")["checks"]
    assert {one["check"]: one["outcome"] for one in found}["a wrong key is refused"] == "not applicable"


def test_a_server_that_is_not_there_fails_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    found = failed(capsys, nobody())
    assert "the instance answers" in found
    assert len(found) == 7
