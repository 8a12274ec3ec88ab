"""Models that will be brought to the node: judged by their manifests, since their folders are not there yet, or old."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_node.models.manifest import Manifest
from vllm_node.preflight.reading import Snapshot, rows, text
from vllm_node.preflight.wanted import Wanted


def as_delivered(snapshot: Snapshot, wanted: Wanted) -> Snapshot:
    """The snapshot, with each model that will be brought as it will be then."""
    if not wanted.deliveries:
        return snapshot
    return {**snapshot, "models": [_row(row, wanted.deliveries) for row in rows(snapshot, "models")]}


def _row(row: Mapping[str, Any], deliveries: Mapping[str, Manifest | None]) -> Mapping[str, Any]:
    path = text(row, "path") or ""
    for tree, manifest in deliveries.items():
        if path == tree or path.startswith(f"{tree}/"):
            return {**row, **_facts(manifest, path[len(tree) + 1 :])}
    return row


def _facts(manifest: Manifest | None, inside: str) -> dict[str, Any]:
    """What is known of the model, or of the part of it that an instance names."""
    known: dict[str, Any] = {"exists": True, "problems": []}
    if manifest is None:
        return known  # its own finding tells why
    files = [file for file in manifest.files if not inside or file.path == inside or file.path.startswith(f"{inside}/")]
    known.update(exists=bool(files), bytes=sum(file.size for file in files))
    if not inside:
        paths = {file.path for file in manifest.files}
        known.update(
            architectures=list(manifest.architectures),
            auto_map=bool(manifest.own_code),
            auto_map_missing=[file for file in manifest.own_code if file not in paths],
            vocabulary_files=list(manifest.vocabulary_files),
        )
    return known
