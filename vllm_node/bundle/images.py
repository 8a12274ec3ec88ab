"""Images on their way into a bundle: every platform, digests unchanged, into one OCI layout.

What an image consists of is read from its manifests first: so its size is known before anything is fetched, and so is
which blobs are still missing. skopeo fetches; every blob is then hashed here before it counts.

skopeo writes manifests under their final names, and leaves what it was fetching in the layout when it is killed. So
it is given a layout of its own below `.partial/`, which shares only the folder of blobs; and before a run begins, blobs
that nobody has vouched for are hashed, because skopeo takes what has the name of a blob for the blob.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from vllm_node.bundle import oci
from vllm_node.bundle.contents import image_files
from vllm_node.bundle.hashing import FileHash, hash_files
from vllm_node.bundle.layout import BundleError, Part, safe_name, shown
from vllm_node.bundle.oci import Closure, ImageError
from vllm_node.bundle.reporter import Reporter
from vllm_node.bundle.workspace import Workspace
from vllm_node.images import manifest, skopeo
from vllm_node.images.lockfile import Entry
from vllm_node.images.manifest import DIGEST, ManifestError
from vllm_node.images.resolve import is_placeholder
from vllm_node.images.skopeo import Access, SkopeoError

_AT_ONCE = 8
_POLL_S = 0.5


@dataclass(frozen=True)
class Image:
    """An image to fetch: its entry in the lock, what it consists of, and its manifests as they are (digest: bytes)."""

    entry: Entry
    closure: Closure
    manifests: dict[str, bytes]

    @property
    def reference(self) -> str:
        """Where it comes from, as skopeo has it."""
        return _docker(self.entry, str(self.entry.digest))

    @property
    def platform_digest(self) -> str:
        """The manifest that a node takes. Raises ImageError, and ManifestError: there is none of the kind."""
        locked = self.entry.platform_digest
        if locked is not None:
            if locked not in self.closure.manifests:
                raise ImageError(f"it has no manifest {locked}, which the lock names; run `vllm-node images lock`")
            return locked
        top = manifest.parse(self.manifests[str(self.entry.digest)])
        return top.pick(str(self.entry.architecture)) if isinstance(top, manifest.Index) else str(self.entry.digest)

    def part(self) -> Part:
        """The image in the manifest."""
        keys = ("source", "repository", "tag", "digest", "architecture")
        details = {key: getattr(self.entry, key) for key in keys if getattr(self.entry, key)}
        details["platform_digest"] = self.platform_digest
        origin = f"copied from {self.reference.removeprefix(skopeo.DOCKER)}"
        return Part("image", self.entry.name, "images", len(self.closure.sizes), self.closure.bytes, origin, details)


def check(entries: Sequence[Entry]) -> None:
    """Raises BundleError, with all that is wrong in the lock, before anybody is asked."""
    wrong = [f"  {entry.name}: {problem}" for entry in entries if (problem := _wrong(entry)) is not None]
    if wrong:
        raise BundleError("these images of the lock cannot be fetched:\n" + "\n".join(wrong))


def plan(work: Workspace, entries: Sequence[Entry], access: Access) -> list[Image]:
    """What each image consists of: from the bundle where it is there, else from its registry.

    Raises BundleError with all images that cannot be had.
    """
    problems: list[str] = []

    def one(entry: Entry) -> Image | None:
        manifests: dict[str, bytes] = {}

        def read(digest: str) -> bytes:
            raw = _own_manifest(work, digest)
            manifests[digest] = skopeo.raw_manifest(_docker(entry, digest), access) if raw is None else raw
            return manifests[digest]

        try:
            image = Image(entry, oci.closure(read, str(entry.digest)), manifests)
            _ = image.platform_digest
        except (ImageError, ManifestError, SkopeoError) as error:
            problems.append(f"  {entry.name}: {error}")
            return None
        return image

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            found = list(pool.map(one, entries))
        except BaseException:
            # An interruption does not wait for registries.
            pool.shutdown(wait=False, cancel_futures=True)
            skopeo.stop()
            raise
    if problems:
        raise BundleError("these images cannot be had:\n" + "\n".join(sorted(problems)))
    return [image for image in found if image is not None]


def missing_bytes(work: Workspace, images: Sequence[Image]) -> int:
    """Size of what is to be fetched, shared blobs once."""
    sizes = {digest: size for image in images for digest, size in image.closure.sizes.items()}
    return sum(size for digest, size in sizes.items() if not _is_whole(work, digest, size))


def fetch(work: Workspace, images: Sequence[Image], access: Access, reporter: Reporter) -> None:
    """Bring the images into the bundle, one after the other: skopeo itself fetches several layers at once.

    Raises BundleError; what was fetched stays.
    """
    blobs = work.bundle / "images/blobs/sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    _sweep(work, blobs)
    reporter.step("images", missing_bytes(work, images))
    for image in images:
        missing = _missing(work, image)
        if missing:
            try:
                with _Watch(work, missing, reporter):
                    _fetch(work, image, access)
            except SkopeoError as error:
                raise BundleError(f"image {image.entry.name}: {error}. Run create again; it goes on there") from error
            _vouch(work, image)
        work.finish_part(image.part(), image_files(image.closure))


def own_files(images: Sequence[Part], bundle: Path) -> dict[str, bytes]:
    """The two files of the layout that belong to no image: `{path: content}`."""
    named = []
    for part in images:
        raw = oci.read_manifest(bundle / "images", part.details["digest"])
        descriptor = oci.Descriptor(part.details["digest"], len(raw), oci.parse(raw).media_type)
        named.append((part.name, descriptor))
    return {"images/index.json": oci.index_text(named).encode(), "images/oci-layout": oci.LAYOUT_TEXT.encode()}


def _wrong(entry: Entry) -> str | None:
    try:
        safe_name(entry.name)
    except ValueError as error:
        return str(error)
    if not entry.origin or not entry.repository:
        return "it has no repository"
    if "{" in entry.origin or "://" in entry.origin:
        return f"{entry.origin} is no plain HOST/PATH"
    if not entry.digest or not DIGEST.fullmatch(entry.digest) or is_placeholder(entry):
        return f"its digest is {shown(entry.digest)}; write it down with `vllm-node images lock`"
    return None if entry.architecture else "it has no architecture"


def _docker(entry: Entry, digest: str) -> str:
    assert entry.origin is not None
    return skopeo.docker(entry.origin, digest=digest)


def _path(digest: str) -> str:
    return f"images/blobs/sha256/{digest.removeprefix('sha256:')}"


def _is_whole(work: Workspace, digest: str, size: int) -> bool:
    return work.known(_path(digest)) == FileHash(digest.removeprefix("sha256:"), size)


def _own_manifest(work: Workspace, digest: str) -> bytes | None:
    known = work.known(_path(digest))
    if known is None or known.sha256 != digest.removeprefix("sha256:"):
        return None
    return oci.read_manifest(work.bundle / "images", digest)


def _missing(work: Workspace, image: Image) -> dict[str, int]:
    return {digest: size for digest, size in image.closure.sizes.items() if not _is_whole(work, digest, size)}


def _sweep(work: Workspace, blobs: Path) -> None:
    """Hash what an interrupted run has left; remove what is not what its name says."""
    unknown = [path for path in blobs.iterdir() if work.known(f"images/blobs/sha256/{path.name}") is None]
    whole = hash_files(unknown, on_error=lambda _path, _error: None, follow=False)
    for path in unknown:
        if path in whole and whole[path].sha256 == path.name:
            work.adopt_in_place(f"images/blobs/sha256/{path.name}", whole[path])
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _fetch(work: Workspace, image: Image, access: Access) -> None:
    stage = work.staging("oci")
    stage.mkdir()
    (stage / "blobs").symlink_to(work.bundle / "images/blobs")
    target = f"oci:{stage}:{image.entry.name}"
    if image.closure.oci:
        skopeo.copy(image.reference, target, access)
        return
    # An OCI layout takes Docker's manifests from nobody. So skopeo brings the layers, which are the same in both, and
    # throws away its own converted manifests with them; the real ones and the configurations are put there as they are.
    for digest, raw in image.manifests.items():
        work.put(_path(digest), raw)
    for digest, config in image.closure.configs().items():
        if not _is_whole(work, config, image.closure.sizes[config]):
            _put_config(work, image, digest, config, access)
    if _missing(work, image):
        skopeo.copy(image.reference, target, access, preserve_digests=False)
        _sweep(work, work.bundle / "images/blobs/sha256")
    if _missing(work, image):
        # Layers that were not compressed have been, on their way. This way keeps them, and cannot go on after a kill.
        _fetch_as_directory(work, image, access)


def _put_config(work: Workspace, image: Image, digest: str, config: str, access: Access) -> None:
    raw = skopeo.raw_config(_docker(image.entry, digest), access)
    if f"sha256:{hashlib.sha256(raw).hexdigest()}" != config:
        raise BundleError(f"image {image.entry.name}: the registry gives another configuration than {config}")
    work.put(_path(config), raw)


def _fetch_as_directory(work: Workspace, image: Image, access: Access) -> None:
    stage = work.staging("dir")
    skopeo.copy(image.reference, f"dir:{stage}", access)
    for digest in _missing(work, image):
        (stage / digest.removeprefix("sha256:")).replace(work.bundle / _path(digest))


def _vouch(work: Workspace, image: Image) -> None:
    """Every blob of the image is there, and is what its name says; raises BundleError."""
    missing = _missing(work, image)
    paths = {work.bundle / _path(digest): digest for digest in missing}
    found = hash_files(paths, on_error=lambda _path, _error: None, follow=False)
    for path, digest in paths.items():
        wanted = FileHash(digest.removeprefix("sha256:"), missing[digest])
        if found.get(path) != wanted:
            path.unlink(missing_ok=True)
            raise BundleError(
                f"image {image.entry.name}: the blob {digest} did not come whole from {image.reference}; "
                "run create again, and look at the registry when it stays so"
            )
        work.adopt_in_place(_path(digest), wanted)


class _Watch:
    """Tells how many bytes of some blobs are there, while skopeo fetches them."""

    def __init__(self, work: Workspace, blobs: dict[str, int], reporter: Reporter) -> None:
        self._work, self._blobs, self._reporter = work, blobs, reporter
        self._seen = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        self._end.set()
        self._thread.join()
        if kind is None:
            self._tell(sum(self._blobs.values()))

    def _watch(self) -> None:
        while not self._end.wait(_POLL_S):
            self._tell(min(sum(self._blobs.values()), self._there()))

    def _there(self) -> int:
        whole = sum(size for digest, size in self._blobs.items() if (self._work.bundle / _path(digest)).exists())
        unfinished = 0
        for path in (self._work.bundle / ".partial").glob("*-oci/oci-put-blob*"):
            try:
                unfinished += path.stat().st_size
            except OSError:
                continue  # it has just been finished
        return whole + unfinished

    def _tell(self, there: int) -> None:
        if there > self._seen:
            self._reporter.advance(there - self._seen)
            self._seen = there
