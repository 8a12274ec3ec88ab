"""Which files belong to which part of a bundle."""

from __future__ import annotations

from collections.abc import Container, Iterable
from pathlib import Path

from vllm_node.bundle import oci
from vllm_node.bundle.layout import Part

IMAGES_OWN = ("images/index.json", "images/oci-layout")
"""Files of the layout that all images share and none owns."""

_BLOBS = "images/blobs/sha256/"


def image_files(closure: oci.Closure) -> list[str]:
    """Paths in a bundle of all that an image consists of."""
    return [f"{_BLOBS}{digest.removeprefix('sha256:')}" for digest in closure.sizes]


def image_closure(bundle: Path, part: Part, among: Container[str] | None = None) -> oci.Closure:
    """What an image of a bundle consists of, by the manifests that lie there, or by those `among` some paths only.

    Raises ImageError.
    """

    def read(digest: str) -> bytes:
        if among is not None and f"{_BLOBS}{digest.removeprefix('sha256:')}" not in among:
            raise oci.ImageError(f"the manifest {digest} is missing or changed")
        return oci.read_manifest(bundle / "images", digest)

    return oci.closure(read, str(part.details["digest"]))


def part_files(bundle: Path, part: Part, paths: Iterable[str]) -> list[str]:
    """Those of `paths` that belong to a part. Raises ImageError for an image whose manifests cannot be read."""
    if part.kind == "image":
        owned = set(image_files(image_closure(bundle, part)))
        return [path for path in paths if path in owned]
    if part.kind == "repository":
        return [path for path in paths if path.startswith("rpms/") and not path.endswith(".rpm")]
    alone = (part.path, f"{part.path}.json") if part.kind == "model" else (part.path,)
    return [path for path in paths if path in alone or path.startswith(f"{part.path}/")]
