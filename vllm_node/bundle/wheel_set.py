"""Wheels in a folder: what they are, and whether they suffice to install something without an index.

Formats: wheel file names (PEP 427), core metadata (PEP 566 and later), markers (PEP 508).
"""

from __future__ import annotations

import email.parser
import platform
import sys
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags, sys_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from vllm_node.bundle.layout import BundleError

# glibc of RHEL 9; what is older than manylinux2014 is not built for a Python that this toolkit runs on.
GLIBC = (2, 34)
_OLDEST_GLIBC = (2, 17)
_METADATA_MAX_BYTES = 8 << 20
_UNREADABLE = (OSError, KeyError, zipfile.BadZipFile, InvalidWheelFilename, InvalidRequirement, InvalidSpecifier)


@dataclass(frozen=True)
class Wheel:
    """A wheel, by its name as PyPI compares it. licence: as its author tells it; None where that is not told."""

    path: Path
    name: str
    version: Version
    tags: frozenset[Tag]
    licence: str | None
    requires_python: SpecifierSet
    requires: tuple[Requirement, ...]

    @classmethod
    def read(cls, path: Path) -> Wheel:
        """A wheel from its file name and its metadata. Raises BundleError."""
        try:
            name, version, _build, tags = parse_wheel_filename(path.name)
            said = email.parser.Parser().parsestr(_metadata(path))
            needs = SpecifierSet(said.get("Requires-Python") or "")
            requires = tuple(Requirement(text) for text in said.get_all("Requires-Dist") or ())
        except _UNREADABLE as error:
            raise BundleError(f"{path.name} is no wheel that can be read: {error}") from error
        licence = said.get("License-Expression") or _classified(said.get_all("Classifier") or ()) or said.get("License")
        return cls(path, name, version, tags, _short(licence), needs, requires)


@dataclass(frozen=True)
class Target:
    """A Python that wheels are for: its version, such as `3.12`, and its machine, such as `x86_64`."""

    version: str
    machine: str

    @classmethod
    def running(cls) -> Target:
        """The Python that runs this."""
        return cls(f"{sys.version_info.major}.{sys.version_info.minor}", platform.machine())

    @property
    def platforms(self) -> list[str]:
        """Platforms whose wheels run on RHEL 9 and later, the best one first."""
        newest, oldest = GLIBC[1], _OLDEST_GLIBC[1]
        found = [f"manylinux_2_{minor}_{self.machine}" for minor in range(newest, oldest - 1, -1)]
        return [*found, f"manylinux2014_{self.machine}", f"linux_{self.machine}"]

    @property
    def tags(self) -> frozenset[Tag]:
        """Tags of wheels that it takes."""
        if self == Target.running():
            return frozenset(sys_tags())
        major, minor = (int(word) for word in self.version.split("."))
        version = (major, minor)
        ours = cpython_tags(version, platforms=self.platforms)
        return frozenset([*ours, *compatible_tags(version, f"cp{major}{minor}", self.platforms)])

    @property
    def environment(self) -> dict[str, str]:
        """What markers are held against."""
        found = {str(key): str(value) for key, value in default_environment().items()}
        if self != Target.running():
            found |= {"python_version": self.version, "python_full_version": f"{self.version}.0"}
            found |= {"implementation_version": f"{self.version}.0", "platform_machine": self.machine}
        return found

    def takes(self, wheel: Wheel) -> bool:
        """Whether a wheel can be installed there."""
        own = platform.python_version() if self == Target.running() else f"{self.version}.99"
        return bool(wheel.tags & self.tags) and wheel.requires_python.contains(own, prereleases=True)


def lacking(wheels: Iterable[Wheel], wanted: Iterable[Requirement], target: Target) -> list[Requirement]:
    """Requirements, direct and indirect, that no wheel satisfies on `target`; empty when they suffice."""
    by_name: dict[str, list[Wheel]] = {}
    for wheel in wheels:
        if target.takes(wheel):
            by_name.setdefault(wheel.name, []).append(wheel)
    environment = target.environment
    queue = [(requirement, "") for requirement in wanted]
    done: set[tuple[str, str]] = set()
    missing: dict[str, Requirement] = {}
    while queue:
        requirement, extra = queue.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({**environment, "extra": extra}):
            continue
        if (str(requirement), extra) in done:
            continue
        done.add((str(requirement), extra))
        there = by_name.get(canonicalize_name(requirement.name), [])
        fitting = [wheel for wheel in there if requirement.specifier.contains(wheel.version, prereleases=True)]
        if not fitting:
            missing[str(requirement)] = requirement
            continue
        best = max(fitting, key=lambda wheel: wheel.version)
        for wanted_extra in ("", *requirement.extras):
            queue += [(needed, wanted_extra) for needed in best.requires]
    return list(missing.values())


def _metadata(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1]
        if len(names) != 1 or archive.getinfo(names[0]).file_size > _METADATA_MAX_BYTES:
            raise KeyError("it has no metadata")
        return archive.read(names[0]).decode("utf-8", errors="replace")


def _classified(classifiers: Iterable[str]) -> str | None:
    found = [one.rpartition(" :: ")[2] for one in classifiers if one.startswith("License :: ")]
    return " AND ".join(found) if found and found != ["OSI Approved"] else None


def _short(licence: str | None) -> str | None:
    """Some authors put the whole text there."""
    text = " ".join((licence or "").split())
    return text if text and len(text) <= 100 and text != "UNKNOWN" else None


