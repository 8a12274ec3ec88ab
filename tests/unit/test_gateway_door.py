"""A gateway counts as ready when it is open by TLS and closed without a key; tests/gateway asks the real one."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.unit.role_code import load, shared_code
from tests.unit.web import Site, nobody, serving
from vllm_node.lab import pki

GOOD = {"/health": 503, "/v1/models": 401, "/metrics": 404}


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    folder = tmp_path_factory.mktemp("tls")
    pki.make(folder, "gateway.example")
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.load_cert_chain(folder / "server.crt", folder / "server.key")
    return made


@contextmanager
def door(context: ssl.SSLContext, codes: dict[str, int]) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(codes[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join(5)


def seen(port: int) -> Any:
    return shared_code("gateway_door").ajar("127.0.0.1", port)


@pytest.mark.parametrize("health", [200, 503])
def test_closed_to_those_without_a_key_whether_an_instance_answers_or_not(context: ssl.SSLContext, health: int) -> None:
    with door(context, {**GOOD, "/health": health}) as port:
        assert seen(port) is None
        step = load("roles/stack/library/stack_step.py")
        assert step.not_ready({"kind": "gateway", "address": "127.0.0.1", "port": port}) is None


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        ("/health", 404, "/health answers 404 without a key, not 200 or 503"),
        ("/v1/models", 200, "/v1/models answers 200 without a key, not 401"),
        ("/metrics", 200, "/metrics answers 200 without a key, not 404"),
    ],
)
def test_a_door_that_is_ajar_is_told(context: ssl.SSLContext, path: str, code: int, said: str) -> None:
    with door(context, {**GOOD, path: code}) as port:
        assert seen(port) == said


def test_nobody_and_a_program_without_tls() -> None:
    assert seen(int(nobody().rpartition(":")[2])) == "not listening yet"
    with serving(Site()) as site:
        assert seen(int(site.url.rpartition(":")[2])).startswith("no answer: ")
