"""An OCI image layout on disk: what an image consists of, and whether all of it is there.

Formats: OCI image spec 1.1 (layout, index, manifest) and Docker's image manifest version 2 schema 2, which registries
mix. Nothing here asks a registry; a manifest is bytes, and its digest is over these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_node.bundle.layout import BundleError, shown
from vllm_node.bundle.sums import read_small

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
REF_NAME = "org.opencontainers.image.ref.name"
# What registries and the container tools take at most for a manifest.
MANIFEST_MAX_BYTES = 4 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# An index of an index is legal, and nobody has more of it.
_MAX_DEPTH = 4
LAYOUT_TEXT = '{"imageLayoutVersion": "1.0.0"}\n'
_DIRECTORY_VERSION = "Directory Transport Version: 1.1\n"


class ImageError(BundleError):
    """An image is not what it should be. The text says what was seen, without the name of the image."""


@dataclass(frozen=True)
class Descriptor:
    """What a manifest says of another blob: `sha256:…`, size in bytes, media type, platform such as `linux/amd64`."""

    digest: str
    size: int
    media_type: str
    platform: str = ""

    @classmethod
    def of(cls, said: Any) -> Descriptor:
        """A descriptor as JSON has it. Raises ImageError."""
        if not isinstance(said, dict):
            raise ImageError("a descriptor is no mapping")
        digest, size = said.get("digest"), said.get("size")
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise ImageError(f"{shown(digest)} is no SHA-256 digest")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ImageError(f"the size of {digest} is {shown(size)}")
        platform = said.get("platform")
        words = [str(platform.get(key) or "") for key in ("os", "architecture")] if isinstance(platform, dict) else []
        return cls(digest, size, str(said.get("mediaType") or ""), "/".join(words))

    @property
    def hex(self) -> str:
        """The digest without the name of its algorithm: the blob's file name."""
        return self.digest.partition(":")[2]


@dataclass(frozen=True)
class Node:
    """A manifest: `children` are further manifests (of an index), `blobs` configuration and layers (of an image)."""

    media_type: str
    children: tuple[Descriptor, ...]
    blobs: tuple[Descriptor, ...]

    @property
    def oci(self) -> bool:
        """Whether it is in OCI's format, not in Docker's."""
        return ".oci." in self.media_type


@dataclass(frozen=True)
class Closure:
    """An image with all that it names, by digest. manifests: parents first; sizes: bytes of these and of all blobs."""

    manifests: Mapping[str, Node]
    sizes: Mapping[str, int]

    @property
    def bytes(self) -> int:
        """Size of everything."""
        return sum(self.sizes.values())

    @property
    def blobs(self) -> list[str]:
        """Digests of configurations and layers."""
        return [digest for digest in self.sizes if digest not in self.manifests]

    @property
    def oci(self) -> bool:
        """Whether all its manifests are in OCI's format."""
        return all(node.oci for node in self.manifests.values())

    def configs(self) -> dict[str, str]:
        """Digest of the configuration of each image manifest, by the manifest's digest."""
        return {digest: node.blobs[0].digest for digest, node in self.manifests.items() if node.blobs}


def parse(raw: bytes) -> Node:
    """What a manifest says. Raises ImageError."""
    try:
        said = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ImageError(f"a manifest is no JSON: {error}") from error
    if not isinstance(said, dict):
        raise ImageError("a manifest is no mapping")
    manifests, layers, config = said.get("manifests"), said.get("layers"), said.get("config")
    # A text that is both could be read as another image by another program (CVE-2021-41190).
    if isinstance(manifests, list) and layers is None and config is None:
        media_type = str(said.get("mediaType") or OCI_INDEX)
        return Node(media_type, tuple(Descriptor.of(one) for one in manifests), ())
    if isinstance(layers, list) and manifests is None and config is not None:
        media_type = str(said.get("mediaType") or OCI_MANIFEST)
        return Node(media_type, (), tuple(Descriptor.of(one) for one in (config, *layers)))
    raise ImageError(f"a manifest is neither an index nor an image (mediaType {shown(said.get('mediaType'))})")


def closure(read: Callable[[str], bytes], digest: str) -> Closure:
    """Everything that belongs to the image `digest`; `read` gives the bytes of a manifest by its digest.

    Raises ImageError, and what `read` raises. Content is not compared with digests here.
    """
    manifests: dict[str, Node] = {}
    sizes: dict[str, int] = {}

    def take(digest: str, size: int | None, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise ImageError(f"indexes are nested more than {_MAX_DEPTH} deep")
        if digest in manifests:
            return
        raw = read(digest)
        if size is not None and size != len(raw):
            raise ImageError(f"the manifest {digest} has {len(raw)} bytes, its index says {size}")
        node = manifests[digest] = parse(raw)
        sizes[digest] = len(raw)
        for child in node.children:
            take(child.digest, child.size, depth + 1)
        for blob in node.blobs:
            if sizes.setdefault(blob.digest, blob.size) != blob.size:
                raise ImageError(f"{blob.digest} is said to have {blob.size} and {sizes[blob.digest]} bytes")

    take(digest, None, 0)
    return Closure(manifests, sizes)


def blob_path(images: Path, digest: str) -> Path:
    """File of a blob in the layout `images`."""
    return images / "blobs" / "sha256" / digest.removeprefix("sha256:")


def read_manifest(images: Path, digest: str) -> bytes:
    """A manifest of the layout. Raises ImageError when it is not there, or too large to be one."""
    try:
        return read_small(blob_path(images, digest), MANIFEST_MAX_BYTES)
    except FileNotFoundError as error:
        raise ImageError(f"the manifest {digest} is missing") from error
    except OSError as error:
        raise ImageError(f"the manifest {digest} cannot be read: {error}") from error


def index_text(images: Sequence[tuple[str, Descriptor]]) -> str:
    """`index.json` that gives each image its name."""
    manifests = [
        {
            "mediaType": image.media_type,
            "digest": image.digest,
            "size": image.size,
            "annotations": {REF_NAME: name},
        }
        for name, image in sorted(images, key=lambda pair: pair[0])
    ]
    document = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests}
    return json.dumps(document, indent=1) + "\n"


def read_index(images: Path) -> list[tuple[str, Descriptor]]:
    """Names and images of a layout, in its order; a name is empty where there is none. Raises ImageError."""
    try:
        said = json.loads(read_small(images / "index.json", MANIFEST_MAX_BYTES))
        entries = said["manifests"]
        return [(str((one.get("annotations") or {}).get(REF_NAME, "")), Descriptor.of(one)) for one in entries]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ImageError(f"index.json cannot be read: {error}") from error


def directory_view(images: Path, digest: str, view: Path) -> str:
    """Make the new folder `view` a `dir:` image of links into the layout; returns skopeo's reference to it.

    This is how an image leaves a bundle whatever its format is: skopeo looks up `oci:FOLDER:NAME` among OCI manifests
    only, and `dir:` takes Docker's as they are. Raises ImageError, and OSError.
    """
    found = closure(lambda one: read_manifest(images, one), digest)
    view.mkdir()
    (view / "version").write_text(_DIRECTORY_VERSION)
    for name, one in _directory_names(found, digest):
        (view / name).symlink_to(blob_path(images.resolve(), one))
    return f"dir:{view}"


def _directory_names(found: Closure, digest: str) -> Iterator[tuple[str, str]]:
    for one in found.manifests:
        yield ("manifest.json" if one == digest else f"{one.removeprefix('sha256:')}.manifest.json"), one
    for one in found.blobs:
        yield one.removeprefix("sha256:"), one
