"""Makes a bundle: everything that is asked for is looked at first, then fetched, and the sums are written last."""

from __future__ import annotations

import datetime
import importlib.metadata
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.filesize import decimal

from vllm_node.bundle import assets, galaxy, images, models, rpms, sbom, signature, wheels
from vllm_node.bundle.contents import IMAGES_OWN
from vllm_node.bundle.layout import FOLDERS, MANIFEST, SBOM, BundleError, Folder, Manifest
from vllm_node.bundle.reporter import Reporter
from vllm_node.bundle.workspace import Workspace
from vllm_node.images import lockfile
from vllm_node.images.lockfile import Entry, LockError, LockFile
from vllm_node.images.skopeo import Access
from vllm_node.paths import APP

# Wheels, collections and what lies about for a moment: their size is not known before they are there.
_RESERVE_BYTES = 1 << 30


@dataclass(frozen=True)
class Request:
    """What a bundle is to hold.

    folders: kinds that are made now; others stay as they are. pythons: versions such as `3.12` to bring wheels for,
    empty for the running one; toolkit: its own wheel, None to build it from the checkout.
    """

    inventory: tuple[str, ...]
    output: Path
    folders: frozenset[Folder]
    models: Mapping[str, Path] = field(default_factory=dict)
    rpms: Path | None = None
    rpm_names: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    toolkit: Path | None = None
    access: Access = field(default_factory=Access)
    sign_key: Path | None = None
    lock: Path | None = None
    vault_password_file: Path | None = None


@dataclass(frozen=True)
class Made:
    """A bundle that is finished."""

    bundle: Path
    manifest: Manifest
    files: int
    bytes: int
    signed: bool


def create(request: Request, reporter: Reporter) -> Made:
    """Make, finish or renew a bundle. Raises BundleError; what is whole by then stays, and the next call goes on."""
    if request.sign_key is not None:
        signature.check_key(request.sign_key)
    entries = _entries(request) if "images" in request.folders else []
    images.check(entries)
    wanted = models.plan(request.models) if "models" in request.folders else []
    imported: list[Path] = []
    if "dashboards" in request.folders:
        imported = assets.imports(request.inventory, request.vault_password_file)
    try:
        with Workspace(request.output) as work:
            _look_again(work, reporter)
            _check_kept(work, request.folders)
            _fill(work, request, entries, wanted, imported, reporter)
            return _finish(work, request, reporter)
    except OSError as error:
        raise BundleError(f"the bundle cannot be made: {error}. Run create again; it goes on there") from error


def _entries(request: Request) -> Sequence[Entry]:
    try:
        found = LockFile.read(request.lock or lockfile.find(request.inventory)).entries
    except LockError as error:
        raise BundleError(str(error)) from error
    if not found:
        raise BundleError("the image lock holds no image")
    return found


def _look_again(work: Workspace, reporter: Reporter) -> None:
    unsure = work.unsure()
    if unsure:
        reporter.step("looking at what is there", sum(unsure.values()))
        work.look_again(reporter.advance)


def _check_kept(work: Workspace, folders: frozenset[Folder]) -> None:
    """Raises BundleError when something that stays is not whole: only its own kind can make it so."""
    for folder in FOLDERS:
        if folder in folders:
            continue
        broken = [path for path in work.files_of(folder) if work.known(path) is None]
        broken += [path for path in work.orphans(folder) if path not in IMAGES_OWN]
        if broken:
            raise BundleError(
                f"{folder}/ is not whole ({broken[0]}{' and more' if len(broken) > 1 else ''}), and this run is not to "
                f"make it. Ask for it again with the options of the run that did, or remove {work.bundle / folder}"
            )


def _fill(
    work: Workspace,
    request: Request,
    entries: Sequence[Entry],
    wanted: list[models.Model],
    imported: Sequence[Path],
    reporter: Reporter,
) -> None:
    found = rpms.sources(request.rpms, request.rpm_names, work.staging("dnf")) if "rpms" in request.folders else []
    if entries:
        reporter.step("asking what images consist of")
    planned = images.plan(work, entries, request.access)
    _check_space(work, planned, wanted, found)
    if request.folders & {"wheels", "toolkit"}:
        toolkit = wheels.own_wheel(work, request.toolkit)
        if "wheels" in request.folders:
            wheels.fetch(work, toolkit, request.pythons, reporter)
        if "toolkit" in request.folders:
            assets.put_toolkit(work, toolkit, reporter)
    if "collections" in request.folders:
        galaxy.fetch(work, reporter)
    if "dashboards" in request.folders:
        assets.put_dashboards(work, imported, reporter)
    if "rpms" in request.folders:
        rpms.fetch(work, found, reporter)
    if "images" in request.folders:
        work.begin_folder("images")
        images.fetch(work, planned, request.access, reporter)
    if "models" in request.folders:
        models.fetch(work, wanted, reporter)


def _check_space(
    work: Workspace, planned: Sequence[images.Image], wanted: list[models.Model], found: Sequence[Path]
) -> None:
    needed = _RESERVE_BYTES + images.missing_bytes(work, planned) + models.missing_bytes(work, wanted)
    needed += sum(path.stat().st_size for path in found if work.known(f"rpms/{path.name}") is None)
    free = shutil.disk_usage(work.bundle).free
    if needed > free:
        raise BundleError(
            f"{work.bundle} needs {decimal(needed)} more, and its file system has {decimal(free)}; make room, or name "
            "another place with --output"
        )


def _finish(work: Workspace, request: Request, reporter: Reporter) -> Made:
    reporter.step("sums")
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    parts = tuple(work.parts)
    if not parts:
        raise BundleError("nothing is to go into the bundle; look at --only and --no-images")
    manifest = Manifest(now.isoformat().replace("+00:00", "Z"), importlib.metadata.version(APP), parts)
    files = {(part.path, part.name): work.part_files(part) for part in parts}
    own = {MANIFEST: manifest.text().encode(), SBOM: sbom.text(manifest, files).encode()}
    if manifest.images():
        own |= images.own_files(manifest.images(), work.bundle)
    sign = partial(signature.sign, key=request.sign_key) if request.sign_key is not None else None
    sums = work.finish(own, sign)
    size = sum((work.bundle / path).stat().st_size for path in sums)
    return Made(work.bundle, manifest, len(sums), size, sign is not None)
