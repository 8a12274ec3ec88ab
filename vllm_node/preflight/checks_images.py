"""The image lock: complete, pinned, for this architecture, and in the registry."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_node.preflight import tables
from vllm_node.preflight.findings import Finding, fail, warn
from vllm_node.preflight.reading import Snapshot, at, installed, listed, rows, text, words
from vllm_node.preflight.wanted import Wanted

_MEND_DIGEST = (
    "Run `vllm-node images lock -i INVENTORY` where the image's source can be reached: it writes the digest."
)


def pinned(_: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Every entry has a repository with a host, and a digest."""
    for image in wanted.images:
        if not image.digest:
            yield fail(
                "lock.digest",
                f"image {image.name} has "
                + (f"the tag {image.tag} and no digest" if image.tag else "no digest"),
                "A tag can mean another image tomorrow; only a digest says what runs.",
                _MEND_DIGEST,
            )
        elif not image.pinned:
            yield fail(
                "lock.digest",
                f"image {image.name} has the digest {image.digest}",
                "A digest is sha256: and 64 hexadecimal digits in small letters.",
                _MEND_DIGEST,
            )
        host, _slash, path = (image.repository or "").partition("/")
        if not path or not ("." in host or ":" in host or host == "localhost"):
            yield fail(
                "lock.repository",
                f"image {image.name} has the repository {image.repository}",
                "Without a registry's host the name would be searched for on the internet.",
                "Write it as host:port/path in images.lock.yml.",
            )
    empty = [image.name for image in wanted.images if image.placeholder]
    if empty:
        yield fail(
            "lock.placeholder",
            f"the digest of {listed(empty)} is all zeros",
            "It only holds the place of a digest: no registry has such an image.",
            _MEND_DIGEST,
        )


def named(_: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Every image that is needed is in the lock."""
    known = {image.name for image in wanted.images}
    for name, user in sorted(wanted.image_users.items()):
        if name not in known:
            yield fail(
                "lock.name",
                f"{user} wants the image {name}; the lock has {listed(sorted(known)) or 'none'}",
                "The image lock is the only place where an image is named.",
                f"Add {name} to images_lock (images.lock.yml), or correct the name.",
            )


def architecture(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Images for the node's architecture."""
    machine = text(snapshot, "kernel", "arch")
    node = tables.ARCHITECTURES.get(machine, machine) if machine else None
    if node is None:
        return
    offered = {text(row, "name"): words(row, "architectures") for row in rows(snapshot, "registry", "images")}
    for image in wanted.images:
        built_for = offered.get(image.name) or ([image.architecture] if image.architecture else [])
        if (image.architecture and image.architecture != node) or (built_for and node not in built_for):
            yield fail(
                "lock.architecture",
                f"image {image.name} ({image.digest}) is for {listed(built_for)}, the node is {node}",
                "Its programs cannot run here (exec format error).",
                f"Lock the digest of the {node} image, and mirror it with skopeo copy --all.",
            )


def in_registry(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """The registry holds every locked digest that the node lacks."""
    answers = {text(row, "name"): row for row in rows(snapshot, "registry", "images")}
    for image in wanted.images if wanted.image_bundle is None else ():
        row = answers.get(image.name)
        if row is None or not image.pinned or image.placeholder or installed(snapshot, image.reference):
            continue
        if row.get("found") is False:
            asked = text(row, "repository") or image.repository
            yield fail(
                "image.missing",
                f"image {image.name}: {asked} has no {image.digest}",
                "It cannot be pulled.",
                f"Push it (skopeo copy --all --preserve-digests ... docker://{asked}), or "
                "correct the lock.",
            )
        elif row.get("error") and _reached(snapshot):
            make = fail if row.get("found") is None else warn
            yield make(
                "image.error",
                f"image {image.name} ({image.reference}): {row['error']}",
                "It may not be pulled.",
                "Mend its repository or digest in the lock, or push the image again with skopeo copy --all.",
            )


def without_registry(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Where there is no registry, the node holds every image that it runs, or gets them from a bundle."""
    if wanted.registry or wanted.image_bundle:
        return
    missing = [
        image.name
        for image in wanted.images
        if image.name in wanted.image_users and image.pinned and not installed(snapshot, image.reference)
    ]
    if missing:
        yield fail(
            "image.unloaded",
            f"the node does not hold {listed(missing)}, and no registry is named",
            "There is nothing that it could be pulled from.",
            "Bring images to the node with `vllm-node bundle load`, or name the site's registry in "
            "container_host_registry_address.",
        )


def _reached(snapshot: Snapshot) -> bool:
    """Whether the registry itself was all right, so that an image's error is the image's own."""
    return at(snapshot, "registry", "auth") == "ok" and not at(snapshot, "registry", "error")


CHECKS = (pinned, named, architecture, in_registry, without_registry)
