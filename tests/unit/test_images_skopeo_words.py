"""What skopeo says, as its releases and several registries have said it, and what it means."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_node.images.skopeo_words import Kind, kind_of, product, shortened

FATAL = 'time="2026-11-30T05:04:05Z" level=fatal msg="Error parsing image name \\"docker://h/a:1\\": {}"\n'
PING = 'pinging container registry h: Get \\"https://h/v2/\\": '


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        (FATAL.format("reading manifest 1 in h/a: manifest unknown"), "reading manifest 1 in h/a: manifest unknown"),
        (FATAL.format(PING + "x509: é"), 'pinging container registry h: Get "https://h/v2/": x509: é'),
        ('time="x" level=warning msg="Failed, retrying in 1s"\n' + FATAL.format("EOF") + "\n", "EOF"),
        ('time="x" level=fatal msg="broken \\x escape"', "broken \\x escape"),
        ("FATA[0001] Error reading image \"docker://h/a:1\": no such host ", "no such host"),
        ("Usage:\nunknown flag: --all\n", "unknown flag: --all"),
        ("", ""),
    ],
)
def test_a_complaint_is_shortened_to_what_counts(stderr: str, said: str) -> None:
    assert shortened(stderr) == said


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("reading manifest 1 in h/a: manifest unknown: manifest unknown", "absent"),
        ("reading manifest 1 in h/a: name unknown: repository name not known to registry", "absent"),
        ("reading manifest 1 in h/a: StatusCode: 404, <html>", "absent"),
        ("reading manifest 1 in h/a: unauthorized: authentication required", "refused"),
        ("reading manifest 1 in h/a: requested access to the resource is denied", "refused"),
        ("unable to retrieve auth token: invalid username/password: unauthorized: HTTP Basic: Access denied", "refused"),
        ("reading manifest 1 in h/a: received unexpected HTTP status: 403 Forbidden", "refused"),
        ("reading manifest 1 in h/a: toomanyrequests: You have reached your pull rate limit, denied", "busy"),
        ('Get "https://h/v2/": x509: certificate signed by unknown authority', "tls"),
        ('Get "https://h/v2/": tls: failed to verify certificate: x509: certificate is valid for b, not h', "tls"),
        ('Get "https://h/v2/": http: server gave HTTP response to HTTPS client', "tls"),
        ('Get "https://h/v2/": dial tcp: lookup h on 127.0.0.53:53: no such host', "unreachable"),
        ('Get "https://h/v2/": dial tcp 10.0.0.1:443: connect: connection refused', "unreachable"),
        ('Get "https://h/v2/": dial tcp 10.0.0.1:443: i/o timeout', "unreachable"),
        ('Get "https://h/v2/": net/http: TLS handshake timeout', "unreachable"),
        ('Get "https://h/v2/": EOF', "unreachable"),
        ("received unexpected HTTP status: 503 Service Unavailable", "unreachable"),
        ("Manifest list must be converted to type, but we cannot modify it", "other"),
    ],
)
def test_a_complaint_means_one_thing(said: str, kind: Kind) -> None:
    assert kind_of(said) == kind


class _Headers(http.server.BaseHTTPRequestHandler):
    """Two headers and nothing more: no registry that tells its product can be had here."""

    def do_GET(self) -> None:
        self.send_response_only(401)
        self.send_header("Server", "Nexus/3.70.1-02 (OSS)")
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
        return


@pytest.fixture
def headers() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), _Headers) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_registry_tells_its_product(headers: str) -> None:
    assert product(f"docker://{headers}/a:1", None, False, "refused") == "Nexus/3.70.1-02 (OSS), registry/2.0"


@pytest.mark.parametrize(
    ("reference", "kind", "verify"),
    [
        ("docker://{}/a:1", "unreachable", False),
        ("docker://{}/a:1", "refused", True),  # it speaks no TLS
        ("docker://a/b:1", "refused", False),
        ("oci:{}/a", "other", False),
    ],
)
def test_a_registry_that_cannot_be_asked_has_no_product(headers: str, reference: str, kind: Kind, verify: bool) -> None:
    assert product(reference.format(headers), Path("/none"), verify, kind) is None
