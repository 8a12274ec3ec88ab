"""A server with the API of vLLM that can be given one fault at a time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Model:
    """A model `chat` that does all right but for its fault. `turn`: which answer differs; `running`: whom it serves."""

    def __init__(self) -> None:
        self.fault, self.answered, self.turn, self.url, self.running = "", 0, 0, "", 0

    def answer(self, path: str, body: dict[str, Any], key: str) -> tuple[int, str]:
        if path == "/metrics":
            return 200, f"vllm:num_requests_running {self.running}\nvllm:num_requests_waiting 0\n"
        if path == "/v1/models":
            return 200, json.dumps({"data": [{"id": "other" if self.fault == "lists another" else "chat"}]})
        if not path.endswith("/completions"):
            return 404, "{}"
        if "wrong" in key and self.fault != "takes any key":
            return 401, "{}"
        if path == "/v1/chat/completions":
            if self.fault == "has no chat":
                return 400, '{"error": {"message": "no chat template"}}'
            tokens = 0 if self.fault == "says nothing" else body["max_tokens"]
            said = {"message": {"content": f"an answer to {body['messages'][0]['content']}"}}
            return 200, json.dumps({"model": "chat", "choices": [said], "usage": {"completion_tokens": tokens}})
        if body["model"] != "chat" and self.fault != "takes any model":
            return 404, "{}"
        self.answered += 1
        turned = self.fault == "answers anew" or (self.fault == "turned once" and self.answered == self.turn)
        text = f"one two {self.answered}" if turned else "one two"
        prompt = body["prompt"]
        tokens = len(prompt) if isinstance(prompt, list) else 3
        usage = {"prompt_tokens": tokens, "completion_tokens": body["max_tokens"] - (self.fault == "counts wrong")}
        if not body.get("stream"):
            return 200, json.dumps({"model": "chat", "choices": [{"text": text}], "usage": usage})
        words = [text] if self.fault == "one piece" else [text[:4], text[4:]]
        if self.fault == "other text in streams":
            words.append(" three")
        events = [json.dumps({"choices": [{"text": word}]}) for word in words]
        ends = [] if self.fault == "no end" else ["[DONE]"]
        return 200, "".join(f"data: {event}\n\n" for event in [*events, json.dumps({"choices": [], "usage": usage}), *ends])


@contextmanager
def serving(made: Model) -> Iterator[Model]:
    """The model, while it answers at its `url`."""

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
