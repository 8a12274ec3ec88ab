"""Wheels of this toolkit and of all it needs, such that pip on the other side needs no index.

pip does the work, with whatever index it is configured for. What it has brought is then held against the metadata of
the wheels themselves: for another Python than the running one, pip chooses by the markers of the running one, and
leaves out what only the other needs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from vllm_node.bundle.hashing import hash_files
from vllm_node.bundle.layout import BundleError, Part
from vllm_node.bundle.reporter import Reporter
from vllm_node.bundle.wheel_set import Target, Wheel, lacking
from vllm_node.bundle.workspace import Workspace
from vllm_node.paths import APP, project_root

_ROUNDS = 5
_LAST_LINES = 12


@dataclass(frozen=True)
class Toolkit:
    """The toolkit's own wheel, and where it came from in words."""

    wheel: Wheel
    sha256: str
    origin: str


def own_wheel(work: Workspace, given: Path | None) -> Toolkit:
    """The wheel that was given, or one that is built from the checkout that runs this. Raises BundleError."""
    if given is not None:
        path, origin = given, f"given as {given.name}"
    else:
        path, origin = _build(work.staging("toolkit")), f"built from a checkout{_commit(project_root())}"
    wheel = Wheel.read(path)
    if wheel.name != APP:
        raise BundleError(f"{path.name} is the wheel of {wheel.name}, not of {APP}")
    return Toolkit(wheel, hash_files([path])[path].sha256, origin)


def fetch(work: Workspace, toolkit: Toolkit, pythons: Sequence[str], reporter: Reporter) -> None:
    """Bring the wheels for some versions of Python, or for the running one, into the bundle. Raises BundleError."""
    targets = [Target(version, Target.running().machine) for version in pythons] or [Target.running()]
    asked: dict[str, Any] = {"toolkit_sha256": toolkit.sha256, "pythons": [target.version for target in targets]}
    if _is_there(work, asked):
        reporter.note("wheels: there already")
        return
    work.begin_folder("wheels")
    reporter.step("wheels")
    stage = work.staging("wheels")
    stage.mkdir()
    shutil.copy(toolkit.wheel.path, stage)
    for target in targets:
        _fetch_for(target, toolkit, stage, exact=not pythons)
    found = hash_files(sorted(stage.iterdir()))
    for path, content in found.items():
        wheel = Wheel.read(path)
        place = f"wheels/{path.name}"
        work.adopt(path, place, content)
        details: dict[str, Any] = {"version": str(wheel.version)}
        if wheel.licence:
            details["licence"] = wheel.licence
        own = wheel.name == APP
        if own:
            details |= asked
        part = Part("wheel", wheel.name, place, 1, content.bytes, toolkit.origin if own else "index of pip", details)
        work.finish_part(part, [place])


def _is_there(work: Workspace, asked: Mapping[str, Any]) -> bool:
    """Whether the wheels for what is asked are there, every one."""
    wheels = [part for part in work.parts if part.kind == "wheel"]
    own = [part for part in wheels if part.name == APP]
    if not own or any(own[0].details.get(key) != value for key, value in asked.items()):
        return False
    return all(work.known(part.path) is not None for part in wheels)


def _build(stage: Path) -> Path:
    root = project_root()
    if not (root / "pyproject.toml").is_file():
        raise BundleError(
            f"this {APP} was not started from a checkout, so its wheel cannot be built; give the one that it was "
            "installed from with --toolkit FILE"
        )
    _pip([], ["wheel", "--no-deps", "--wheel-dir", str(stage), str(root)], f"the wheel of {APP} cannot be built")
    return next(stage.glob("*.whl"))


def _fetch_for(target: Target, toolkit: Toolkit, stage: Path, *, exact: bool) -> None:
    wanted: list[str] = [str(toolkit.wheel.path)]
    for _round in range(_ROUNDS):
        failed = f"the wheels for Python {target.version} cannot be had"
        if exact:
            # What has no wheel is made into one here: it is for this Python on this machine.
            _pip([], ["wheel", "--wheel-dir", str(stage), *_links(stage), *wanted], failed)
        else:
            _download(target, stage, wanted, failed)
        wheels = [Wheel.read(path) for path in sorted(stage.glob("*.whl"))]
        missing = lacking(wheels, [Requirement(f"{APP}=={toolkit.wheel.version}")], target)
        if not missing:
            return
        wanted = [f"{one.name}{one.specifier}" for one in missing]
    raise BundleError(
        f"pip brings nothing that Python {target.version} on {target.machine} takes for: {', '.join(wanted)}. "
        "Look whether the index has a wheel for it"
    )


def _download(target: Target, stage: Path, wanted: Sequence[str], failed: str) -> None:
    words = ["download", "--only-binary=:all:", "--dest", str(stage), *_links(stage)]
    words += [f"--platform={platform}" for platform in target.platforms]
    python = _interpreter(target.version)
    if python is not None:
        # Its own interpreter knows its markers.
        _pip(["--python", python], [*words, *wanted], failed)
    else:
        _pip([], [*words, f"--python-version={target.version}", "--implementation=cp", *wanted], failed)


def _interpreter(version: str) -> str | None:
    """Path of a Python of that version on this machine. A name on the PATH may be a shim with nothing behind it."""
    show = "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)"
    try:
        command = [f"python{version}", "-c", show]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    except OSError:
        return None
    found, _space, path = done.stdout.strip().partition(" ")
    return path if done.returncode == 0 and found == version and path else None


def _links(stage: Path) -> list[str]:
    return ["--find-links", str(stage)]


def _pip(options: Sequence[str], words: Sequence[str], failed: str) -> None:
    command = [sys.executable, "-m", "pip", *options, *words]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off"}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace"
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise BundleError("\n".join([f"{failed}; pip says:", *(f"  {line}" for line in said[-_LAST_LINES:])]))


def _commit(root: Path) -> str:
    """` at COMMIT`, with a word when files differ from it; empty where there is no git."""
    try:
        words = ["git", "-C", str(root), "describe", "--always", "--dirty=, with changes", "--abbrev=12"]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f" at {done.stdout.strip()}"
