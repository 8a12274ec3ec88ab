"""Images of a bundle into the site's registry, with every digest as it was, and the registry's own word as the proof.

The registry is asked first what it has: an image is there when the registry gives its top manifest and every one below
it. What is not is sent whole, and skopeo leaves out the blobs that are there already; so a push that was killed is
finished by the next one. Several go at once, and one that is refused does not keep the others from going.
"""

from __future__ import annotations

import re
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from vllm_node.bundle import oci
from vllm_node.bundle.contents import image_closure
from vllm_node.bundle.layout import BundleError, Manifest, Part, shown
from vllm_node.bundle.oci import Closure
from vllm_node.bundle.reading import Readers
from vllm_node.bundle.refusals import next_step
from vllm_node.bundle.reporter import Reporter
from vllm_node.images import skopeo
from vllm_node.images.skopeo import Access, SkopeoError
from vllm_node.registries import is_place

State: TypeAlias = Literal["pushed", "present", "failed"]

_AT_ONCE = 4
_TAG_DIGITS = 12
_PATH = re.compile(r"[a-z0-9]+((\.|__?|-+|/)[a-z0-9]+)*")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Request:
    """What goes where. registry: `HOST:PORT`; prefix: path below it for images that the lock has elsewhere; only: names
    of images, empty for all."""

    registry: str
    prefix: str = ""
    only: frozenset[str] = frozenset()
    access: Access = field(default_factory=Access)


@dataclass(frozen=True)
class Outcome:
    """What has come of one image. tag: the one that names it now; bytes: of all of it; why: of a failure."""

    part: Part
    repository: str
    state: State
    tag: str | None = None
    bytes: int = 0
    why: str = ""

    @property
    def reference(self) -> str:
        """How nodes may name it: `repository@digest`."""
        return f"{self.repository}@{self.part.details['digest']}"

    def document(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "name": self.part.name,
            "state": self.state,
            "repository": self.repository,
            "tag": self.tag,
            "digest": self.part.details["digest"],
            "platform_digest": self.part.details["platform_digest"],
            "bytes": self.bytes,
            "error": self.why or None,
        }


@dataclass(frozen=True)
class _Plan:
    """An image, where it goes, what it consists of, and the tag that it gets; there: nothing is to be sent."""

    part: Part
    repository: str
    closure: Closure
    tag: str
    there: bool

    def outcome(self, state: State, why: str = "") -> Outcome:
        tag = self.tag if state != "failed" else None
        return Outcome(self.part, self.repository, state, tag, self.closure.bytes, why)


def push(bundle: Path, request: Request, reporter: Reporter) -> list[Outcome]:
    """Push the images of a bundle; outcome of each, in the manifest's order.

    Raises BundleError when nothing can be begun: no such bundle or image, no skopeo, no registry by that name.
    """
    parts = chosen(Manifest.read(bundle).images(), request.only)
    # With a port it is a registry's host, whatever else it looks like.
    if "/" in request.registry or not is_place(request.registry):
        raise BundleError(f"--registry {request.registry}: write HOST:PORT, without https:// and without a path")
    if request.prefix and not _PATH.fullmatch(request.prefix):
        raise BundleError(f"--prefix {request.prefix}: a path is small letters, digits and . _ - /")
    try:
        skopeo.version()
    except SkopeoError as error:
        raise BundleError(error.said) from error
    reporter.step("asking the registry what it has")
    looked = _all(parts, lambda part: _plan(bundle, part, request))
    plans = [one for one in looked if isinstance(one, _Plan)]
    sent = dict(zip((plan.part.name for plan in plans), _send(bundle, plans, request, reporter), strict=True))
    return [sent[one.part.name] if isinstance(one, _Plan) else one for one in looked]


def chosen(parts: Sequence[Part], only: Collection[str]) -> list[Part]:
    """Those of the images that were asked for. Raises BundleError when there is none of that name, or none at all."""
    known = [part.name for part in parts]
    missing = sorted(set(only) - set(known))
    if missing:
        raise BundleError(f"the bundle has no image {', '.join(missing)}; it has {', '.join(known) or 'none'}")
    if not parts:
        raise BundleError("there are no images in this bundle")
    return [part for part in parts if not only or part.name in only]


def destination(repository: str, registry: str, prefix: str = "") -> str:
    """Repository in `registry` for an image that the lock has as `repository`. Raises BundleError."""
    host, slash, path = repository.partition("/")
    named = slash and is_place(host)
    if named and host == registry:
        return repository
    path = path if named else repository
    if not _PATH.fullmatch(path):
        raise BundleError(f"its repository in the lock is {shown(repository)}, which names no place; write HOST/PATH")
    return "/".join(word for word in (registry, prefix, path) if word)


def _plan(bundle: Path, part: Part, request: Request) -> _Plan | Outcome:
    repository = str(part.details["repository"])
    try:
        repository = destination(repository, request.registry, request.prefix)
        closure = image_closure(bundle, part)
        tag, named = _tag(part, repository, request.access)
        names = (skopeo.docker(repository, digest=one) for one in closure.manifests)
        there = named and all(_there(name, request.access) for name in names)
        return _Plan(part, repository, closure, tag, there)
    except SkopeoError as error:
        return Outcome(part, repository, "failed", why=_told(error))
    except BundleError as error:
        return Outcome(part, repository, "failed", why=str(error))


def _tag(part: Part, repository: str, access: Access) -> tuple[str, bool]:
    """A tag for the image, and whether it names it already.

    Registries throw away what no tag names. The lock's tag is taken where it is free; one that names another image
    already stays as it is, for somebody may live by it.
    """
    digest = str(part.details["digest"])
    own = digest.removeprefix("sha256:")[:_TAG_DIGITS]
    locked = part.details.get("tag")
    for tag in [str(locked)] if locked else []:
        found = _there(skopeo.docker(repository, tag=tag), access)
        if found in (None, digest):
            return tag, found == digest
    tag = f"{locked}-{own}" if locked else f"sha256-{own}"
    return tag, _there(skopeo.docker(repository, tag=tag), access) == digest


def _there(reference: str, access: Access) -> str | None:
    """Digest of what a reference names, None where it names nothing yet. Raises SkopeoError."""
    try:
        return skopeo.digest_of(skopeo.raw_manifest(reference, access))
    except SkopeoError as error:
        # Some refuse to speak of what is not there. Whether the account is wrong, the push itself will tell.
        if error.kind in ("absent", "refused"):
            return None
        raise


def _send(bundle: Path, plans: Sequence[_Plan], request: Request, reporter: Reporter) -> list[Outcome]:
    missing = sum(plan.closure.bytes for plan in plans if not plan.there)
    if missing:
        reporter.step("pushing images", missing)
    with tempfile.TemporaryDirectory(prefix="vllm-node-push-") as views, Readers(reporter.advance) as readers:

        def one(plan: _Plan) -> Outcome:
            if plan.there:
                return plan.outcome("present")
            try:
                _copy(bundle, plan, Path(views) / plan.part.name, request.access, readers)
                _prove(plan, request.access)
            except SkopeoError as error:
                return plan.outcome("failed", _told(error))
            except (BundleError, OSError) as error:
                return plan.outcome("failed", str(error))
            reporter.note(f"{plan.part.name} is in the registry: {plan.outcome('pushed').reference}")
            return plan.outcome("pushed")

        return _all(plans, one)


def _copy(bundle: Path, plan: _Plan, view: Path, access: Access, readers: Readers) -> None:
    source = oci.directory_view(bundle / "images", str(plan.part.details["digest"]), view)
    sizes = {digest.removeprefix("sha256:"): size for digest, size in plan.closure.sizes.items()}
    pids: list[int] = []

    def started(pid: int) -> None:
        pids.append(pid)
        readers.add(pid, sizes)

    target = skopeo.docker(plan.repository, tag=plan.tag)
    try:
        skopeo.copy(source, target, target_access=access, on_start=started)
    except BaseException:
        readers.forget(pids[0] if pids else None)
        raise
    readers.end(pids[0], plan.closure.bytes)


def _prove(plan: _Plan, access: Access) -> None:
    """Raises SkopeoError, or BundleError, unless the registry gives the very digests that the lock names."""
    for digest in dict.fromkeys((str(plan.part.details["digest"]), str(plan.part.details["platform_digest"]))):
        skopeo.raw_manifest(skopeo.docker(plan.repository, digest=digest), access)
    tagged = skopeo.digest_of(skopeo.raw_manifest(skopeo.docker(plan.repository, tag=plan.tag), access))
    if tagged != plan.part.details["digest"]:
        raise BundleError(f"the registry now has {tagged} as {plan.repository}:{plan.tag}; somebody else pushes there")


def _told(error: SkopeoError) -> str:
    # Which call it was tells little here: the image and its place stand before this text.
    registry = f" (the registry is {error.registry})" if error.registry else ""
    return f"{error.said}{registry}. Next: {next_step(error)}"


def _all(items: Iterable[Any], work: Callable[[Any], _Result]) -> list[_Result]:
    """`work` of each of the items, in their order; an interruption ends what skopeo does, and waits for its end."""
    stop = threading.Event()

    def unless_stopped(item: Any) -> _Result:
        if stop.is_set():
            raise BundleError("stopped")
        return work(item)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        futures: list[Future[_Result]] = [pool.submit(unless_stopped, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            # Again and again: a call may have begun since the last look.
            while not all(future.done() for future in futures):
                skopeo.stop()
                time.sleep(0.05)
            raise
