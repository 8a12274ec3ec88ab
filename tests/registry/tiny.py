"""Images of a few bytes, in both families of formats, written as folders that skopeo reads."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OCI = {
    "index": "application/vnd.oci.image.index.v1+json",
    "manifest": "application/vnd.oci.image.manifest.v1+json",
    "config": "application/vnd.oci.image.config.v1+json",
    "layer": "application/vnd.oci.image.layer.v1.tar+gzip",
}
DOCKER = {
    "index": "application/vnd.docker.distribution.manifest.list.v2+json",
    "manifest": "application/vnd.docker.distribution.manifest.v2+json",
    "config": "application/vnd.docker.container.image.v1+json",
    "layer": "application/vnd.docker.image.rootfs.diff.tar.gzip",
}
Descriptor = dict[str, Any]


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


@dataclass
class Tiny:
    """An image that is being made. top: what a tag is to name; `blobs` and `manifests` by digest."""

    kinds: dict[str, str] = field(default_factory=lambda: OCI)
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    top: bytes = b""

    @property
    def digest(self) -> str:
        return digest(self.top)

    def size(self, platform_digest: str) -> int:
        """What a node fetches: the sizes as they lie here."""
        said = json.loads(self.manifests[platform_digest])
        index = 0 if self.digest == platform_digest else len(self.top)
        blobs = {one["digest"] for one in (said["config"], *said["layers"])}
        return index + len(self.manifests[platform_digest]) + sum(len(self.blobs[one]) for one in blobs)

    def platform(self, architecture: str, text: str = "", variant: str = "") -> Descriptor:
        """One platform's image; it becomes `top`, and its descriptor may go into an index."""
        tar = _tar(f"{architecture}{variant} {text}".encode())
        config = {
            "os": "linux",
            "architecture": architecture,
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [digest(tar)]},
        }
        manifest = self._manifest(json.dumps(config).encode(), (("layer", gzip.compress(tar, mtime=0)),))
        return {**manifest, "platform": {"os": "linux", "architecture": architecture} | ({"variant": variant} if variant else {})}

    def attestation(self, of: Descriptor) -> Descriptor:
        """What a builder says of an image, as it stands beside it in an index."""
        statement = json.dumps({"subject": of["digest"]}).encode()
        config = {"os": "unknown", "architecture": "unknown", "config": {}, "rootfs": {"type": "layers", "diff_ids": [digest(statement)]}}
        manifest = self._manifest(json.dumps(config).encode(), (("application/vnd.in-toto+json", statement),))
        return {
            **manifest,
            "platform": {"os": "unknown", "architecture": "unknown"},
            "annotations": {"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": of["digest"]},
        }

    def index(self, children: Sequence[Descriptor]) -> Tiny:
        self.top = json.dumps({"schemaVersion": 2, "mediaType": self.kinds["index"], "manifests": list(children)}).encode()
        return self

    def write_dir(self, folder: Path) -> str:
        """As skopeo's `dir:` has it, which takes every format; returns the reference."""
        folder.mkdir(parents=True)
        (folder / "version").write_text("Directory Transport Version: 1.1\n")
        (folder / "manifest.json").write_bytes(self.top)
        for name, content in self.blobs.items():
            (folder / name.removeprefix("sha256:")).write_bytes(content)
        for name, content in self.manifests.items():
            (folder / f"{name.removeprefix('sha256:')}.manifest.json").write_bytes(content)
        return f"dir:{folder}"

    def write_layout(self, folder: Path) -> str:
        """As an OCI layout; returns the reference."""
        blobs = folder / "blobs/sha256"
        blobs.mkdir(parents=True)
        for content in (*self.blobs.values(), *self.manifests.values(), self.top):
            (blobs / digest(content).removeprefix("sha256:")).write_bytes(content)
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        top = {
            "mediaType": json.loads(self.top)["mediaType"],
            "digest": self.digest,
            "size": len(self.top),
            "annotations": {"org.opencontainers.image.ref.name": "it"},
        }
        (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [top]}))
        return f"oci:{folder}:it"

    def _manifest(self, config: bytes, layers: Sequence[tuple[str, bytes]]) -> Descriptor:
        said = {
            "schemaVersion": 2,
            "mediaType": self.kinds["manifest"],
            "config": self._blob("config", config),
            "layers": [self._blob(kind, content) for kind, content in layers],
        }
        self.top = json.dumps(said).encode()
        self.manifests[digest(self.top)] = self.top
        return {"mediaType": self.kinds["manifest"], "digest": digest(self.top), "size": len(self.top)}

    def _blob(self, kind: str, content: bytes) -> Descriptor:
        self.blobs[digest(content)] = content
        return {"mediaType": self.kinds.get(kind, kind), "digest": digest(content), "size": len(content)}


def two_platforms(text: str = "", kinds: dict[str, str] = OCI) -> Tiny:
    """amd64 and arm64 in an index, with an attestation of the first where the format has such things."""
    tiny = Tiny(kinds)
    children = [tiny.platform("amd64", text), tiny.platform("arm64", text, "v8")]
    return tiny.index([*children, tiny.attestation(children[0])] if kinds is OCI else children)


def one_platform(architecture: str = "amd64", kinds: dict[str, str] = OCI) -> Tiny:
    tiny = Tiny(kinds)
    tiny.platform(architecture)
    return tiny


def _tar(content: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        entry = tarfile.TarInfo("what")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return file.getvalue()
