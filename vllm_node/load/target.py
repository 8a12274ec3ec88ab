"""The server under test: where it is, how to speak to it, and the head of each request."""

from __future__ import annotations

import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True)
class Target:
    """Where requests go. The key is read from a file or an environment variable, never written into a plan.

    `ca_file` None: the system's own authorities. `server_name` None: the name in the URL.
    """

    url: str
    model: str
    api_key_file: str | None = None
    api_key_env: str | None = None
    ca_file: str | None = None
    server_name: str | None = None

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return urlsplit(self.url).scheme == "https"

    @property
    def host(self) -> str:
        """Name or address of the server."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """TCP port of the server."""
        return urlsplit(self.url).port or (443 if self.tls else 80)

    def problems(self) -> list[str]:
        """What is wrong with it, without asking the network."""
        parts = urlsplit(self.url)
        found = []
        if parts.scheme not in ("http", "https") or not parts.hostname:
            found.append(f"target.url: {self.url!r} is no http:// or https:// address")
        if not self.model:
            found.append("target.model: the name under which the server offers the model is missing")
        if self.api_key_file and not Path(self.api_key_file).is_file():
            found.append(f"target.api_key_file: there is no file {self.api_key_file}")
        if self.api_key_env and not os.environ.get(self.api_key_env):
            found.append(f"target.api_key_env: the variable {self.api_key_env} is not set")
        if self.ca_file and not Path(self.ca_file).is_file():
            found.append(f"target.ca_file: there is no file {self.ca_file}")
        return found

    def address(self) -> str:
        """IP address of the server, looked up once so that no request waits for a name.

        Raises:
            OSError: the name is not known.
        """
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        return str(found[0][4][0])

    def tls_context(self) -> ssl.SSLContext | None:
        """How to check the server's certificate; None without TLS.

        Raises:
            OSError: the file of authorities holds none.
        """
        return ssl.create_default_context(cafile=self.ca_file) if self.tls else None

    def head(self, api: str, keep_alive: bool) -> bytes:
        """Head of a request but for its length and its id, which follow (see `request`)."""
        base = urlsplit(self.url).path.rstrip("/")
        lines = [
            f"POST {base}{PATHS[api]} HTTP/1.1",
            f"Host: {urlsplit(self.url).netloc.rpartition('@')[2]}",
            "Accept: text/event-stream",
            "Content-Type: application/json",
            f"Connection: {'keep-alive' if keep_alive else 'close'}",
        ]
        if key := self._key():
            lines.append(f"Authorization: Bearer {key}")
        return "\r\n".join([*lines, "X-Request-Id: "]).encode("latin-1")

    def _key(self) -> str | None:
        if self.api_key_file:
            return Path(self.api_key_file).read_text().strip()
        return os.environ.get(self.api_key_env) if self.api_key_env else None


def request(head: bytes, name: bytes, body: bytes) -> bytes:
    """A whole request; `name` comes back in the server's own log where that keeps request ids."""
    return b"%b%b\r\nContent-Length: %d\r\n\r\n%b" % (head, name, len(body), body)
