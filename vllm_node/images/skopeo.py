"""skopeo as typed calls: manifests as raw bytes, copies that keep digests, and errors that say what was asked.

A reference carries its transport, as skopeo writes it: `docker://HOST/REPOSITORY@DIGEST`, `oci:FOLDER:NAME`,
`dir:FOLDER`. Calls may be made from several threads.
"""

from __future__ import annotations

import hashlib
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vllm_node.images import skopeo_words
from vllm_node.images.skopeo_words import Kind as Kind

PROGRAM = "skopeo"
DOCKER = "docker://"
_INSPECT_LIMIT_S = 120.0

_running: set[subprocess.Popen[bytes]] = set()
_stopped: set[subprocess.Popen[bytes]] = set()
_lock = threading.Lock()


@dataclass(frozen=True)
class Access:
    """How one side is spoken to; what is None is left to the container tools' own defaults.

    authfile: credentials as `skopeo login --authfile` writes them; cert_dir: folder with `*.crt` (authorities), and
    `*.cert` with `*.key` (a client's); tls_verify: False also allows plain HTTP.
    """

    authfile: Path | None = None
    cert_dir: Path | None = None
    tls_verify: bool = True

    def words(self, side: Literal["", "src-", "dest-"] = "") -> list[str]:
        """Options of skopeo; `copy` has them for each side."""
        words = [f"--{side}authfile={self.authfile}"] if self.authfile else []
        words += [f"--{side}cert-dir={self.cert_dir}"] if self.cert_dir else []
        return words if self.tls_verify else [*words, f"--{side}tls-verify=false"]


DEFAULT = Access()


class SkopeoError(Exception):
    """skopeo could not do what it was asked.

    asked: the call in words, such as `manifest of docker://a/b:1`; said: skopeo's last words, shortened to what counts;
    kind: what that means; registry: product of the registry and its version, where it tells them in its headers.
    """

    def __init__(self, asked: str, said: str, kind: Kind, registry: str | None = None) -> None:
        """All four are kept, and make up the text."""
        self.asked, self.said, self.kind, self.registry = asked, said, kind, registry
        super().__init__(f"{asked}: {said}" + (f" (the registry is {registry})" if registry else ""))


def docker(repository: str, *, tag: str | None = None, digest: str | None = None) -> str:
    """Reference to an image in a registry. A digest wins over a tag: skopeo refuses names that have both."""
    if not (tag or digest):
        raise ValueError(f"{repository}: neither tag nor digest")
    return f"{DOCKER}{repository}@{digest}" if digest else f"{DOCKER}{repository}:{tag}"


def digest_of(raw: bytes) -> str:
    """`sha256:` and 64 hexadecimal digits of a manifest, over its bytes as they came."""
    return "sha256:" + hashlib.sha256(raw).hexdigest()


def raw_manifest(reference: str, access: Access = DEFAULT, *, limit_s: float = _INSPECT_LIMIT_S) -> bytes:
    """The manifest, or index, that `reference` names, byte for byte.

    Raises:
        SkopeoError: it cannot be had within `limit_s`, or it is not what the digest in `reference` says.
    """
    asked = f"manifest of {reference}"
    raw = _run(asked, reference, access, ["inspect", "--raw", *access.words(), reference], limit_s)
    # skopeo hands on what it got: with --raw it does not compare.
    _name, at, digest = reference.rpartition("@")
    if reference.startswith(DOCKER) and at and digest.startswith("sha256:") and digest_of(raw) != digest:
        raise SkopeoError(asked, f"what came does not match: it is {digest_of(raw)}", "other")
    return raw


def raw_config(reference: str, access: Access = DEFAULT, *, limit_s: float = _INSPECT_LIMIT_S) -> bytes:
    """The configuration of an image, byte for byte; `reference` has to name one platform's manifest, not an index.

    Raises:
        SkopeoError: it cannot be had within `limit_s`.
    """
    asked = f"configuration of {reference}"
    return _run(asked, reference, access, ["inspect", "--config", "--raw", *access.words(), reference], limit_s)


def copy(
    source: str,
    target: str,
    source_access: Access = DEFAULT,
    target_access: Access = DEFAULT,
    *,
    every_platform: bool = True,
    preserve_digests: bool = True,
    retries: int = 2,
    limit_s: float | None = None,
    on_line: Callable[[str], None] | None = None,
    on_start: Callable[[int], None] | None = None,
) -> None:
    """Copy an image; with an index and all that it names unless `every_platform` is False.

    Children are sent before the index that names them. `on_line` is given each line that skopeo writes meanwhile, from
    the calling thread; `on_start` the pid of the process that copies. `retries` is for passing faults of the network.

    An `oci:` target takes OCI manifests only: an image in Docker's formats cannot keep its digest there, and skopeo
    says so. `dir:` takes every format.

    Raises:
        SkopeoError: it was not copied within `limit_s`, or not without another digest.
    """
    words = ["copy", *source_access.words("src-"), *target_access.words("dest-")]
    words += ["--all"] if every_platform else []
    words += ["--preserve-digests"] if preserve_digests else []
    words += [f"--retry-times={retries}"] if retries else []
    # Errors of a copy mostly come from one of both sides, and only skopeo's own words tell which.
    named, access = (target, target_access) if target.startswith(DOCKER) else (source, source_access)
    _run(f"copy of {source} to {target}", named, access, [*words, source, target], limit_s, on_line, on_start)


def version() -> str:
    """Version of the installed skopeo, such as `1.18.0`.

    Raises:
        SkopeoError: of kind `no skopeo` where there is none.
    """
    return _run("version of skopeo", "", DEFAULT, ["--version"], 30).decode(errors="replace").split()[-1]


def stop() -> None:
    """End every call that runs now, in whatever thread; each raises SkopeoError of kind `stopped`."""
    with _lock:
        _stopped.update(_running)
        for process in _running:
            process.terminate()


def _run(
    asked: str,
    named: str,
    access: Access,
    words: list[str],
    limit_s: float | None,
    on_line: Callable[[str], None] | None = None,
    on_start: Callable[[int], None] | None = None,
) -> bytes:
    try:
        process = subprocess.Popen(
            [PROGRAM, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise SkopeoError(asked, f"{skopeo_words.NOT_INSTALLED} ({error.strerror})", "no skopeo") from error
    with _lock:
        _running.add(process)
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(limit_s, end) if limit_s is not None else None
    try:
        if timer is not None:
            timer.start()
        if on_start is not None:
            on_start(process.pid)
        out, err = _read(process, on_line)
    finally:
        # Also after an interruption: nothing of ours goes on.
        if process.poll() is None:
            process.kill()
        process.wait()
        if timer is not None:
            timer.cancel()
        with _lock:
            _running.discard(process)
            was_stopped = process in _stopped
            _stopped.discard(process)
    if process.returncode == 0:
        return out
    if was_stopped:
        raise SkopeoError(asked, "stopped before it was done", "stopped")
    if late.is_set():
        raise SkopeoError(asked, f"nothing came within {limit_s:g} s", "unreachable")
    said = skopeo_words.shortened(err.decode(errors="replace")) or f"skopeo ended with {process.returncode}"
    kind = skopeo_words.kind_of(said)
    raise SkopeoError(asked, said, kind, skopeo_words.product(named, access.cert_dir, access.tls_verify, kind))


def _read(process: subprocess.Popen[bytes], on_line: Callable[[str], None] | None) -> tuple[bytes, bytes]:
    if on_line is None:
        return process.communicate()
    assert process.stdout is not None
    assert process.stderr is not None
    complaints, errors = process.stderr, list[bytes]()
    # Read beside the other stream: a pipe that nobody empties would hold skopeo up.
    reader = threading.Thread(target=lambda: errors.extend(complaints), daemon=True)
    reader.start()
    out = []
    for line in process.stdout:
        out.append(line)
        on_line(line.decode(errors="replace").rstrip("\r\n"))
    reader.join()
    return b"".join(out), b"".join(errors)
