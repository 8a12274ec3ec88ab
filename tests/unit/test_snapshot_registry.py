"""The registry probe against a real TLS server of the test's own, with each way to fail."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.unit.node_code import utils
from vllm_node.lab import pki

registry = utils("snapshot_registry")

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"


def blob(data: dict[str, Any]) -> tuple[str, bytes]:
    body = json.dumps(data).encode()
    return "sha256:" + hashlib.sha256(body).hexdigest(), body


LAYERS = {"config": {"size": 7}, "layers": [{"size": 100}, {"size": 20}]}
PLAIN = blob(LAYERS)
CHILD = blob({**LAYERS, "layers": [{"size": 1000}]})
INDEX = blob(
    {
        "manifests": [
            {"digest": CHILD[0], "platform": {"architecture": "amd64", "os": "linux"}},
            {"digest": "sha256:" + "5" * 64, "platform": {"architecture": "unknown"}},
        ]
    }
)
BROKEN_INDEX = blob({"manifests": [{"digest": "sha256:" + "6" * 64, "platform": {"architecture": "amd64"}}]})
NOT_JSON = ("sha256:" + hashlib.sha256(b"<html>").hexdigest(), b"<html>")
WRONG = "sha256:" + "7" * 64
STORED = {
    PLAIN[0]: PLAIN[1],
    CHILD[0]: CHILD[1],
    INDEX[0]: INDEX[1],
    BROKEN_INDEX[0]: BROKEN_INDEX[1],
    NOT_JSON[0]: NOT_JSON[1],
    WRONG: b"{}",
}
BASIC = "Basic " + base64.b64encode(b"lab:right").decode()


class Handler(BaseHTTPRequestHandler):
    """A small registry; `mode` says how it asks for credentials."""

    mode: ClassVar[str] = "basic"
    seen: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.seen.append(self.path)
        given = self.headers.get("Authorization")
        if self.path.startswith("/token"):
            self.answer(*((200, b'{"token": "t0k"}') if given == BASIC else (401, b"")))
        elif self.mode == "basic" and given != BASIC:
            self.answer(401, b"", {"WWW-Authenticate": 'Basic realm="r"'})
        elif self.mode.startswith("bearer") and given != "Bearer t0k":
            scheme = "http" if self.mode == "bearer-http" else "https"
            realm = f"{scheme}://{self.headers['Host']}/token"
            self.answer(401, b"", {"WWW-Authenticate": f'Bearer realm="{realm}",service="s",scope="pull"'})
        elif self.path == "/v2/":
            self.answer(404 if self.mode == "no-registry" else 200, b"{}")
        else:
            body = STORED.get(self.path.rpartition("/")[2])
            kind = INDEX_TYPE if body and b"manifests" in body else MANIFEST_TYPE
            self.answer(200, body, {"Content-Type": kind}) if body else self.answer(404, b"")

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """The tests look at the answers instead."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    pki.make(folder, "localhost")
    return folder


@pytest.fixture
def server(keys: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Handler, "mode", "basic")
    monkeypatch.setattr(Handler, "seen", [])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.crt", keys / "server.key")
    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.socket = context.wrap_socket(found.socket, server_side=True)
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"localhost:{found.server_port}"
    found.shutdown()
    thread.join()
    found.server_close()


def probe(
    address: str, keys: Path, digests: tuple[str, ...] = (), machine: str = "x86_64", **wanted: Any
) -> Any:
    images = [
        {"name": str(number), "repository": f"{address}/site/x", "digest": digest}
        for number, digest in enumerate(digests)
    ]
    given = {
        "address": address,
        "ca": (keys / "ca.crt").read_text(),
        "username": "lab",
        "password": "right",
        **wanted,
    }
    return registry.probe(given, images, machine, 5.0)


def test_a_good_registry(server: str, keys: Path) -> None:
    found = probe(server, keys, (PLAIN[0], INDEX[0]))
    plain, index = found["images"]
    assert (found["reachable"], found["tls"], found["auth"], found["error"]) == (True, "ok", "ok", None)
    assert (plain["found"], plain["size_bytes"], plain["media_type"]) == (True, 127, MANIFEST_TYPE)
    assert (index["found"], index["size_bytes"], index["media_type"]) == (True, 1007, INDEX_TYPE)
    assert index["architectures"] == ["amd64"]
    assert plain["error"] is None
    assert index["error"] is None


def test_a_digest_that_is_not_there(server: str, keys: Path) -> None:
    (image,) = probe(server, keys, ("sha256:" + "0" * 64,))["images"]
    assert image["found"] is False


@pytest.mark.parametrize(
    ("digest", "machine", "said"),
    [
        (INDEX[0], "aarch64", "no image for arm64"),
        (BROKEN_INDEX[0], "x86_64", "is missing"),
        (NOT_JSON[0], "x86_64", "no JSON object"),
        (WRONG, "x86_64", "another content"),
        ("latest", "x86_64", "sha256:<64 hex digits>"),
    ],
)
def test_images_that_are_not_right(server: str, keys: Path, digest: str, machine: str, said: str) -> None:
    (image,) = probe(server, keys, (digest,), machine)["images"]
    assert said in image["error"]
    assert image["size_bytes"] is None


def test_an_image_of_another_registry_is_not_asked_for(server: str, keys: Path) -> None:
    given = {"address": server, "ca": (keys / "ca.crt").read_text(), "username": "lab", "password": "right"}
    images = [{"name": "a", "repository": "other.example/x", "digest": PLAIN[0]}]
    (image,) = registry.probe(given, images, "x86_64", 5.0)["images"]
    assert "is not on" in image["error"]
    assert Handler.seen == ["/v2/"]


@pytest.mark.parametrize("mode", ["basic", "bearer"])
def test_wrong_password(server: str, keys: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setattr(Handler, "mode", mode)
    for wanted in ({"password": "wrong"}, {"username": ""}):
        found = probe(server, keys, (PLAIN[0],), **wanted)
        assert (found["reachable"], found["auth"]) == (True, "refused")
        assert "refused" in found["error"]
        assert found["images"][0]["found"] is None


def test_token_service(server: str, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "mode", "bearer")
    found = probe(server, keys, (PLAIN[0],))
    assert found["auth"] == "ok"
    assert found["images"][0]["found"] is True


def test_the_password_is_never_sent_in_the_clear(
    server: str, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "mode", "bearer-http")
    found = probe(server, keys)
    assert found["auth"] == "refused"
    assert not any(path.startswith("/token") for path in Handler.seen)


def test_no_registry_at_all(server: str, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "mode", "no-registry")
    found = probe(server, keys)
    assert found["auth"] is None
    assert "404" in found["error"]


def test_an_anonymous_registry(server: str, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "mode", "open")
    assert probe(server, keys, username="", password="")["auth"] == "ok"


def test_an_untrusted_certificate(server: str, keys: Path) -> None:
    found = probe(server, keys, ca="")
    assert found["reachable"] is True
    assert found["tls"] not in (None, "ok")
    assert "not trusted" in found["error"]


def test_a_certificate_for_another_name(server: str, keys: Path) -> None:
    found = probe(server.replace("localhost", "127.0.0.1"), keys)
    assert found["tls"] not in (None, "ok")


def test_a_ca_that_is_no_certificate(keys: Path) -> None:
    found = probe("localhost:1", keys, ca="no PEM")
    assert "no PEM" in found["error"]


def test_nobody_listens(keys: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"localhost:{free.getsockname()[1]}"
        found = probe(address, keys, (PLAIN[0],))
    assert found["reachable"] is False
    assert found["error"]
    assert found["images"][0]["found"] is None


def test_a_name_that_does_not_exist(keys: Path) -> None:
    found = probe("registry.invalid:5000", keys)
    assert found["reachable"] is False
    assert "cannot be resolved" in found["error"]


def test_an_address_that_makes_no_sense(keys: Path) -> None:
    assert probe("host:port:x", keys)["error"]


def test_plain_http_is_recognised(keys: Path) -> None:
    plain = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=plain.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        found = probe(f"localhost:{plain.server_port}", keys)
    finally:
        plain.shutdown()
        thread.join()
        plain.server_close()
    assert "does not speak TLS" in found["error"]


def test_a_server_that_never_answers(keys: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        given = {"address": f"localhost:{silent.getsockname()[1]}", "ca": (keys / "ca.crt").read_text()}
        found = registry.probe(given, [], "x86_64", 0.3)
    assert found["error"] == "no answer within the time limit"
