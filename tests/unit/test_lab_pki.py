"""The lab registry's certificates: one authority, one name, nothing secret in the open."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from vllm_node.lab import pki

HOST = "registry.lab.internal"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pki") / "tls"
    pki.make(made, HOST)
    return made


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_the_key_is_for_its_owner_only(folder: Path) -> None:
    assert (folder / "server.key").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in folder.iterdir()) == ["ca.crt", "server.crt", "server.key"]


def test_the_server_is_signed_by_the_authority_and_named_for_the_host(folder: Path) -> None:
    ca, server = certificate(folder / "ca.crt"), certificate(folder / "server.crt")
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [HOST]
    key = load_pem_private_key((folder / "server.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.public_key() == server.public_key()


def test_the_authority_signs_servers_and_no_other_authorities(folder: Path) -> None:
    limits = certificate(folder / "ca.crt").extensions.get_extension_for_class(x509.BasicConstraints)
    assert limits.critical
    assert (limits.value.ca, limits.value.path_length) == (True, 0)


def test_both_are_valid_although_clocks_differ_a_little(folder: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    for name in ("ca.crt", "server.crt"):
        found = certificate(folder / name)
        assert found.not_valid_before_utc < now - datetime.timedelta(minutes=30)
        assert found.not_valid_after_utc > now + datetime.timedelta(days=300)


def handshake(folder: Path, ca: Path, name: str) -> None:
    """A TLS handshake over a pair of sockets, with the client trusting `ca` and asking for `name`."""
    ours, theirs = socket.socketpair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")

    def serve() -> None:
        try:
            context.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ssl.create_default_context(cafile=str(ca)).wrap_socket(ours, server_hostname=name):
            pass
    finally:
        ours.close()
        thread.join(5)


def test_a_client_that_trusts_the_authority_gets_through(folder: Path) -> None:
    handshake(folder, folder / "ca.crt", HOST)


@pytest.mark.parametrize("name", ["other.lab.internal", "lab.internal"])
def test_another_name_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"[Hh]ostname mismatch"):
        handshake(folder, folder / "ca.crt", name)


def test_another_labs_authority_is_refused(folder: Path, tmp_path: Path) -> None:
    pki.make(tmp_path, HOST)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(folder, tmp_path / "ca.crt", HOST)
