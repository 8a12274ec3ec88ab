"""Ansible collections as tarballs, made from those that are installed here.

Galaxy is not asked: on the connected side too it is one more service that may be out of reach, and the collections that
the toolkit was tested with are the ones beside it. The PyPI package `ansible` leaves out their tests and papers; such a
collection gets a list of files that says what there is, because `ansible-galaxy` refuses one that lacks a file.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_node.bundle.hashing import sha256_file
from vllm_node.bundle.layout import BundleError, Part
from vllm_node.bundle.reporter import Reporter
from vllm_node.bundle.workspace import Workspace

WANTED = ("ansible.posix", "community.general")


@dataclass(frozen=True)
class _Collection:
    """An installed collection: what its two lists say, and which of the files they name are there."""

    folder: Path
    manifest: dict[str, Any]
    files: list[dict[str, Any]]
    missing: int

    @property
    def version(self) -> str:
        return str(self.manifest["collection_info"]["version"])


def fetch(work: Workspace, reporter: Reporter, wanted: Sequence[str] = WANTED) -> None:
    """Put the collections into the bundle. Raises BundleError: one is not installed, or was changed."""
    reporter.step("collections")
    work.begin_folder("collections")
    places = _installed()
    for name in wanted:
        if name not in places:
            raise BundleError(f"the collection {name} is not installed here; `pip install ansible` brings it")
        found = _read(places[name], name)
        content = _tarball(found)
        path = f"collections/{name.replace('.', '-')}-{found.version}.tar.gz"
        work.put(path, content)
        details: dict[str, Any] = {"version": found.version}
        licences = found.manifest["collection_info"].get("license") or []
        if licences:
            details["licence"] = " AND ".join(map(str, licences))
        work.finish_part(Part("collection", name, path, 1, len(content), _origin(found), details), [path])


def _installed() -> dict[str, Path]:
    """Folders of collections as Ansible finds them here."""
    command = [sys.executable, "-m", "ansible.cli.galaxy", "collection", "list", "--format", "json"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    try:
        listed: Mapping[str, Mapping[str, Any]] = json.loads(done.stdout)
    except ValueError as error:
        raise BundleError(f"ansible-galaxy does not list collections: {done.stderr.strip()[-300:]}") from error
    found: dict[str, Path] = {}
    for root, names in listed.items():
        for name in names:
            found.setdefault(name, Path(root) / name.replace(".", "/"))
    return found


def _read(folder: Path, name: str) -> _Collection:
    try:
        manifest = json.loads((folder / "MANIFEST.json").read_text())
        listed = json.loads((folder / "FILES.json").read_text())["files"]
        there = [entry for entry in listed if entry["name"] == "." or (folder / entry["name"]).exists()]
        for entry in there:
            if entry["ftype"] == "file" and sha256_file(folder / entry["name"])[0] != entry["chksum_sha256"]:
                raise BundleError(f"{folder / entry['name']} was changed since {name} was packed; install it anew")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(f"the collection {name} in {folder} cannot be read: {error}") from error
    return _Collection(folder, manifest, there, len(listed) - len(there))


def _tarball(found: _Collection) -> bytes:
    """The same collection gives the same bytes."""
    manifest = found.manifest
    listing = (found.folder / "FILES.json").read_bytes()
    if found.missing:
        listing = json.dumps({"files": found.files, "format": 1}, indent=1).encode()
        entry = {**manifest["file_manifest_file"], "chksum_sha256": hashlib.sha256(listing).hexdigest()}
        manifest = {**manifest, "file_manifest_file": entry}
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        _add(archive, "MANIFEST.json", json.dumps(manifest, indent=1).encode())
        _add(archive, "FILES.json", listing)
        for one in sorted(found.files, key=lambda entry: str(entry["name"])):
            path = found.folder / one["name"]
            if one["ftype"] == "dir" and one["name"] != ".":
                inner = tarfile.TarInfo(one["name"])
                inner.type, inner.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(inner)
            elif one["ftype"] == "file":
                _add(archive, one["name"], path.read_bytes(), path.stat().st_mode & 0o111)
    return packed.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, executable: int = 0) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o755 if executable else 0o644
    archive.addfile(entry, io.BytesIO(content))


def _origin(found: _Collection) -> str:
    if not found.missing:
        return "packed from the collection that is installed here"
    try:
        package = f"the package ansible {importlib.metadata.version('ansible')}"
    except importlib.metadata.PackageNotFoundError:
        package = "what is installed here"
    return f"packed from {package}, which leaves out {found.missing} of its files (tests and papers)"
