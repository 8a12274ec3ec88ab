"""A real registry with TLS and a password, and tiny images in it; skipped where none can be started."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.registry.tiny import Tiny
from vllm_node.images import skopeo
from vllm_node.images.skopeo import Access
from vllm_node.lab import host, registry


@dataclass(frozen=True)
class Registry:
    """The registry of these tests. access: with the right password and the right authority."""

    address: str
    ca_dir: Path
    access: Access
    folder: Path

    def authfile(self, password: str) -> Path:
        """Credentials as `skopeo login` writes them."""
        path = self.folder / f"auth-{len(list(self.folder.glob('auth-*')))}.json"
        told = base64.b64encode(f"{registry.USERNAME}:{password}".encode()).decode()
        path.write_text(json.dumps({"auths": {self.address: {"auth": told}}}))
        return path

    def push(self, tiny: Tiny, repository: str, tag: str) -> Tiny:
        """Bring an image into the registry, with its digest unchanged."""
        source = tiny.write_dir(self.folder / f"image-{len(list(self.folder.glob('image-*')))}")
        target = skopeo.docker(f"{self.address}/{repository}", tag=tag)
        skopeo.copy(source, target, target_access=self.access, retries=0)
        return tiny


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    missing = host.missing()
    if missing:
        pytest.skip("no registry can be started here: " + "; ".join(thing.what for thing in missing))
    folder = tmp_path_factory.mktemp("registry")
    with registry.own(folder) as own:
        yield Registry(own.address, own.ca_dir, Access(own.authfile, own.ca_dir), folder)


@dataclass(frozen=True)
class Silent:
    """An address that takes connections and never says a word."""

    listening: socket.socket
    taken: list[socket.socket] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listening.getsockname()[1]}"

    def wait(self) -> None:
        """Until somebody has asked; the connection stays open."""
        self.taken.append(self.listening.accept()[0])


@pytest.fixture
def silent() -> Iterator[Silent]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        silent = Silent(listening)
        yield silent
        for connection in silent.taken:
            connection.close()
