"""Which models a node gets, from where, and where they lie then: the variables of the role `model_store`, read once."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vllm_node.models import manifest as manifests
from vllm_node.models.manifest import Manifest, ManifestError
from vllm_node.models.shared import shared

Source = Literal["bundle", "path", "control"]
SOURCES: tuple[Source, ...] = ("bundle", "path", "control")
STORE = "/srv/models"


class StoreError(Exception):
    """What is wrong with the models that are asked for, a line each."""


@dataclass(frozen=True)
class Model:
    """One model of a node.

    source: where it comes from; folder: its files there (on the node for `path`, else on the control host); tree: where
    it lies on the node; delivered: whether we bring it there; manifest None: served as it is.
    """

    name: str
    source: Source
    folder: str
    tree: str
    delivered: bool
    manifest: Manifest | None

    def mark(self, state_dir: str) -> str:
        """File on the node that says what of the tree was verified: beside it if it is ours, else among our notes."""
        if self.delivered:
            return posixpath.join(posixpath.dirname(self.tree), f".{self.name}.json")
        return posixpath.join(state_dir, "models", f"{self.name}.json")


def wanted(values: Mapping[str, Any]) -> list[Model]:
    """The models out of a node's variables, with their manifests. Raises StoreError with everything that is wrong."""
    found, problems = [], []
    entries = values.get("model_store_models") or []
    if not isinstance(entries, list | tuple):
        raise StoreError("model_store_models is no list")
    if entries and not str(values.get("model_store_dir") or STORE).startswith("/"):
        raise StoreError(f"model_store_dir is {values['model_store_dir']!r}; give an absolute path")
    for entry in entries:
        try:
            found.append(_model(entry, values))
        except ValueError as error:
            label = entry.get("name") if isinstance(entry, Mapping) else entry
            problems.append(f"model {label}: {error}")
    names = [model.name for model in found]
    problems += [f"model {name} is there twice" for name in sorted(set(names)) if names.count(name) > 1]
    if problems:
        raise StoreError("\n".join(problems))
    return found


def trees(values: Mapping[str, Any]) -> Iterator[str]:
    """Folder of each model that will be delivered, as far as variables that may be wrong can tell."""
    entries = values.get("model_store_models")
    for entry in entries if isinstance(entries, list | tuple) else []:
        if isinstance(entry, Mapping) and _is_delivered(entry, values):
            yield _tree(entry, values)


def _model(entry: Any, values: Mapping[str, Any]) -> Model:
    if not isinstance(entry, Mapping):
        raise ValueError("it is no mapping with name, source and path")
    name, source, path = str(entry.get("name") or ""), entry.get("source"), str(entry.get("path") or "")
    rules = shared("model_manifest")
    if not rules.NAME.fullmatch(name) or name.endswith(rules.TAKEN):
        raise ValueError(
            "the name becomes a folder: letters, digits, dots, dashes and underscores, and none of "
            + ", ".join(rules.TAKEN)
            + " at its end"
        )
    if source not in SOURCES:
        raise ValueError(f"source is {source!r}; it is one of {', '.join(SOURCES)}")
    if not path.startswith("/"):
        raise ValueError(f"path is {path!r}; give an absolute one, such as {{{{ inventory_dir }}}}/../models/{name}")
    delivered = _is_delivered(entry, values)
    folder = posixpath.join(path, "models", name) if source == "bundle" else posixpath.normpath(path)
    return Model(name, source, folder, _tree(entry, values), delivered, _manifest(entry, folder, delivered))


def _manifest(entry: Mapping[str, Any], folder: str, delivered: bool) -> Manifest | None:
    given = entry.get("manifest")
    if not given and entry["source"] == "bundle":
        given = f"{folder}.json"
    if not given:
        if delivered:
            raise ValueError(
                "it has no manifest, by which the node could see that it got what was sent: vllm-node models manifest"
            )
        return None
    try:
        manifest = manifests.read(Path(str(given)))
    except ManifestError as error:
        raise ValueError(str(error)) from error
    if manifest.problems:
        raise ValueError(f"its manifest {given} says that it is not whole: {'; '.join(manifest.problems)}")
    return manifest


def _is_delivered(entry: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    return entry.get("source") != "path" or str(values.get("model_store_copy")).lower() in ("true", "yes", "on", "1")


def _tree(entry: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    if _is_delivered(entry, values):
        return posixpath.join(str(values.get("model_store_dir") or STORE), str(entry.get("name")))
    return posixpath.normpath(str(entry.get("path")))


def fingerprint(path: str, models: object = None, store: str = STORE, copy: bool = False) -> str:
    """A short text for what the manifest of the model at `path` describes; empty where no manifest is known.

    models, store and copy are the role's variables. In a unit's label it restarts the instance when another model takes
    the place of the one that is served.
    """
    try:
        known = wanted({"model_store_models": models, "model_store_dir": store, "model_store_copy": copy})
    except StoreError:
        return ""  # preflight tells what is wrong
    plain = posixpath.normpath(path)
    for model in known:
        if model.manifest and (plain == model.tree or plain.startswith(f"{model.tree}/")):
            return model.manifest.fingerprint[:24]
    return ""


def source_differences(model: Model) -> list[str]:
    """What a folder on the control host lacks, or has in another size: seen before anything is sent, without reading.

    Files that the manifest does not name are no difference: they are not sent.
    """
    assert model.manifest is not None
    try:
        found = shared("model_manifest").by_size(model.manifest.by_path, manifests.sizes(Path(model.folder)))
    except OSError as error:
        return [f"{model.folder} cannot be read: {error.strerror or error}"]
    named = model.manifest.by_path
    return [f"{path} {words}" for path, words in sorted(found.items()) if path in named]
