"""Signatures over `SHA256SUMS`, by the ssh-keygen that is on every node: no new tool is needed on the other side."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from vllm_node.bundle.layout import SIGNATURE_NAMESPACE, BundleError

PROGRAM = "ssh-keygen"
_KEY = re.compile(r"with (\S+) key (SHA256:\S+)")
_KEY_TYPE = re.compile(r"(ssh-|ecdsa-|sk-)\S+")


@dataclass(frozen=True)
class Signed:
    """What a signature proves.

    state: `none` (there is no signature), `trusted` (by one of the allowed signers), `unknown` (whole, but nobody said
    whom to trust), `untrusted` (whole, by none of the allowed signers), `broken` (not over this file); key: type and
    fingerprint of the key that signed; signer: its name among the allowed ones; said: what ssh-keygen has against it.
    """

    state: str
    key: str | None = None
    signer: str | None = None
    said: str = ""


def check_key(key: Path) -> None:
    """Raises BundleError when there is no usable key: seen before hours of work, not after."""
    done = _run(["-l", "-f", str(key)])
    if done.returncode != 0:
        raise BundleError(f"--sign-key {key} is no key: {_words(done)}")


def sign(content: bytes, key: Path) -> bytes:
    """Signature over `content`; a key with a passphrase is asked for on the terminal. Raises BundleError."""
    done = _run(["-Y", "sign", "-q", "-f", str(key), "-n", SIGNATURE_NAMESPACE], content)
    if done.returncode != 0 or not done.stdout:
        raise BundleError(f"nothing could be signed with {key}: {_words(done)}")
    return done.stdout


def check(content: bytes, signature: Path, allowed_signers: Path | None) -> Signed:
    """What the signature in a file says about `content`. Raises BundleError when there is no ssh-keygen."""
    if not signature.is_file():
        return Signed("none")
    whole = _run(["-Y", "check-novalidate", "-n", SIGNATURE_NAMESPACE, "-s", str(signature)], content)
    match = _KEY.search(whole.stdout.decode(errors="replace"))
    if whole.returncode != 0 or match is None:
        return Signed("broken", said=_words(whole))
    key = " ".join(match.groups())
    if allowed_signers is None:
        return Signed("unknown", key)
    names = _run(["-Y", "find-principals", "-s", str(signature), "-f", str(allowed_signers)])
    said = _words(names)
    for name in names.stdout.decode(errors="replace").splitlines() if names.returncode == 0 else []:
        options = ["-f", str(allowed_signers), "-I", name, "-n", SIGNATURE_NAMESPACE, "-s", str(signature)]
        done = _run(["-Y", "verify", *options], content)
        if done.returncode == 0:
            return Signed("trusted", key, name)
        said = _words(done)
    return Signed("untrusted", key, said=said)


def allowed(allowed_signers: Path) -> list[str]:
    """Who may sign, for people: `name (type fingerprint)` of each line. Raises OSError."""
    found = []
    for line in allowed_signers.read_text(errors="replace").splitlines():
        words = line.split()
        place = next((number for number, word in enumerate(words) if _KEY_TYPE.fullmatch(word)), 0)
        if line.startswith("#") or not place or place + 1 >= len(words):
            continue
        try:
            digest = hashlib.sha256(base64.b64decode(words[place + 1], validate=True)).digest()
        except ValueError:
            continue
        fingerprint = base64.b64encode(digest).decode().rstrip("=")
        found.append(f"{words[0]} ({words[place]} SHA256:{fingerprint})")
    return found


def _run(words: list[str], content: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run([PROGRAM, *words], input=content, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise BundleError(f"{PROGRAM} is not installed here: install the OpenSSH client") from error


def _words(done: subprocess.CompletedProcess[bytes]) -> str:
    text = (done.stderr + b"\n" + done.stdout).decode(errors="replace")
    return next((line.strip() for line in text.splitlines() if line.strip()), f"{PROGRAM} ended with {done.returncode}")
