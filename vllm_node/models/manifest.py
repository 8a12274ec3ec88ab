"""Make the manifest of a model's folder, and compare a folder with one."""

from __future__ import annotations

import datetime
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vllm_node.bundle.hashing import Progress, hash_files
from vllm_node.models.shared import shared

SCHEMA = 1
# tiktoken's names; gpt-oss asks for them at its first request.
_GPT_OSS_VOCABULARIES = ("o200k_base.tiktoken", "cl100k_base.tiktoken")
# More problems than any model has files.
_ALL = 1_000_000


class ManifestError(Exception):
    """A manifest cannot be read, or a folder cannot be described. The text names it and says why."""


@dataclass(frozen=True)
class File:
    """One file: its path below the model's folder with / between the parts, its size in bytes, its SHA-256."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a model is. `problems` are reasons not to serve it; `left_out` are paths that do not belong to it.

    own_code: Python files that `auto_map` names; vocabulary_files: tiktoken vocabularies in the folder.
    """

    name: str
    files: tuple[File, ...]
    architectures: tuple[str, ...] = ()
    own_code: tuple[str, ...] = ()
    vocabulary_files: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    left_out: Mapping[str, str] | None = None
    made_at: str = ""
    tool: str = ""

    @property
    def total_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)

    @property
    def by_path(self) -> dict[str, dict[str, Any]]:
        """Files as nodes take them: {path: {size, sha256}}."""
        return {file.path: {"size": file.size, "sha256": file.sha256} for file in self.files}

    @property
    def fingerprint(self) -> str:
        """SHA-256 over paths, sizes and hashes: the same for the same model, whenever and wherever it was described."""
        return str(shared("model_manifest").fingerprint(self.by_path))

    def document(self) -> dict[str, Any]:
        """The manifest as it is written."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "total_bytes": self.total_bytes,
            "architectures": list(self.architectures),
            "own_code": list(self.own_code),
            "vocabulary_files": list(self.vocabulary_files),
            "problems": list(self.problems),
            "left_out": [{"path": path, "why": why} for path, why in sorted((self.left_out or {}).items())],
            "made_at": self.made_at,
            "tool": self.tool,
            "files": [asdict(file) for file in self.files],
        }

    def text(self) -> str:
        """JSON, with a line a file, so that two manifests can be compared by eye."""
        document = self.document()
        files = ",\n  ".join(json.dumps(file) for file in document.pop("files"))
        return f'{json.dumps(document, indent=1)[:-2]},\n "files": [\n  {files}\n ]\n}}\n'


@dataclass(frozen=True)
class Difference:
    """One file of a folder that is not what the manifest says, in words that follow its path."""

    path: str
    seen: str

    def __str__(self) -> str:
        """For a person."""
        return f"{self.path} {self.seen}"


def sizes(folder: Path) -> dict[str, int]:
    """Size in bytes of each file of the model in `folder`. Raises OSError for a folder that cannot be read."""
    return {path: status.st_size for path, status in shared("snapshot_tree").walk(str(folder)).files.items()}


def make(folder: Path, workers: int | None = None, progress: Progress | None = None) -> Manifest:
    """Describe the model in `folder`, reading every byte of it with all cores.

    Raises:
        ManifestError: a file cannot be read, was written to meanwhile, or there is none at all.
    """
    try:
        tree = shared("snapshot_tree").walk(str(folder))
        paths = {path: folder / path for path in sorted(tree.files)}
        hashes = hash_files(paths.values(), workers, progress)
    except OSError as error:
        raise ManifestError(f"{folder} cannot be described: {error}") from error
    if not paths:
        raise ManifestError(f"{folder} holds no files of a model")
    found = shared("snapshot_model").inspect(folder.name, str(folder), _ALL)
    return Manifest(
        name=folder.absolute().name,
        files=tuple(File(path, hashes[place].bytes, hashes[place].sha256) for path, place in paths.items()),
        architectures=tuple(found["architectures"]),
        own_code=tuple(found["own_code"]),
        vocabulary_files=tuple(found["vocabulary_files"]),
        problems=problems_of(found, tree.broken),
        left_out=tree.left_out,
        made_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        tool=f"vllm-node {version('vllm-node')}",
    )


def problems_of(found: Mapping[str, Any], broken: Sequence[str]) -> tuple[str, ...]:
    """What keeps a model from being served offline. found: as `snapshot_model.inspect` gives it; broken: dead links."""
    problems = [str(each) for each in found["problems"]]
    problems += [f"{path} is a link that leads nowhere" for path in broken]
    problems += [
        f"{path} is named by auto_map and missing: offline nobody can fetch it" for path in found["auto_map_missing"]
    ]
    if any(name.startswith("GptOss") for name in found["architectures"]):
        there = {path.rpartition("/")[2] for path in found["vocabulary_files"]}
        problems += [
            f"{name} is missing: gpt-oss fetches it from the internet at its first request"
            for name in _GPT_OSS_VOCABULARIES
            if name not in there
        ]
    return tuple(problems)


def read(path: Path) -> Manifest:
    """A manifest out of its file.

    Raises:
        ManifestError: it cannot be read or is none.
    """
    try:
        data = shared("model_manifest").read(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ManifestError(f"the manifest {path} cannot be used: {error}") from error
    return Manifest(
        name=str(data.get("name", "")),
        files=tuple(File(each, entry["size"], entry["sha256"]) for each, entry in data["files"].items()),
        architectures=_texts(data, "architectures"),
        own_code=_texts(data, "own_code"),
        vocabulary_files=_texts(data, "vocabulary_files"),
        problems=_texts(data, "problems"),
        made_at=str(data.get("made_at", "")),
        tool=str(data.get("tool", "")),
    )


def _texts(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = data.get(key)
    return tuple(str(each) for each in found) if isinstance(found, list) else ()


def compare(
    manifest: Manifest, folder: Path, workers: int | None = None, progress: Progress | None = None
) -> list[Difference]:
    """Every difference of `folder` from the manifest, by path. Files of another size are not read.

    Raises:
        ManifestError: the folder or a file in it cannot be read.
    """
    rules, wanted = shared("model_manifest"), manifest.by_path
    try:
        tree = shared("snapshot_tree").walk(str(folder))
        found = rules.by_size(wanted, {path: status.st_size for path, status in tree.files.items()})
        same = [path for path in tree.files if path not in found]
        hashes = hash_files([folder / path for path in same], workers, progress)
    except OSError as error:
        raise ManifestError(f"{folder} cannot be compared: {error}") from error
    for path in same:
        words = rules.other_content(hashes[folder / path].sha256, wanted[path]["sha256"])
        found.update({path: words} if words else {})
    return [Difference(path, found[path]) for path in sorted(found)]


def write(manifest: Manifest, path: Path) -> None:
    """Write the manifest; the file appears whole or not at all. Raises ManifestError when that is not possible."""
    try:
        handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                os.fchmod(stream.fileno(), 0o644)
                stream.write(manifest.text())
                stream.flush()
                os.fsync(stream.fileno())
            Path(draft).replace(path)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ManifestError(f"the manifest cannot be written to {path}: {error.strerror or error}") from error
