"""What the tags of a lock name now: asked of the registries, several at once, all problems collected."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Literal, TypeAlias

from vllm_node.images import manifest, skopeo
from vllm_node.images.lockfile import Entry
from vllm_node.images.skopeo import Access, Kind, SkopeoError

_AT_ONCE = 8
_PLACEHOLDER = "sha256:" + "0" * 64

ProblemKind: TypeAlias = Kind | Literal["entry", "manifest"]
_NEXT: dict[Kind, str] = {
    "absent": "Correct repository (or source) and tag in the lock",
    "refused": "Give credentials with --authfile (`skopeo login --authfile FILE`); registries also answer so for a "
    "repository that is not there",
    "tls": "Give the folder with the registry's authority (*.crt) with --ca",
    "unreachable": "Look at the name, at the way out of this machine (proxy, firewall), and run it again",
    "busy": "Wait, or give credentials with --authfile: registries allow those more",
}


@dataclass(frozen=True)
class Seen:
    """What a tag (or, without one, the digest) names. digest: of the index where there is one, else of the manifest.

    size_bytes: what a node fetches: manifests, configuration and layers of its platform as they travel (compressed).
    locked_gone: the tag has moved, and the digest that is locked can no longer be had (None: not looked at).
    """

    digest: str
    platform_digest: str
    size_bytes: int
    locked_gone: bool | None = None

    def values(self) -> dict[str, str | int]:
        """The keys of the lock that tell this."""
        return {"digest": self.digest, "platform_digest": self.platform_digest, "size_bytes": self.size_bytes}


@dataclass(frozen=True)
class Problem:
    """Why an image could not be looked at: what was asked and answered, and the next step."""

    kind: ProblemKind
    text: str
    next_step: str


@dataclass(frozen=True)
class Outcome:
    """An entry, and either what its tag names or why that cannot be told."""

    entry: Entry
    seen: Seen | None = None
    problem: Problem | None = None


def resolve_all(
    entries: Sequence[Entry], access: Access, told: Callable[[Outcome], None] = lambda _outcome: None
) -> list[Outcome]:
    """Outcome of each entry, in their order; `told` is given each as soon as it is known.

    Raises:
        SkopeoError: of kind `no skopeo`, before anything is asked.
    """
    skopeo.version()
    found: dict[str, Outcome] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        futures = [pool.submit(resolve, entry, access) for entry in entries]
        try:
            for future in as_completed(futures):
                found[future.result().entry.name] = future.result()
                told(future.result())
        except BaseException:
            # An interruption does not wait for registries; a call may have begun since the last look.
            pool.shutdown(wait=False, cancel_futures=True)
            while not all(future.done() for future in futures):
                skopeo.stop()
                time.sleep(0.05)
            raise
    return [found[entry.name] for entry in entries]


def resolve(entry: Entry, access: Access) -> Outcome:
    """Ask the registry for one entry. Every failure is a Problem."""
    wrong = _wrong(entry)
    if wrong is not None:
        return Outcome(entry, problem=Problem("entry", wrong, "Mend the entry in the lock"))
    try:
        return Outcome(entry, _seen(entry, access))
    except manifest.ManifestError as error:
        return Outcome(entry, problem=Problem("manifest", f"{_named(entry)}: {error.seen}", error.next_step))
    except SkopeoError as error:
        step = _NEXT.get(error.kind, "Run `skopeo inspect --raw` on it by hand")
        return Outcome(entry, problem=Problem(error.kind, str(error), step))


def _wrong(entry: Entry) -> str | None:
    """What is wrong with an entry before anybody is asked."""
    if not entry.origin:
        return "it has no repository"
    for key, value in (("source" if entry.source else "repository", entry.origin), ("tag", entry.tag or "")):
        if "{" in value:
            return f"its {key} is a template ({value}), which only Ansible can fill in; a source is plain text"
    if "://" in entry.origin:
        return f"its repository {entry.origin} begins with a transport; write HOST/PATH"
    if not entry.architecture:
        return "it has no architecture (amd64, arm64)"
    if not entry.tag and not (entry.digest and manifest.DIGEST.fullmatch(entry.digest) and not is_placeholder(entry)):
        return "it has neither a tag nor a digest"
    return None


def is_placeholder(entry: Entry) -> bool:
    """Whether its digest only holds the place of one."""
    return entry.digest == _PLACEHOLDER


def _named(entry: Entry) -> str:
    return _reference(entry).removeprefix(skopeo.DOCKER)


def _reference(entry: Entry) -> str:
    assert entry.origin is not None
    return skopeo.docker(entry.origin, tag=entry.tag, digest=None if entry.tag else entry.digest)


def _seen(entry: Entry, access: Access) -> Seen:
    assert entry.origin is not None
    assert entry.architecture is not None
    raw = skopeo.raw_manifest(_reference(entry), access)
    top = manifest.parse(raw)
    digest, size = skopeo.digest_of(raw), len(raw)
    if isinstance(top, manifest.Index):
        platform_digest = top.pick(entry.architecture)
        raw = skopeo.raw_manifest(skopeo.docker(entry.origin, digest=platform_digest), access)
        size += len(raw)
        image = manifest.parse(raw)
        if not isinstance(image, manifest.Manifest):
            raise manifest.ManifestError(f"its index names another index for {entry.architecture}")
    else:
        platform_digest, image = digest, top
        config = skopeo.raw_config(skopeo.docker(entry.origin, digest=digest), access)
        manifest.check_config(config, entry.architecture)
    return Seen(digest, platform_digest, size + image.blobs_bytes, _locked_gone(entry, digest, access))


def _locked_gone(entry: Entry, digest: str, access: Access) -> bool | None:
    """Whether a locked digest that the tag has left can no longer be had; what nobody can tell is None."""
    if entry.digest in (None, digest) or is_placeholder(entry) or not manifest.DIGEST.fullmatch(entry.digest or ""):
        return None
    assert entry.origin is not None
    try:
        skopeo.raw_manifest(skopeo.docker(entry.origin, digest=entry.digest), access)
    except SkopeoError as error:
        return True if error.kind == "absent" else None
    return False
