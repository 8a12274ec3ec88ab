"""Clients of the gateway: a polite one, and one that sends exactly the bytes that it is told to."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.gateway.nginx import NAME, Gateway

KEYS = {name: f"{name}-".ljust(40, "k") for name in ("app", "narrow", "slow", "other")}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: str

    def data(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code in an error as clients of this API expect it."""
        error = self.data()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert self.headers["content-type"] == "application/json"
        return str(error["code"])


def context(gateway: Gateway) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(gateway.ca))


def connect(gateway: Gateway) -> ssl.SSLSocket:
    """A connection as a client has it that knows the authority and the name."""
    plain = socket.create_connection(("127.0.0.1", gateway.port), timeout=10)
    return context(gateway).wrap_socket(plain, server_hostname=NAME)


def ask(
    gateway: Gateway, path: str, body: Any = None, *, client: str | None = "app", method: str | None = None, **headers: str
) -> Answer:
    """One request, by the key of a client; `body` is sent as JSON."""
    given = {"Authorization": f"Bearer {KEYS[client]}"} if client else {}
    text = None if body is None else json.dumps(body).encode()
    connection = http.client.HTTPSConnection("127.0.0.1", gateway.port, timeout=20, context=context(gateway))
    try:
        connection.request(
            method or ("GET" if body is None else "POST"),
            path,
            text,
            {"Content-Type": "application/json", **given, **{name.replace("_", "-"): value for name, value in headers.items()}},
        )
        answer = connection.getresponse()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode())
    finally:
        connection.close()


def raw(gateway: Gateway, data: bytes) -> bytes:
    """What comes back for these bytes, until the gateway closes."""
    with connect(gateway) as one:
        one.sendall(data)
        found = b""
        try:
            while part := one.recv(65536):
                found += part
        except (ConnectionError, ssl.SSLError):
            pass
        return found


def request(line: str, body: str = "", *headers: str, client: str | None = "app") -> bytes:
    """The bytes of one request, after which the connection is to be closed."""
    words = [line, "Host: x", "Connection: close", *headers]
    words += [f"Authorization: Bearer {KEYS[client]}"] if client else []
    words += [f"Content-Length: {len(body)}", "Content-Type: application/json"] if body else []
    return ("\r\n".join(words) + "\r\n\r\n" + body).encode()


def status(answer: bytes) -> int:
    """0 where there is none."""
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0
