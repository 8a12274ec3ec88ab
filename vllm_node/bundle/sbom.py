"""`sbom.cdx.json`: what is in a bundle, as CycloneDX 1.6, for those who have to know before it is let in."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Mapping
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from vllm_node.bundle.hashing import FileHash
from vllm_node.bundle.layout import Manifest, Part
from vllm_node.paths import APP

_TYPES: Mapping[str, ComponentType] = {
    "image": ComponentType.CONTAINER,
    "model": ComponentType.MACHINE_LEARNING_MODEL,
    "toolkit": ComponentType.APPLICATION,
}
# Files of the bundle itself; what they hold is told otherwise.
_LEFT_OUT = ("repository", "dashboards")


def text(manifest: Manifest, files: Mapping[tuple[str, str], Mapping[str, FileHash]]) -> str:
    """The document; `files` are those of each part, by its path and name. The same parts give the same text."""
    parts = sorted(manifest.parts, key=lambda part: (part.kind, part.name, part.path))
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{APP}:{manifest.text()}"))
    own = Component(type=ComponentType.APPLICATION, name=APP, version=manifest.toolkit_version, bom_ref="toolkit")
    bom.metadata = BomMetaData(
        component=own, timestamp=datetime.datetime.fromisoformat(manifest.created_at.replace("Z", "+00:00"))
    )
    components = [_component(part, files[part.path, part.name]) for part in parts if part.kind not in _LEFT_OUT]
    for component in components:
        bom.components.add(component)
    bom.register_dependency(own, components)
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def _component(part: Part, files: Mapping[str, FileHash]) -> Component:
    details = part.details
    licence = details.get("licence")
    version = details.get("tag") or details.get("digest") if part.kind == "image" else details.get("version")
    return Component(
        type=_TYPES.get(part.kind, ComponentType.LIBRARY),
        name=part.name,
        version=version,
        bom_ref=f"{part.kind}/{part.path if part.kind == 'wheel' else part.name}",
        purl=_purl(part),
        hashes=_hashes(part, files),
        licenses=[LicenseFactory().make_from_string(licence)] if licence else None,
        properties=[
            Property(name=f"{APP}:origin", value=part.origin),
            Property(name=f"{APP}:path", value=part.path),
            Property(name=f"{APP}:bytes", value=str(part.bytes)),
        ],
        components=[_file(path, part, found) for path, found in files.items()] if part.kind == "model" else None,
    )


def _file(path: str, part: Part, found: FileHash) -> Component:
    return Component(
        type=ComponentType.FILE,
        name=path.removeprefix(f"{part.path}/"),
        bom_ref=path,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=found.sha256)],
    )


def _hashes(part: Part, files: Mapping[str, FileHash]) -> list[HashType]:
    if part.kind == "image":
        content = str(part.details["digest"]).removeprefix("sha256:")
    elif len(files) == 1:
        content = next(iter(files.values())).sha256
    else:
        return []
    return [HashType(alg=HashAlgorithm.SHA_256, content=content)]


def _purl(part: Part) -> PackageURL | None:
    details: Mapping[str, Any] = part.details
    if part.kind == "image":
        repository = str(details.get("source") or details["repository"])
        qualifiers = {"repository_url": repository} | ({"tag": details["tag"]} if details.get("tag") else {})
        return PackageURL("oci", None, repository.rpartition("/")[2].lower(), details["digest"], qualifiers)
    if part.kind == "wheel":
        return PackageURL("pypi", None, part.name, details["version"])
    if part.kind == "rpm":
        return PackageURL("rpm", None, part.name, details["version"], {"arch": details["architecture"]})
    return None
