"""Is a bundle what its maker made? Every file is read; everything that is wrong is told, not only the first of it.

What is trusted, and in this order: the signature, by the keys that the site allows; the sums, by the signature; the
files, by the sums. The manifest is one of these files: it is believed only where its own sum is right, and then it is
held against what is there, and never the other way round. Nothing here needs a network, and memory does not grow with
the size of the bundle.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_node.bundle import signature, sums
from vllm_node.bundle.contents import IMAGES_OWN, part_files
from vllm_node.bundle.hashing import FileHash, hash_files
from vllm_node.bundle.layout import (
    MANIFEST,
    PARTIAL,
    SBOM,
    SIGNATURE,
    SUMS,
    BundleError,
    Manifest,
    shown,
)
from vllm_node.bundle.reporter import Reporter
from vllm_node.bundle.signature import Signed
from vllm_node.bundle.verify_images import check_images

_OWN = (SUMS, SIGNATURE)
_MANIFEST_MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. kind: `unfinished`, `unreadable`, `sums`, `signature`, `missing`, `extra`, `changed`,
    `special` (a link, a device), `manifest`, `image`; path: in the bundle, empty where it is about all of it."""

    kind: str
    path: str
    text: str

    def line(self) -> str:
        """For people."""
        return f"{self.kind}: {f'{self.path}: ' if self.path else ''}{self.text}"


@dataclass
class Verdict:
    """What was found. files, bytes: that were read."""

    bundle: Path
    signed: Signed = field(default_factory=lambda: Signed("none"))
    allowed: list[str] = field(default_factory=list)
    manifest: Manifest | None = None
    files: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def add(self, kind: str, path: str, text: str) -> None:
        """Something is wrong."""
        self.problems.append(Problem(kind, path, text))

    def document(self) -> dict[str, Any]:
        """The same for machines."""
        signed = {"state": self.signed.state, "key": self.signed.key, "signer": self.signed.signer}
        made = self.manifest
        return {
            "schema": 1,
            "bundle": str(self.bundle),
            "ok": self.ok,
            "created_at": made.created_at if made else None,
            "toolkit_version": made.toolkit_version if made else None,
            "files": self.files,
            "bytes": self.bytes,
            "signature": signed,
            "problems": [{"kind": one.kind, "path": one.path, "text": one.text} for one in self.problems],
        }


def verify(
    bundle: Path, reporter: Reporter, *, allowed_signers: Path | None = None, require_signature: bool = False
) -> Verdict:
    """Look at all of a bundle. Who names allowed signers wants a signature of one of them.

    Raises BundleError when there is nothing to look at: no folder, or no ssh-keygen for a signature.
    """
    if not bundle.is_dir():
        raise BundleError(f"{bundle} is no folder")
    verdict = Verdict(bundle)
    there = dict(_walk(bundle, verdict))
    if SUMS not in there:
        verdict.add("unfinished", SUMS, f"is missing: {_unfinished(bundle)}")
        return verdict
    listed = _read_sums(bundle, verdict)
    _check_signature(bundle, verdict, allowed_signers, required=require_signature or allowed_signers is not None)
    for path in sorted(set(listed) - set(there)):
        if not any(problem.path == path for problem in verdict.problems):
            verdict.add("missing", path, f"{SUMS} names it, and it is not there")
    for path in sorted(set(there) - set(listed) - set(_OWN)):
        if not path.startswith(f"{PARTIAL}/"):
            verdict.add("extra", path, f"{SUMS} does not name it")
    if (bundle / PARTIAL).exists():
        verdict.add("unfinished", PARTIAL, f"is there: {_unfinished(bundle)}")
    found = _hash(bundle, verdict, {path: there[path] for path in listed if path in there}, reporter)
    whole = {path: one for path, one in found.items() if one.sha256 == listed[path]}
    for path in sorted(set(found) - set(whole)):
        verdict.add("changed", path, f"holds {found[path].sha256[:16]}…, {SUMS} says {listed[path][:16]}…")
    _check_manifest(bundle, verdict, listed, whole)
    return verdict


def _unfinished(bundle: Path) -> str:
    if (bundle / PARTIAL).is_dir():
        return "`bundle create` was interrupted here, or is at work; run it again with the same options"
    return "this is no bundle, or it did not arrive whole; bring it again"


def _walk(bundle: Path, verdict: Verdict) -> Iterator[tuple[str, int]]:
    """Paths and sizes of plain files; everything that is neither file nor folder is a problem."""
    folders = [bundle]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    path = Path(entry.path).relative_to(bundle).as_posix()
                    there = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(there.st_mode):
                        folders.append(Path(entry.path))
                    elif stat.S_ISREG(there.st_mode):
                        yield path, there.st_size
                    else:
                        verdict.add("special", path, f"is {_kind(there.st_mode)}; a bundle has plain files only")
        except OSError as error:
            verdict.add("unreadable", folder.relative_to(bundle).as_posix(), str(error.strerror))


def _kind(mode: int) -> str:
    kinds: tuple[tuple[Callable[[int], bool], str], ...] = (
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((word for is_it, word in kinds if is_it(mode)), "a device")


def _read_sums(bundle: Path, verdict: Verdict) -> dict[str, str]:
    try:
        listed, problems = sums.read(bundle / SUMS)
    except OSError as error:
        verdict.add("unreadable", SUMS, str(error))
        return {}
    for text in problems:
        verdict.add("sums", SUMS, text)
    for path in (SUMS, SIGNATURE):
        if listed.pop(path, None) is not None:
            verdict.add("sums", SUMS, f"names {path}, which it cannot vouch for")
    for path in (MANIFEST, SBOM):
        if path not in listed:
            verdict.add("sums", SUMS, f"does not name {path}")
    return listed


def _check_signature(bundle: Path, verdict: Verdict, allowed_signers: Path | None, *, required: bool) -> None:
    try:
        content = sums.read_small(bundle / SUMS, sums.MAX_BYTES)
        verdict.allowed = signature.allowed(allowed_signers) if allowed_signers is not None else []
    except OSError as error:
        verdict.add("unreadable", SUMS, str(error))
        return
    signed = verdict.signed = signature.check(content, bundle / SIGNATURE, allowed_signers)
    expected = f"expected is {' or '.join(verdict.allowed) or 'nobody: the list of allowed signers is empty'}"
    if signed.state == "broken":
        verdict.add("signature", SIGNATURE, f"is not over this {SUMS}: {signed.said}")
    elif signed.state == "untrusted":
        verdict.add("signature", SIGNATURE, f"is by the {signed.key}; {expected}. ssh-keygen says: {signed.said}")
    elif signed.state == "none" and required:
        verdict.add("signature", SIGNATURE, f"is missing; {expected}" if allowed_signers else "is missing")


def _hash(bundle: Path, verdict: Verdict, sizes: dict[str, int], reporter: Reporter) -> dict[str, FileHash]:
    reporter.step("reading every file", sum(sizes.values()))

    def failed(path: Path, error: OSError) -> None:
        name = path.relative_to(bundle).as_posix()
        verdict.add("unreadable", name, error.strerror or str(error))

    paths = [bundle / path for path in sizes]
    found = hash_files(paths, progress=reporter.advance, on_error=failed, follow=False)
    verdict.files, verdict.bytes = len(found), sum(one.bytes for one in found.values())
    return {path.relative_to(bundle).as_posix(): one for path, one in found.items()}


def _check_manifest(bundle: Path, verdict: Verdict, listed: dict[str, str], whole: dict[str, FileHash]) -> None:
    """The manifest against the files, if it is the one that the sums vouch for."""
    if MANIFEST not in whole:
        return
    try:
        manifest = verdict.manifest = Manifest.parse(sums.read_small(bundle / MANIFEST, _MANIFEST_MAX_BYTES))
    except (BundleError, OSError) as error:
        verdict.add("manifest", MANIFEST, str(error))
        return
    names = [(part.kind, part.name, part.path) for part in manifest.parts]
    for twice in sorted({name for name in names if names.count(name) > 1}):
        verdict.add("manifest", MANIFEST, f"names the {twice[0]} {twice[1]} twice")
    owned = {MANIFEST, SBOM}
    for part in manifest.parts:
        if part.kind == "image":
            continue
        files = part_files(bundle, part, listed)
        owned.update(files)
        size = sum(whole[path].bytes for path in files if path in whole)
        if len(files) != part.files or (size != part.bytes and all(path in whole for path in files)):
            told = f"{part.files} files, {part.bytes} bytes; there are {len(files)} files, {size} bytes"
            verdict.add("manifest", MANIFEST, f"says of the {part.kind} {shown(part.name)}: {told}")
    if manifest.images():
        owned.update(IMAGES_OWN)
    for problem in check_images(bundle, manifest.images(), listed, whole, owned):
        verdict.add("image", *problem)
    for path in sorted(set(whole) - owned):
        verdict.add("manifest", MANIFEST, f"knows nothing of {path}")
