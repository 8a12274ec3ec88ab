"""What a bundle looks like on disk (schema 1), and its manifest.

| place            | what is there                                                                                     |
| ---------------- | ------------------------------------------------------------------------------------------------- |
| `bundle.json`    | the manifest: schema, time, version of the toolkit, and the parts (see `Part`)                    |
| `SHA256SUMS`     | every other file except its signature; GNU's format, sorted, so that `sha256sum -c` reads it      |
| `SHA256SUMS.sig` | signature over it by `ssh-keygen -Y sign -n vllm-node-bundle`; only where a key was given         |
| `sbom.cdx.json`  | CycloneDX 1.6: images, wheels, collections, RPMs, models                                          |
| `images/`        | one OCI layout with every image and every platform of it; `index.json` has the lock's names       |
| `wheels/`        | for `pip install --no-index --find-links wheels vllm-node`                                        |
| `collections/`   | tarballs for `ansible-galaxy collection install`                                                  |
| `rpms/`          | RPMs with their `repodata/`: a repository as it is                                                |
| `models/NAME/`   | a model as `vllm serve` takes it: plain files, no links; and `models/NAME.json`, its manifest     |
| `dashboards/`    | dashboards of the toolkit, and those that the inventory imports                                   |
| `toolkit/`       | the toolkit's own wheel, and the example inventory                                                |
| `.partial/`      | only while a bundle is made: what is not whole yet, the lock, and the journal                     |

An image may be in Docker's formats: the layout then holds Docker's manifests under their own media types, because
another format would be another digest. skopeo does not find such an image by `oci:images:NAME`; see
`vllm_node.bundle.oci.directory_view`.

A bundle without `SHA256SUMS` is not finished: it is the last thing that is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, TypeAlias, get_args

SCHEMA: Final = 1
MANIFEST: Final = "bundle.json"
SUMS: Final = "SHA256SUMS"
SIGNATURE: Final = "SHA256SUMS.sig"
SBOM: Final = "sbom.cdx.json"
PARTIAL: Final = ".partial"
SIGNATURE_NAMESPACE: Final = "vllm-node-bundle"

Kind: TypeAlias = Literal["image", "wheel", "collection", "rpm", "repository", "model", "dashboards", "toolkit"]
"""Kind of a part. `repository` is what makes a repository of the RPMs: their `repodata/`, and keys."""

Folder: TypeAlias = Literal["images", "wheels", "collections", "rpms", "models", "dashboards", "toolkit"]
"""Top folder of a bundle: what `--only` chooses from."""

FOLDERS: Final[tuple[Folder, ...]] = get_args(Folder)
_FOLDER_OF: Final[Mapping[Kind, Folder]] = {
    "image": "images",
    "wheel": "wheels",
    "collection": "collections",
    "rpm": "rpms",
    "repository": "rpms",
    "model": "models",
    "dashboards": "dashboards",
    "toolkit": "toolkit",
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SHOWN = 120


class BundleError(Exception):
    """A bundle cannot be made, joined or read. The text says what was seen and what to do."""


@dataclass(frozen=True)
class Part:
    """One thing that travels.

    path: the file, or the folder, in the bundle (`images` for every image: they share blobs); files, bytes: what
    belongs to it (blobs that images share are counted for each); origin: where it came from, in words; details: more,
    by kind. Of an image: `source`, `repository`, `tag`, `digest`, `platform_digest`, `architecture`, all texts, of
    which `source` and `tag` may be missing. Of a wheel, a collection, an RPM and the toolkit: `version`.
    """

    kind: Kind
    name: str
    path: str
    files: int
    bytes: int
    origin: str
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Folder:
        """Top folder that it lies in."""
        return _FOLDER_OF[self.kind]

    def as_dict(self) -> dict[str, Any]:
        """The part as it stands in the manifest."""
        own = {name: getattr(self, name) for name in _FIELDS}
        return {**own, **self.details}

    @classmethod
    def of(cls, said: Any) -> Part:
        """A part as it stands in a manifest. Raises ValueError."""
        if not isinstance(said, dict):
            raise ValueError("a part is no mapping")
        for name, kind in _FIELDS.items():
            value = said.get(name)
            if not isinstance(value, kind) or isinstance(value, bool) or (isinstance(value, int) and value < 0):
                raise ValueError(f"a part has no valid {name!r}: {shown(value)}")
        if said["kind"] not in _FOLDER_OF:
            raise ValueError(f"a part is of the unknown kind {shown(said['kind'])}")
        path = safe_path(said["path"])
        if PurePosixPath(path).parts[0] != _FOLDER_OF[said["kind"]]:
            raise ValueError(f"a part of kind {said['kind']} lies in {shown(path)}")
        details = {name: value for name, value in said.items() if name not in _FIELDS}
        if said["kind"] == "image":
            _check_image(details)
        return cls(**{name: said[name] for name in _FIELDS}, details=details)


_FIELDS: Final[Mapping[str, type]] = {
    "kind": str, "name": str, "path": str, "files": int, "bytes": int, "origin": str
}  # fmt: skip


@dataclass(frozen=True)
class Manifest:
    """What `bundle.json` says. created_at: ISO 8601 in UTC; toolkit_version: of the toolkit that made the bundle."""

    created_at: str
    toolkit_version: str
    parts: tuple[Part, ...]

    def text(self) -> str:
        """The file: the same manifest gives the same text."""
        parts = sorted(self.parts, key=lambda part: (part.kind, part.name, part.path))
        document = {
            "schema": SCHEMA,
            "created_at": self.created_at,
            "toolkit_version": self.toolkit_version,
            "parts": [part.as_dict() for part in parts],
        }
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def parse(cls, text: str | bytes) -> Manifest:
        """What a text says. Raises BundleError."""
        try:
            said = json.loads(text)
            if not isinstance(said, dict) or said.get("schema") != SCHEMA:
                schema = said.get("schema") if isinstance(said, dict) else None
                raise ValueError(f"its schema is {shown(schema)}, this toolkit reads {SCHEMA}")
            parts = tuple(Part.of(one) for one in said["parts"])
            return cls(str(said["created_at"]), str(said["toolkit_version"]), parts)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BundleError(f"{MANIFEST} cannot be read: {error}") from error

    @classmethod
    def read(cls, bundle: Path) -> Manifest:
        """The manifest of a bundle, as it is there: only `verify` knows whether it is true. Raises BundleError."""
        try:
            return cls.parse((bundle / MANIFEST).read_bytes())
        except OSError as error:
            raise BundleError(f"{bundle} is no bundle: {MANIFEST} cannot be read ({error.strerror})") from error

    def images(self) -> list[Part]:
        """The images."""
        return [part for part in self.parts if part.kind == "image"]


def _check_image(details: Mapping[str, Any]) -> None:
    for key in ("digest", "platform_digest"):
        if not _DIGEST.fullmatch(str(details.get(key))):
            raise ValueError(f"the {key} of an image is {shown(details.get(key))}")
    for key in ("repository", "architecture"):
        if not isinstance(details.get(key), str):
            raise ValueError(f"the {key} of an image is {shown(details.get(key))}")


def safe_path(text: str) -> str:
    """The same relative path, when it stays in the bundle and can stand in `SHA256SUMS`. Raises ValueError."""
    pieces = text.split("/")
    if not text or any(piece in ("", ".", "..") for piece in pieces):
        raise ValueError(f"{shown(text)} is no path inside of the bundle")
    if "\\" in text or any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        raise ValueError(f"{shown(text)} has a character that checksum files cannot hold")
    return text


def safe_name(text: str) -> str:
    """The same name, when it may be a folder's. Raises ValueError."""
    if not _NAME.fullmatch(text):
        raise ValueError(f"{shown(text)} is no name: letters, digits and . _ + - (not in front)")
    return text


def shown(value: object) -> str:
    """Something that a stranger may have written, for an error text."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
