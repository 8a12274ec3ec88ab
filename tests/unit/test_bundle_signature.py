"""Signatures by a real ssh-keygen: who signed, who may, and what is over another text."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from vllm_node.bundle import signature
from vllm_node.bundle.layout import BundleError

TEXT = b"sums\n"


def key(folder: Path, name: str, kind: str = "ed25519") -> Path:
    path = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", name, "-f", str(path)], check=True)
    return path


def allow(folder: Path, *keys: Path, namespaces: str = "") -> Path:
    path = folder / "allowed"
    lines = [f"{one.name}@site.example {namespaces}{one.with_suffix('.pub').read_text()}" for one in keys]
    path.write_text("# who signs bundles\n" + "".join(lines))
    return path


@pytest.fixture
def signed(tmp_path: Path) -> tuple[Path, Path]:
    """A key, and its signature over TEXT."""
    own = key(tmp_path, "own")
    path = tmp_path / "SHA256SUMS.sig"
    path.write_bytes(signature.sign(TEXT, own))
    return own, path


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_a_signature_by_who_may(tmp_path: Path, kind: str) -> None:
    own, other = key(tmp_path, "own", kind), key(tmp_path, "other")
    path = tmp_path / "x.sig"
    path.write_bytes(signature.sign(TEXT, own))
    found = signature.check(TEXT, path, allow(tmp_path, other, own))
    assert (found.state, found.signer) == ("trusted", "own@site.example")
    assert found.key is not None
    assert found.key.endswith(signature.allowed(tmp_path / "allowed")[1].split()[-1].rstrip(")"))


def test_what_is_not_trusted_says_whose_key_it_was(signed: tuple[Path, Path], tmp_path: Path) -> None:
    own, path = signed
    fingerprint = subprocess.run(["ssh-keygen", "-lf", str(own)], capture_output=True, text=True, check=True).stdout.split()[1]
    unknown = signature.check(TEXT, path, None)
    assert (unknown.state, unknown.key) == ("unknown", f"ED25519 {fingerprint}")
    untrusted = signature.check(TEXT, path, allow(tmp_path, key(tmp_path, "other")))
    assert (untrusted.state, untrusted.key) == ("untrusted", f"ED25519 {fingerprint}")
    empty = tmp_path / "nobody"
    empty.write_text("")
    assert signature.check(TEXT, path, empty).state == "untrusted"


def test_a_signature_over_something_else_is_broken(signed: tuple[Path, Path], tmp_path: Path) -> None:
    own, path = signed
    assert signature.check(TEXT + b"x", path, allow(tmp_path, own)).state == "broken"
    path.write_text("-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n")
    assert signature.check(TEXT, path, None).state == "broken"
    path.unlink()
    assert signature.check(TEXT, path, None).state == "none"


def test_a_signature_for_another_purpose_does_not_count(tmp_path: Path) -> None:
    own = key(tmp_path, "own")
    done = subprocess.run(["ssh-keygen", "-Y", "sign", "-q", "-n", "git", "-f", str(own)], input=TEXT, capture_output=True, check=True)
    path = tmp_path / "x.sig"
    path.write_bytes(done.stdout)
    assert signature.check(TEXT, path, allow(tmp_path, own)).state == "broken"


def test_a_signer_who_may_sign_other_things_only(signed: tuple[Path, Path], tmp_path: Path) -> None:
    own, path = signed
    assert signature.check(TEXT, path, allow(tmp_path, own, namespaces='namespaces="git" ')).state == "untrusted"
    assert signature.check(TEXT, path, allow(tmp_path, own, namespaces='namespaces="vllm-node-bundle" ')).state == "trusted"


def test_who_is_allowed_is_told_as_ssh_keygen_tells_it(tmp_path: Path) -> None:
    own = key(tmp_path, "own")
    told = signature.allowed(allow(tmp_path, own, namespaces='namespaces="vllm-node-bundle" '))
    fingerprint = subprocess.run(["ssh-keygen", "-lf", str(own)], capture_output=True, text=True, check=True).stdout.split()[1]
    assert told == [f"own@site.example (ssh-ed25519 {fingerprint})"]
    (tmp_path / "allowed").write_text("x ssh-ed25519 no-base64!\n\nlonely\n" + base64.b64encode(b"x").decode())
    assert signature.allowed(tmp_path / "allowed") == []


def test_a_key_that_is_none_is_told_before_work_begins(tmp_path: Path) -> None:
    (tmp_path / "none").write_text("no key")
    with pytest.raises(BundleError, match="is no key"):
        signature.check_key(tmp_path / "none")
    with pytest.raises(BundleError, match="nothing could be signed"):
        signature.sign(TEXT, tmp_path / "none")
