"""RPMs for nodes that have no repository: from a folder, or by dnf; as a repository where createrepo_c is at hand.

Nodes install with gpgcheck on. So an RPM without a signature is told here, where it can still be replaced, and public
keys (`RPM-GPG-KEY*`) beside the RPMs travel with them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rpmfile

from vllm_node.bundle.hashing import Progress, each_file
from vllm_node.bundle.layout import BundleError, Part
from vllm_node.bundle.reporter import Reporter
from vllm_node.bundle.workspace import Workspace

_SIGNATURES = ("rsaheader", "signature", "pgp", "pgp5", "gpg")
_LAST_LINES = 12


def sources(folder: Path | None, names: Sequence[str], stage: Path) -> list[Path]:
    """RPMs and public keys to take: those of a folder, and what dnf brings for `names`. Raises BundleError."""
    found = []
    if folder is not None:
        found = sorted([*folder.glob("*.rpm"), *folder.glob("RPM-GPG-KEY*")])
        if not any(path.suffix == ".rpm" for path in found):
            raise BundleError(f"--rpms {folder}: there is no *.rpm in it")
    if names:
        found += _download(names, stage)
    twice = sorted({path.name for path in found if sum(other.name == path.name for other in found) > 1})
    if twice:
        raise BundleError(f"several RPMs are called {', '.join(twice)}; leave them out of --rpms or of --rpm")
    return found


def fetch(work: Workspace, found: Sequence[Path], reporter: Reporter) -> None:
    """Copy the RPMs into the bundle and make a repository of them. Raises BundleError, and OSError."""
    work.begin_folder("rpms")
    reporter.step("RPMs", sum(path.stat().st_size for path in found))

    def copy(path: Path, block: bytearray, told: Progress) -> None:
        work.copy(path, f"rpms/{path.name}", block, told)

    each_file(found, copy, lambda path: path.stat().st_size, progress=reporter.advance)
    unsigned = []
    for path in found:
        if path.suffix == ".rpm":
            part = _part(work, path)
            work.finish_part(part, [part.path])
            if not part.details["signed"]:
                unsigned.append(path.name)
    if unsigned:
        reporter.note(f"RPMs without a signature, which nodes refuse (gpgcheck): {', '.join(unsigned)}")
    _repository(work, [path.name for path in found], reporter)


def _download(names: Sequence[str], stage: Path) -> list[Path]:
    if shutil.which("dnf") is None:
        raise BundleError("--rpm needs dnf, which is not here; download them where it is, and give --rpms FOLDER")
    stage.mkdir()
    command = ["dnf", "download", "--resolve", "--alldeps", "--assumeyes", f"--destdir={stage}", *names]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        said = [f"  {line}" for line in done.stderr.splitlines() if line.strip()]
        raise BundleError("\n".join([f"dnf does not bring {', '.join(names)}; it says:", *said[-_LAST_LINES:]]))
    return sorted(stage.glob("*.rpm"))


def _part(work: Workspace, source: Path) -> Part:
    path = f"rpms/{source.name}"
    try:
        with rpmfile.open(str(work.bundle / path)) as rpm:
            headers: dict[str, Any] = dict(rpm.headers)
        name, version, release, architecture = (_text(headers[key]) for key in ("name", "version", "release", "arch"))
    except Exception as error:  # whatever a parser says of bytes that are something else
        raise BundleError(f"{source} is no RPM that can be read: {error!r}") from error
    details: dict[str, Any] = {
        "version": f"{version}-{release}",
        "architecture": architecture,
        "signed": any(headers.get(key) for key in _SIGNATURES),
    }
    if headers.get("copyright"):
        details["licence"] = _text(headers["copyright"])
    return Part("rpm", name, path, 1, work.whole(path).bytes, f"copied from {source.name}", details)


def _repository(work: Workspace, names: Sequence[str], reporter: Reporter) -> None:
    """`repodata/` over the RPMs, and the keys; without createrepo_c the RPMs travel as plain files."""
    paths = [f"rpms/{name}" for name in names if not name.endswith(".rpm")]
    program = _createrepo()
    if program is None:
        reporter.note(
            "there is no createrepo_c here: rpms/ is no repository yet. Install it (`dnf install createrepo_c`, "
            "`pip install createrepo-c`) and run create again, or make one on the other side"
        )
    else:
        paths += _repodata(work, names, program)
    if paths:
        size = sum(work.whole(path).bytes for path in paths)
        work.finish_part(Part("repository", "rpms", "rpms", len(paths), size, "made by createrepo_c", {}), paths)


def _repodata(work: Workspace, names: Sequence[str], program: str) -> list[str]:
    # Over links to the RPMs: what is written beside them is not theirs until it is whole.
    stage = work.staging("repository")
    stage.mkdir()
    for name in names:
        if name.endswith(".rpm"):
            (stage / name).symlink_to(work.bundle / "rpms" / name)
    # The same RPMs give the same files: the time of the run does not go in.
    options = ["--quiet", "--revision=1", "--set-timestamp-to-revision", "--general-compress-type=gz"]
    done = subprocess.run([program, *options, str(stage)], capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode != 0:
        raise BundleError(f"createrepo_c failed: {done.stderr.strip()[-300:]}")
    paths = []
    for path in sorted((stage / "repodata").iterdir()):
        paths.append(f"rpms/repodata/{path.name}")
        work.put(paths[-1], path.read_bytes())
    return paths


def _createrepo() -> str | None:
    """The program on the PATH, or the one of the package of that name beside this Python."""
    own = Path(sys.executable).with_name("createrepo_c")
    return shutil.which("createrepo_c") or (str(own) if own.is_file() else None)


def _text(value: object) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
