"""Images of a bundle straight into a node's storage, for a site without a registry.

What a node needs of an image (index, its platform's manifest, configuration, layers) goes there as an OCI layout, file
by file, by rsync. There podman pulls from the layout as it would from a registry: `podman pull oci:LAYOUT:REPO@DIGEST`
takes that name for the image and keeps both manifests. So units find it by `repository@digest`, and RepoDigests has the
locked digest. podman compares every digest itself, from the one in the name down to each layer.

The layout's `index.json` is written for that one pull. podman looks up names among OCI manifests only; so it says of a
Docker list that it is an index, which it is read as, and of a lone Docker manifest that it is what an index names. The
digest that counts is over the manifest's own bytes, which stay as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_node import transfer
from vllm_node.bundle import oci
from vllm_node.bundle.contents import image_closure
from vllm_node.bundle.layout import BundleError, Manifest, Part
from vllm_node.bundle.oci import Closure, Descriptor, ImageError
from vllm_node.byte_progress import Lines, sized
from vllm_node.images import manifest
from vllm_node.images.manifest import ManifestError
from vllm_node.transfer import Reach, TransferError
from vllm_node.units import image_reference

Step = Callable[[str, dict[str, Any]], dict[str, Any]]
"""Runs a module (`image_pull` or `image_layout`) on the node with these arguments, and gives its answer."""

PLACE = "load"
"""Folder below the toolkit's own on the node, for as long as images are brought."""

_POLICY = (
    "the node's trust policy (/etc/containers/policy.json) has no rule that takes images of the transport oci; "
    "docs/air-gap.md has it"
)
_BLOBS = "blobs/sha256"
_WAIT_S = 10


class LoadError(Exception):
    """Images are not on the node. The text names each, what was seen, and what to do."""


@dataclass(frozen=True)
class Image:
    """An image on its way to a node. reference: `repository@digest`; blobs: file names of what is sent, and sizes;
    entry: what `index.json` says of it; made: blobs that are only made for it, by file name."""

    name: str
    reference: str
    blobs: Mapping[str, int]
    entry: Descriptor
    made: Mapping[str, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Size of what is sent."""
        return sum(self.blobs.values())


@dataclass(frozen=True)
class Settings:
    """How a node is loaded. state_dir: the toolkit's folder there; limit_s: for podman's part after the last byte came;
    bandwidth: the most bytes a second, as rsync writes it (`100m`); dry: nothing is changed."""

    state_dir: str
    limit_s: float = 7200
    bandwidth: str = ""
    dry: bool = False


@dataclass
class Outcome:
    """What was done. present: names of the images that are there; loaded: those that were brought; sent_bytes: over
    the connection."""

    changed: bool = False
    present: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    sent_bytes: int = 0


def plan(bundle: Path, wanted: Mapping[str, Mapping[str, Any]]) -> list[Image]:
    """Images of the lock, as they are to be sent out of a bundle. Raises LoadError with all that it does not have."""
    try:
        parts = {str(part.details["digest"]): part for part in Manifest.read(bundle).images()}
    except BundleError as error:
        raise LoadError(str(error)) from error
    found, problems = [], []
    for name, entry in sorted(wanted.items()):
        digest = str(entry.get("digest"))
        try:
            if digest not in parts:
                raise ImageError(f"{bundle} does not have {digest}, which the lock names")
            found.append(_image(bundle, name, entry, parts[digest]))
        except (ManifestError, BundleError) as error:
            problems.append(f"image {name}: {error}")
    if problems:
        raise LoadError("\n".join([*problems, "make the bundle anew with this lock, or bring the lock that it has"]))
    return found


def _image(bundle: Path, name: str, entry: Mapping[str, Any], part: Part) -> Image:
    images = bundle / "images"
    closure = image_closure(bundle, part)
    top = str(part.details["digest"])
    platform = str(entry.get("platform_digest") or _picked(images, top, str(entry.get("architecture"))))
    if platform not in closure.manifests:
        raise ImageError(f"it has no manifest {platform}, which the lock names for its platform")
    digests = dict.fromkeys((top, platform, *(one.digest for one in closure.manifests[platform].blobs)))
    blobs = {digest.removeprefix("sha256:"): closure.sizes[digest] for digest in digests}
    named, made = _entry(closure, top, str(entry.get("architecture")))
    return Image(name, image_reference(entry), blobs, named, made)


def _picked(images: Path, top: str, architecture: str) -> str:
    found = manifest.parse(oci.read_manifest(images, top))
    return found.pick(architecture) if isinstance(found, manifest.Index) else top


def _entry(closure: Closure, top: str, architecture: str) -> tuple[Descriptor, dict[str, str]]:
    """What `index.json` says of the image, and the blobs that are made for that."""
    node, size = closure.manifests[top], closure.sizes[top]
    if node.oci:
        return Descriptor(top, size, node.media_type), {}
    if node.children:
        return Descriptor(top, size, oci.OCI_INDEX), {}
    platform = {"os": "linux", "architecture": architecture}
    child = {"mediaType": node.media_type, "digest": top, "size": size, "platform": platform}
    index = json.dumps({"schemaVersion": 2, "mediaType": oci.OCI_INDEX, "manifests": [child]})
    name = hashlib.sha256(index.encode()).hexdigest()
    return Descriptor(f"sha256:{name}", len(index), oci.OCI_INDEX), {name: index}


class Loading:
    """One node's images. `tell` prints a line for whoever waits."""

    def __init__(
        self,
        bundle: Path,
        wanted: Mapping[str, Mapping[str, Any]],
        settings: Settings,
        reach: Callable[[], Reach],
        step: Step,
        tell: Callable[[str], None],
    ) -> None:
        """Nothing is done yet. `wanted` are entries of the lock, by name; `reach` is asked when something is sent."""
        self._bundle, self._wanted, self._settings = bundle, wanted, settings
        self._reach, self._step, self._tell = reach, step, tell
        self._layout = f"{settings.state_dir.rstrip('/')}/{PLACE}/images"
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """All of it. Raises LoadError."""
        try:
            references = [
                {"name": name, "reference": image_reference(entry)} for name, entry in sorted(self._wanted.items())
            ]
        except ValueError as error:
            raise LoadError(str(error)) from error
        # None is pulled by it: this only tells which are there.
        self.outcome.present = self._ask("image_pull", images=references, parallel=0)["present"]
        missing = {name: entry for name, entry in self._wanted.items() if name not in self.outcome.present}
        if missing:
            self._load(plan(self._bundle, missing))
        elif not self._settings.dry:
            self.outcome.changed = bool(self._ask("image_layout", state="absent")["changed"])
        return self.outcome

    def _load(self, images: Sequence[Image]) -> None:
        self.outcome.changed = True
        if self._settings.dry:
            return
        self._ask(
            "image_layout",
            state="present",
            files=self._files(images),
            blobs={name: size for image in images for name, size in image.blobs.items()},
        )
        failed: dict[str, str] = {}
        for image in images:
            self._send(image)
            failed |= self._pull([image], begin=True, wait_s=0)["failed_images"]
        self._wait(images, failed)
        if failed:
            # What has changed on its way, or on the disk there, would never be sent again as it is.
            spoilt = self._ask("image_layout", state="sifted")["spoilt"]
            lines = [f"image {name} cannot be loaded: {said}" for name, said in sorted(failed.items())]
            lines += [_POLICY] if any("by policy" in said for said in failed.values()) else []
            lines += [f"what was sent is damaged, and is removed: {name}" for name in spoilt]
            raise LoadError("\n".join([*lines, "run this again: it goes on where it stopped"]))
        self._ask("image_layout", state="absent")
        self.outcome.loaded = [image.name for image in images]
        self.outcome.present = sorted(self._wanted)

    def _files(self, images: Sequence[Image]) -> dict[str, str]:
        index = oci.index_text([(image.reference, image.entry) for image in images])
        made = {f"{_BLOBS}/{name}": text for image in images for name, text in image.made.items()}
        return {"index.json": index, "oci-layout": oci.LAYOUT_TEXT, **made}

    def _send(self, image: Image) -> None:
        self._tell(f"image {image.name}: {sized(image.bytes)} are sent")
        argv = transfer.command(
            self._reach(),
            str(self._bundle / "images"),
            self._layout,
            source_on_node=False,
            append=True,  # podman compares every blob with its digest
            bandwidth=self._settings.bandwidth,
        )
        lines = Lines(f"image {image.name}, sent", image.bytes, self._tell)
        try:
            self.outcome.sent_bytes += transfer.run(argv, [f"{_BLOBS}/{name}" for name in image.blobs], lines.add)
        except TransferError as error:
            raise LoadError(
                f"image {image.name} did not get to the node: {error}\nrun this again: it goes on where it stopped"
            ) from error

    def _pull(self, images: Sequence[Image], *, begin: bool, wait_s: int) -> dict[str, Any]:
        asked = [
            {"name": one.name, "reference": one.reference, "source": f"oci:{self._layout}:{one.reference}"}
            for one in images
        ]
        return self._ask("image_pull", images=asked, parallel=len(asked), begin=begin, wait_s=wait_s)

    def _wait(self, images: Sequence[Image], failed: dict[str, str]) -> None:
        """Until podman has unpacked all of them, or failed to; adds to `failed`."""
        steps = max(1, int(self._settings.limit_s / _WAIT_S))
        for number in range(steps):
            waiting = [image for image in images if image.name not in failed]
            if not waiting:
                return
            answer = self._pull(waiting, begin=False, wait_s=_WAIT_S)
            failed |= answer["failed_images"]
            pulling = {name: far for name, far in answer["pulling"].items() if name not in failed}
            if not pulling:
                return
            state = ", ".join(f"{name} {far}" for name, far in pulling.items())
            self._tell(f"unpacking for {number * _WAIT_S} s: {state}")
        raise LoadError(f"still unpacking after {self._settings.limit_s:g} s (image_load_limit_s); run this again")

    def _ask(self, module: str, **arguments: Any) -> dict[str, Any]:
        answer = self._step(module, {"state_dir": self._settings.state_dir, **arguments})
        if answer.get("failed"):
            raise LoadError(str(answer.get("msg")))
        return answer
