"""Models on their way into a bundle: judged before, plain files, hashed while they are copied, several at a time.

Beside each lies its manifest, `models/NAME.json`, by which nodes prove later that they serve what was meant. It costs
no further read: the hashes are those of the copies.
"""

from __future__ import annotations

import datetime
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_node.bundle.hashing import Progress, each_file
from vllm_node.bundle.layout import BundleError, Part, safe_path
from vllm_node.bundle.reporter import Reporter
from vllm_node.bundle.workspace import Workspace
from vllm_node.models import manifest as manifests
from vllm_node.models.shared import shared
from vllm_node.paths import APP

_MOST_TOLD = 20


@dataclass(frozen=True)
class Model:
    """A model to copy. files: path inside of it, to the file itself and its size in bytes; links are followed.

    described: its manifest as far as it can be told without reading files; left_out: what is no part of the model.
    """

    name: str
    source: Path
    files: Mapping[str, tuple[Path, int]]
    described: manifests.Manifest
    left_out: Mapping[str, str]

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(size for _path, size in self.files.values())


def plan(models: Mapping[str, Path]) -> list[Model]:
    """What each model, given as `{name: folder}`, consists of. Raises BundleError with all that is wrong."""
    found, problems = [], []
    for name, source in models.items():
        try:
            found.append(_look_at(name, source.absolute()))
            problems += [f"  {name} ({source}): {problem}" for problem in found[-1].described.problems[:_MOST_TOLD]]
        except (OSError, ValueError) as error:
            problems.append(f"  {name} ({source}): {error}")
    if problems:
        raise BundleError("these models cannot be taken:\n" + "\n".join(problems))
    return found


def missing_bytes(work: Workspace, models: list[Model]) -> int:
    """Size of the files that are not in the bundle yet."""
    return sum(
        size
        for model in models
        for name, (_path, size) in model.files.items()
        if (known := work.known(f"models/{model.name}/{name}")) is None or known.bytes != size
    )


def fetch(work: Workspace, models: list[Model], reporter: Reporter) -> None:
    """Copy the models into the bundle. Raises OSError; what is whole stays."""
    work.begin_folder("models")
    for model in models:
        for path, why in sorted(model.left_out.items()):
            reporter.note(f"model {model.name}: {path} is left out: {why}")
        reporter.step(f"model {model.name}", model.bytes)
        folder = f"models/{model.name}"

        def copy(item: tuple[str, tuple[Path, int]], block: bytearray, told: Progress, folder: str = folder) -> None:
            work.copy(item[1][0], f"{folder}/{item[0]}", block, told)

        each_file(list(model.files.items()), copy, lambda item: item[1][1], progress=reporter.advance)
        _finish(work, model, folder)


def _finish(work: Workspace, model: Model, folder: str) -> None:
    hashes = {name: work.whole(f"{folder}/{name}") for name in sorted(model.files)}
    text = manifests.Manifest(
        name=model.name,
        files=tuple(manifests.File(name, one.bytes, one.sha256) for name, one in hashes.items()),
        architectures=model.described.architectures,
        own_code=model.described.own_code,
        vocabulary_files=model.described.vocabulary_files,
        left_out=model.left_out,
        made_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        tool=f"{APP} {importlib.metadata.version(APP)}",
    ).text()
    work.put(f"{folder}.json", text.encode())
    paths = [f"{folder}.json", *(f"{folder}/{name}" for name in hashes)]
    size = sum(one.bytes for one in hashes.values()) + len(text.encode())
    origin = f"copied from a folder named {model.source.name}"
    work.finish_part(Part("model", model.name, folder, len(paths), size, origin), paths)


def _look_at(name: str, source: Path) -> Model:
    rules = shared("model_manifest")
    if not rules.NAME.fullmatch(name) or name.endswith((*rules.TAKEN, ".json")):
        raise ValueError("the name becomes a folder: letters, digits and . _ - (not in front, no .json at the end)")
    if not source.is_dir():
        raise ValueError("it is no folder")
    tree = shared("snapshot_tree").walk(str(source))
    for inner in tree.files:
        safe_path(inner)
    if not tree.files:
        raise ValueError("it holds no files of a model")
    found = shared("snapshot_model").inspect(name, str(source), _MOST_TOLD)
    described = manifests.Manifest(
        name=name,
        files=(),
        architectures=tuple(found["architectures"]),
        own_code=tuple(found["own_code"]),
        vocabulary_files=tuple(found["vocabulary_files"]),
        problems=manifests.problems_of(found, tree.broken),
    )
    files = {inner: ((source / inner).resolve(), status.st_size) for inner, status in tree.files.items()}
    return Model(name, source, files, described, tree.left_out)
