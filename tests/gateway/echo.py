"""A model server that remembers what reached it, and answers with words for proxies that ours must not follow."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PIECES, PAUSE_S = 4, 0.05


class Echo(ThreadingHTTPServer):
    """`seen` are (request line, headers, body) of POSTs; `models` is what it lists; `breaks` lets it hang up on them."""

    daemon_threads = True

    def __init__(self, models: list[str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models = models
        self.pieces = PIECES
        self.breaks = False
        self.seen: list[tuple[str, dict[str, str], bytes]] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Echo

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        data = json.dumps({"object": "list", "data": [{"id": name} for name in self.server.models]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.requestline, {k.lower(): v for k, v in self.headers.items()}, body))
        if self.server.breaks:
            self.close_connection = True
            return
        pieces = self.server.pieces
        self.send_response(200)
        for name, value in (
            ("Content-Type", "text/event-stream"),
            ("Transfer-Encoding", "chunked"),
            ("X-Accel-Buffering", "yes"),
            ("X-Accel-Redirect", "/health"),
            ("X-Accel-Limit-Rate", "1"),
            ("X-Request-Id", "the server's own"),
        ):
            self.send_header(name, value)
        self.end_headers()
        with suppress(ConnectionError):
            for number in range(pieces):
                self.wfile.write(b"9\r\ndata: %d\n\n\r\n" % (number % 10))
                time.sleep(PAUSE_S)
            self.wfile.write(b"0\r\n\r\n")


@contextmanager
def echo(*models: str) -> Iterator[Echo]:
    """One that runs."""
    server = Echo(list(models))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
