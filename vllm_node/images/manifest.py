"""What a manifest says: an index of platforms or one image, and how many bytes a node fetches. Nothing is asked here.

Formats: OCI image spec 1.1 (index and manifest), Docker's image manifest version 2 schema 2 (list and manifest).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SCHEMA_1 = re.compile(r"application/vnd\.docker\.distribution\.manifest\.v1\+")
_CONFIGS = ("application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json")
_INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_ZSTD = "io.github.containers.compression.zstd"
# What podman takes for a machine of that architecture, the best one first: a later variant need not run there.
_VARIANTS: dict[str, tuple[str, ...]] = {"arm64": ("v8", "")}

_OTHER_PLATFORM = "Correct the architecture, or take another tag"


class ManifestError(Exception):
    """The manifest is none that can be locked. seen: why, of the image; next_step: a sentence without its dot."""

    def __init__(self, seen: str, next_step: str = "Take another tag, or ask who publishes it") -> None:
        """Both are kept."""
        self.seen, self.next_step = seen, next_step
        super().__init__(f"{seen}. {next_step}")


@dataclass(frozen=True)
class Child:
    """A platform's manifest as an index names it. `variant` is empty where none is told."""

    digest: str
    os: str
    architecture: str
    variant: str
    zstd: bool = False

    @property
    def platform(self) -> str:
        """`linux/arm64/v8`."""
        return "/".join(word for word in (self.os, self.architecture, self.variant) if word)


@dataclass(frozen=True)
class Index:
    """A manifest of manifests. Attestations and other things that are no platform's image are not among them."""

    children: tuple[Child, ...]

    def pick(self, architecture: str) -> str:
        """Digest of the manifest that podman takes on Linux of `architecture`.

        Of several for one platform podman prefers one that is compressed with zstd, else the first.

        Raises:
            ManifestError: there is none; the text names those that there are.
        """
        variants = _VARIANTS.get(architecture, ("",))
        fitting = [
            child
            for child in self.children
            if (child.os, child.architecture) == ("linux", architecture) and child.variant in variants
        ]
        if not fitting:
            there = ", ".join(dict.fromkeys(child.platform for child in self.children)) or "no platform at all"
            raise ManifestError(f"it has no linux/{architecture}; it has {there}", _OTHER_PLATFORM)
        return min(fitting, key=lambda child: (variants.index(child.variant), not child.zstd)).digest


@dataclass(frozen=True)
class Manifest:
    """One platform's image. blobs_bytes: its configuration and layers as they are stored (compressed), each once."""

    blobs_bytes: int


def parse(raw: bytes) -> Index | Manifest:
    """What the bytes of a manifest say.

    Raises:
        ManifestError: schema 1, something that is no image, or a text that is no manifest.
    """
    try:
        said = json.loads(raw)
    except ValueError as error:
        raise ManifestError(f"what the registry gives is no JSON ({error})") from error
    if not isinstance(said, dict):
        raise ManifestError("what the registry gives is no manifest")
    media_type = str(said.get("mediaType") or "")
    if said.get("schemaVersion") == 1 or _SCHEMA_1.match(media_type):
        raise ManifestError(
            "its manifest is of Docker's schema 1, which tells neither sizes nor a platform, and is no longer pulled",
            "Take another tag, or have it built and pushed anew by a current tool",
        )
    # A text that is both could be read as another image by another program (CVE-2021-41190).
    if "manifests" in said and ("layers" in said or "config" in said):
        raise ManifestError("its manifest is an index and an image at once", "Do not use it")
    try:
        if "manifests" in said:
            return Index(tuple(child for one in said["manifests"] if (child := _child(one)) is not None))
        if "layers" in said and "config" in said:
            return _manifest(said["config"], said["layers"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ManifestError(f"its manifest cannot be read ({type(error).__name__}: {error})") from error
    raise ManifestError(f"what the registry gives is neither an index nor an image ({media_type or 'no mediaType'})")


def check_config(raw: bytes, architecture: str) -> None:
    """Hold an image's own configuration against the architecture that is wanted: an image without index has no other.

    Raises:
        ManifestError: it is for another platform, or tells none.
    """
    try:
        said = json.loads(raw)
        found = (str(said["os"]), str(said["architecture"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestError("its configuration does not tell a platform") from error
    if found != ("linux", architecture):
        raise ManifestError(
            f"it has no index and is for {'/'.join(found)}, not for linux/{architecture}", _OTHER_PLATFORM
        )


def _child(said: Mapping[str, Any]) -> Child | None:
    """A platform's image of an index; None for anything else."""
    platform = said.get("platform") or {}
    system, architecture = str(platform.get("os") or ""), str(platform.get("architecture") or "")
    # An attestation has the platform unknown/unknown; signatures and the like have none.
    if "unknown" in (system, architecture) or not (system and architecture) or said.get("mediaType") in _INDEX_TYPES:
        return None
    annotations = said.get("annotations") or {}
    return Child(
        _digest(said), system, architecture, str(platform.get("variant") or ""), annotations.get(_ZSTD) == "true"
    )


def _manifest(config: Mapping[str, Any], layers: Sequence[Mapping[str, Any]]) -> Manifest:
    kind = str(config.get("mediaType") or "")
    if kind not in _CONFIGS:
        raise ManifestError(f"it is no container image but {kind or 'something without a type'}")
    # A layer may be listed twice, and is stored and fetched once.
    sizes = {_digest(blob): _size(blob) for blob in (config, *layers)}
    return Manifest(sum(sizes.values()))


def _digest(said: Mapping[str, Any]) -> str:
    found = str(said["digest"])
    if not DIGEST.fullmatch(found):
        raise ValueError(f"{found[:80]!r} is no SHA-256 digest")
    return found


def _size(said: Mapping[str, Any]) -> int:
    size = said["size"]
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ValueError(f"{size!r} is no size")
    return size
