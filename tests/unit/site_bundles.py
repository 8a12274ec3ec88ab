"""Bundles of images only, made on the spot without any registry: whole, so that `bundle verify` has nothing against them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.registry.tiny import Tiny
from tests.unit import bundles
from vllm_node.bundle import oci
from vllm_node.bundle.layout import MANIFEST, SBOM, Manifest, Part
from vllm_node.bundle.oci import Descriptor

HOST = "registry.site.example:5000"


def platform_of(image: Tiny) -> str:
    """What a node takes: the first image that is not the top of it."""
    return next((digest for digest in image.manifests if digest != image.digest), image.digest)


def write(
    folder: Path,
    images: Mapping[str, Tiny],
    *,
    host: str = HOST,
    repositories: Mapping[str, str] | None = None,
    borrowed: Mapping[str, Path] | None = None,
) -> Path:
    """A bundle with these images. The lock has them as `HOST/x/NAME:1`, or by `repositories`; `borrowed` are blobs that
    lie elsewhere, by digest."""
    blobs = folder / "images/blobs/sha256"
    blobs.mkdir(parents=True)
    parts, named = [], []
    for digest, path in (borrowed or {}).items():
        shutil.copyfile(path, blobs / digest.removeprefix("sha256:"))
    for name, image in images.items():
        for content in (*image.blobs.values(), *image.manifests.values(), image.top):
            (blobs / hashlib.sha256(content).hexdigest()).write_bytes(content)
        closure = oci.closure(lambda digest: oci.read_manifest(folder / "images", digest), image.digest)
        details = {
            "repository": (repositories or {}).get(name, f"{host}/x/{name}"),
            "tag": "1",
            "digest": image.digest,
            "platform_digest": platform_of(image),
            "architecture": "amd64",
        }
        parts.append(Part("image", name, "images", len(closure.sizes), closure.bytes, "made by a test", details))
        named.append((name, Descriptor(image.digest, len(image.top), oci.parse(image.top).media_type)))
    (folder / "images/oci-layout").write_text(oci.LAYOUT_TEXT)
    (folder / "images/index.json").write_text(oci.index_text(named))
    (folder / MANIFEST).write_text(Manifest("2026-11-30T00:00:00Z", "0.1.0", tuple(parts)).text())
    (folder / SBOM).write_text(json.dumps({}))
    bundles.reseal(folder)
    return folder
