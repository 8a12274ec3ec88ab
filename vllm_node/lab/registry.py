"""The lab's image registry: Debian's docker-registry over a storage folder that all labs share.

It runs inside a root of its own, so that nothing that listens is installed on the host. Labs open the storage
read-only; only image builds write to it, on loopback, one at a time.
"""

from __future__ import annotations

import base64
import json
import secrets
import shutil
import socket
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import bcrypt
import yaml

from vllm_node.lab import pki, process, roots
from vllm_node.lab.cache import entry, recipe_hash
from vllm_node.lab.errors import LabError
from vllm_node.paths import cache_dir

HOST = "registry.lab.internal"
PORT = 5000
USERNAME = "lab"
_SUITE = "trixie"
_PACKAGES = ("docker-registry", "ca-certificates")
_AUTH = {"htpasswd": {"realm": "lab", "path": "/lab/htpasswd"}}


def storage() -> Path:
    """Folder with the content of the registry, shared by all labs of this user."""
    folder = cache_dir() / "registry"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def holds(repository: str, digest: str) -> bool:
    """Whether the storage has the manifest `digest` of `repository`."""
    algorithm, _, value = digest.partition(":")
    manifests = storage() / "docker/registry/v2/repositories" / repository / "_manifests/revisions"
    return (manifests / algorithm / value / "link").exists()


@contextmanager
def writable() -> Iterator[str]:
    """A registry on loopback, without TLS and password, for as long as images are pushed; yields `host:port`."""
    with tempfile.TemporaryDirectory(prefix="registry-", dir=cache_dir()) as folder:
        address = f"127.0.0.1:{_free_port()}"
        server = _start(Path(folder), {"addr": address}, storage(), read_only=False, auth=None)
        try:
            _wait_for(f"http://{address}/v2/", None, server, Path(folder))
            yield address
        finally:
            server.end()


@dataclass(frozen=True)
class Own:
    """A registry that nobody else uses. address: `host:port`; ca_dir: folder with its authority only."""

    address: str
    password: str
    authfile: Path
    ca_dir: Path


@contextmanager
def own(
    folder: Path, *, names: Sequence[str] = ("localhost",), at: str = "127.0.0.1", port: int = 0
) -> Iterator[Own]:
    """A registry with TLS and the password of USERNAME that nobody else uses: for one test, all of it in `folder`.

    It listens on `at`, on a free port where none is given, and its certificate is for `names`. Its storage is empty
    and can be written to.
    """
    password = prepare(folder, *names)
    (folder / "storage").mkdir()
    port = port or _free_port()
    address = f"{names[0]}:{port}"
    write_access(folder / "access", folder, address, password)
    server = _start(folder, _secured(f"{at}:{port}"), folder / "storage", read_only=False, auth=_AUTH)
    try:
        context = ssl.create_default_context(cafile=str(folder / "tls/ca.crt"))
        context.check_hostname = False  # asked by address here
        _wait_for(f"https://{at}:{port}/v2/", context, server, folder)
        yield Own(address, password, folder / "access/auth.json", folder / "access/ca")
    finally:
        server.end()


def prepare(folder: Path, *names: str) -> str:
    """Make certificates for these names and a password for a registry in `folder`; returns the password."""
    pki.make(folder / "tls", *names)
    password = secrets.token_urlsafe(18)
    hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(rounds=5)).decode()
    (folder / "htpasswd").write_text(f"{USERNAME}:{hashed}\n")
    return password


def write_access(folder: Path, prepared: Path, address: str, password: str) -> None:
    """Write into `folder` what a client of the registry at `address` needs: `auth.json`, and `ca/` with its authority.

    prepared: the folder of `prepare`.
    """
    (folder / "ca").mkdir(parents=True)
    shutil.copyfile(prepared / "tls/ca.crt", folder / "ca/ca.crt")
    told = base64.b64encode(f"{USERNAME}:{password}".encode()).decode()
    path = folder / "auth.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps({"auths": {address: {"auth": told}}}))


def serve(folder: Path, address: str) -> process.Process:
    """Start the lab's registry (TLS, password, read-only) on `address`; `folder` was prepared before."""
    server = _start(folder, _secured(f"{address}:{PORT}"), storage(), read_only=True, auth=_AUTH)
    context = ssl.create_default_context(cafile=str(folder / "tls/ca.crt"))
    context.check_hostname = False  # asked by address here; nodes ask by name
    _wait_for(f"https://{address}:{PORT}/v2/", context, server, folder)
    return server


def _secured(address: str) -> dict[str, object]:
    return {"addr": address, "tls": {"certificate": "/lab/tls/server.crt", "key": "/lab/tls/server.key"}}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(folder: Path, http: object, content: Path, *, read_only: bool, auth: object) -> process.Process:
    config: dict[str, object] = {
        "version": "0.1",
        "log": {"level": "warn"},
        "storage": {
            "filesystem": {"rootdirectory": "/storage"},
            "maintenance": {"readonly": {"enabled": read_only}},
        },
        "http": http,
    }
    if auth:
        config["auth"] = auth
    (folder / "config.yml").write_text(yaml.safe_dump(config))
    bind = "--bind-ro" if read_only else "--bind"
    return process.start(
        [
            *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--as-pid2", "--console=pipe"),
            *("--volatile=no", "--read-only", "-D", _root(), f"--machine=registry-{secrets.token_hex(4)}"),
            *(f"{bind}={content}:/storage", f"--bind-ro={folder}:/lab"),
            *("/usr/bin/docker-registry", "serve", "/lab/config.yml"),
        ],
        folder / "registry.log",
    )


def _root() -> Path:
    def build(folder: Path) -> None:
        root = folder / "root"
        roots.bootstrap(_SUITE, _PACKAGES, root)
        for mount_point in ("storage", "lab"):
            (root / mount_point).mkdir()

    return entry("registry-root", recipe_hash(_SUITE, _PACKAGES), build) / "root"


def _wait_for(url: str, context: ssl.SSLContext | None, server: process.Process, folder: Path) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end and server.alive:
        try:
            urllib.request.urlopen(url, context=context, timeout=2).close()  # noqa: S310 - an address of the lab
        except urllib.error.HTTPError:
            return  # it answers; 401 is the answer that a registry with a password gives
        except OSError:
            time.sleep(0.1)
        else:
            return
    log = (folder / "registry.log").read_text(errors="replace").strip().splitlines()[-5:]
    server.end()
    raise LabError("the lab's registry does not answer at " + url + ":\n" + "\n".join(log))
