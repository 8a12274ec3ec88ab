"""A real HTTP server on loopback that answers what a test tells it to."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """pages: {path: (status, text)}; `delay_s` before each answer; `cut` promises more than it sends."""

    pages: dict[str, tuple[int, str]] = field(default_factory=dict)
    delay_s: float = 0
    cut: bool = False
    asked: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    """Serve `site` for as long as the block runs; its `url` is filled in."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            site.asked.append((self.path, body))
            time.sleep(site.delay_s)
            status, text = site.pages.get(self.path, (404, "nothing here"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text) + (9 if site.cut else 0)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_DELETE = do_GET  # noqa: N815 - named by the library

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        site.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield site
        finally:
            server.shutdown()
            thread.join(5)


def nobody() -> str:
    """URL of a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"
