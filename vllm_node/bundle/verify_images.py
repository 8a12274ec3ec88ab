"""The images of a bundle: names, digests and manifests have to say the same, and all blobs have to be there.

That every blob is what its name says follows from the sums: they hold the content, and its name is the same hash.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm_node.bundle import oci
from vllm_node.bundle.contents import IMAGES_OWN, image_closure, image_files
from vllm_node.bundle.hashing import FileHash
from vllm_node.bundle.layout import Part, shown
from vllm_node.bundle.oci import Closure, Descriptor, ImageError
from vllm_node.bundle.sums import read_small

_BLOBS = "images/blobs/sha256/"
_CONFIG_MAX_BYTES = 8 << 20


def check_images(
    bundle: Path,
    parts: Sequence[Part],
    listed: Mapping[str, str],
    whole: Mapping[str, FileHash],
    owned: set[str],
) -> Iterator[tuple[str, str]]:
    """Path and text of each problem; files that belong to an image are added to `owned`.

    `listed` are the sums, `whole` the files that agree with them.
    """
    for path in listed:
        if path.startswith(_BLOBS) and listed[path] != path.removeprefix(_BLOBS):
            yield path, f"holds {listed[path][:16]}…, which is not what its name says"
    if not parts:
        return
    if not all(path in whole for path in IMAGES_OWN):
        yield "images/index.json", "is missing or changed, so no name of an image can be believed"
        return
    try:
        named = oci.read_index(bundle / "images")
    except ImageError as error:
        yield "images/index.json", str(error)
        return
    yield from _names(parts, named)
    for part in parts:
        try:
            closure = image_closure(bundle, part, whole)
        except ImageError as error:
            yield "images", f"{part.name}: {error}"
            continue
        owned.update(image_files(closure))
        yield from _blobs(part, closure, whole)
        yield from _platform(bundle, part, closure, whole)
        if (len(closure.sizes), closure.bytes) != (part.files, part.bytes):
            told = f"{part.files} blobs, {part.bytes} bytes; it has {len(closure.sizes)} and {closure.bytes}"
            yield "bundle.json", f"says of the image {part.name}: {told}"


def _names(parts: Sequence[Part], named: Sequence[tuple[str, Descriptor]]) -> Iterator[tuple[str, str]]:
    """The names of the layout against those of the manifest."""
    path = "images/index.json"
    wanted = {part.name: str(part.details.get("digest")) for part in parts}
    by_digest = {digest: name for name, digest in wanted.items()}
    seen: set[str] = set()
    for name, image in named:
        if name in seen:
            yield path, f"has {shown(name)} twice"
        seen.add(name)
        if name not in wanted:
            yield path, f"has {shown(name)}, which bundle.json does not know"
        elif image.digest != wanted[name]:
            other = by_digest.get(image.digest)
            swapped = f", which is {other} there" if other else ""
            yield path, f"has {image.digest} as {name}{swapped}; bundle.json says {wanted[name]}"
    for name in sorted(set(wanted) - seen):
        yield path, f"lacks {name}, which bundle.json names"


def _blobs(part: Part, closure: Closure, whole: Mapping[str, FileHash]) -> Iterator[tuple[str, str]]:
    for digest, size in closure.sizes.items():
        path = f"{_BLOBS}{digest.removeprefix('sha256:')}"
        if path not in whole:
            yield path, f"is missing or changed; {part.name} needs it"
        elif whole[path].bytes != size:
            yield path, f"has {whole[path].bytes} bytes; a manifest of {part.name} says {size}"


def _platform(
    bundle: Path, part: Part, closure: Closure, whole: Mapping[str, FileHash]
) -> Iterator[tuple[str, str]]:
    """The manifest that nodes take is one of the image, and for the architecture that is named."""
    platform = str(part.details.get("platform_digest"))
    architecture = part.details.get("architecture")
    config = closure.configs().get(platform)
    if config is None:
        yield "bundle.json", f"says that nodes take {platform} of {part.name}, which has no such image"
        return
    if f"{_BLOBS}{config.removeprefix('sha256:')}" not in whole:
        return  # told already
    try:
        said: Any = json.loads(read_small(oci.blob_path(bundle / "images", config), _CONFIG_MAX_BYTES))
        found = f"{said['os']}/{said['architecture']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        yield f"{_BLOBS}{config.removeprefix('sha256:')}", f"is no configuration of {part.name}: {error!r}"
        return
    if found != f"linux/{architecture}":
        yield "bundle.json", f"says that {part.name} is for linux/{architecture}; what nodes take is for {shown(found)}"
