"""A bundle's images as the storage folder of a registry, made of links: nothing is copied, and nothing can be changed.

The layout is that of the `filesystem` driver of distribution (the registry that distributions package), which is the
same in its versions 2 and 3. Whoever serves it asks the registry for each manifest before it counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from vllm_node.bundle import oci
from vllm_node.bundle.contents import image_closure
from vllm_node.bundle.layout import BundleError, Part, shown
from vllm_node.registries import is_place

_ROOT = Path("docker/registry/v2")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)


def repository_path(part: Part) -> str:
    """What an image is called below a registry's host, by its repository in the lock. Raises BundleError."""
    repository = str(part.details["repository"])
    host, _slash, path = repository.partition("/")
    if not path or not is_place(host) or not is_place(repository):
        raise BundleError(f"the repository of {part.name} in the lock is {shown(repository)}; write HOST/PATH there")
    return path


def fill(folder: Path, bundle: Path, parts: Sequence[Part]) -> dict[str, list[str]]:
    """Fill the empty `folder`; returns the digests of the manifests that are offered, by repository path.

    Raises BundleError, and OSError.
    """
    offered: dict[str, list[str]] = {}
    root = folder / _ROOT
    for part in parts:
        closure = image_closure(bundle, part)
        path = repository_path(part)
        own = root / "repositories" / path
        for digest in closure.sizes:
            name = digest.removeprefix("sha256:")
            data = root / "blobs/sha256" / name[:2] / name / "data"
            if not data.is_symlink():
                data.parent.mkdir(parents=True)
                data.symlink_to(oci.blob_path((bundle / "images").resolve(), digest))
        for digest in closure.blobs:
            _link(own / "_layers", digest)
        for digest in closure.manifests:
            _link(own / "_manifests/revisions", digest)
        tag = str(part.details.get("tag") or "")
        if tag and not _TAG.fullmatch(tag):
            raise BundleError(f"the tag of {part.name} in the lock is {shown(tag)}, which is none")
        if tag:
            _write(own / "_manifests/tags" / tag / "current/link", str(part.details["digest"]))
            _link(own / "_manifests/tags" / tag / "index", str(part.details["digest"]))
        offered.setdefault(path, []).extend(closure.manifests)
    return offered


def _link(folder: Path, digest: str) -> None:
    _write(folder / "sha256" / digest.removeprefix("sha256:") / "link", digest)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
