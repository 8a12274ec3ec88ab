"""The smoke checks see what is wrong with a server that answers, and with one that does not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

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
}


class Model:
    """A server that does all right but for its fault."""

    def __init__(self) -> None:
        self.fault, self.answered, self.url = "", 0, ""

    def answer(self, path: str, body: dict[str, Any], key: str) -> tuple[int, str]:
        if path == "/v1/models":
            return 200, json.dumps({"data": [{"id": "other" if self.fault == "lists another" else "chat"}]})
        if "wrong" in key and self.fault != "takes any key":
            return 401, "{}"
        if body["model"] != "chat" and self.fault != "takes any model":
            return 404, "{}"
        self.answered += 1
        text = f"one two {self.answered}" if self.fault == "answers anew" else "one two"
        prompt = body["prompt"]
        tokens = len(prompt) if isinstance(prompt, list) else 3
        usage = {"prompt_tokens": tokens, "completion_tokens": body["max_tokens"] - (self.fault == "counts wrong")}
        if not body.get("stream"):
            return 200, json.dumps({"choices": [{"text": text}], "usage": usage})
        words = [text] if self.fault == "one piece" else [text[:4], text[4:]]
        if self.fault == "other text in streams":
            words.append(" three")
        events = [json.dumps({"choices": [{"text": word}]}) for word in words]
        ends = [] if self.fault == "no end" else ["[DONE]"]
        return 200, "".join(f"data: {event}\n\n" for event in [*events, json.dumps({"choices": [], "usage": usage}), *ends])


@pytest.fixture
def model() -> Iterator[Model]:
    made = Model()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            status, text = made.answer(self.path, body, self.headers.get("Authorization") or "")
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET  # noqa: N815 - named by the library

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        made.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield made
        server.shutdown()


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
    assert FAULTS[fault] in failed(capsys, model.url, has_key=True, key="right")


def test_without_a_key_that_check_does_not_apply(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    module = load("roles/smoke/library/smoke_check.py")
    found = run_module(module, capsys, url=model.url, model="chat")["checks"]
    assert {one["check"]: one["outcome"] for one in found}["a wrong key is refused"] == "not applicable"


def test_a_server_that_is_not_there_fails_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    found = failed(capsys, nobody())
    assert "the instance answers" in found
    assert len(found) == 7
