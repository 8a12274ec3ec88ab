"""The manifest of a model: which files it has, their sizes and SHA-256; and how a folder differs from it.

The same code reads it on the control host and on the nodes.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Mapping
from typing import Any

SCHEMA = 1
_HASH = re.compile(r"[0-9a-f]{64}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# What the store itself puts beside a tree carries these.
TAKEN = (".incoming", ".replaced")

Files = Mapping[str, Mapping[str, Any]]
"""Path below the model's folder, with / between its parts: {size: bytes, sha256: lower-case hexadecimal}."""


def read(text: str) -> dict[str, Any]:
    """A manifest out of its JSON, with its `files` by path. Raises ValueError saying what is wrong with it."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError("it is no JSON: %s" % error) from error
    if not isinstance(data, dict):
        raise ValueError("it holds no object")
    if data.get("schema") != SCHEMA:
        raise ValueError("it has schema %r, this toolkit knows %d" % (data.get("schema"), SCHEMA))
    if not isinstance(data.get("files"), list) or not data["files"]:
        raise ValueError("it lists no files")
    files: dict[str, dict[str, Any]] = {}
    for entry in data["files"]:
        path, size, sha256 = (entry.get(key) if isinstance(entry, dict) else None for key in ("path", "size", "sha256"))
        if not isinstance(path, str) or not is_inside(path):
            raise ValueError("%r is no path below the model's folder" % (path,))
        if path in files:
            raise ValueError("it lists %s twice" % path)
        if type(size) is not int or size < 0 or not isinstance(sha256, str) or not _HASH.fullmatch(sha256):
            raise ValueError("it gives %s no size or no SHA-256" % path)
        files[path] = {"size": size, "sha256": sha256}
    both = [path for path in files if any(above in files for above in _folders(path))]
    if both:
        raise ValueError("%s lies below a file that it lists too" % both[0])
    return {**data, "files": files}


def is_inside(path: str) -> bool:
    """Whether a path stays below the folder that it is relative to, and is written in one way only."""
    plain = path == posixpath.normpath(path) and not any(ord(each) < 32 for each in path)
    return plain and path not in ("", ".", "..") and not path.startswith(("/", "../"))


def _folders(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: number + 1]) for number in range(len(parts))]


def fingerprint(files: Files) -> str:
    """SHA-256 over paths, sizes and hashes: two manifests with the same one describe the same model."""
    lines = "".join("%s %d %s\n" % (files[path]["sha256"], files[path]["size"], path) for path in sorted(files))
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


def total(files: Files) -> int:
    """Bytes of all files together."""
    return sum(entry["size"] for entry in files.values())


def by_size(files: Files, sizes: Mapping[str, int]) -> dict[str, str]:
    """What can be told without reading: {path: difference in words} of `sizes` (path: bytes) from the manifest."""
    found = {path: "is missing" for path in files if path not in sizes}
    found.update({path: "is not in the manifest" for path in sizes if path not in files})
    for path, size in sizes.items():
        if path in files and size != files[path]["size"]:
            found[path] = "has %d bytes instead of %d" % (size, files[path]["size"])
    return found


def other_content(found: str, wanted: str) -> str | None:
    """The difference between two SHA-256 in words, None when they are the same."""
    return None if found == wanted else "has other content (SHA-256 %s… instead of %s…)" % (found[:12], wanted[:12])
