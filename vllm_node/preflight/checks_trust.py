"""The node's trust policy against the images of the lock. It is the site's own: it is read, and never written."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_node.preflight.findings import Finding, fail
from vllm_node.preflight.reading import Snapshot, at, installed, listed, mapping, text, words
from vllm_node.preflight.wanted import Image, Wanted
from vllm_node.registries import scopes

_SIGNED = {"signedBy", "signedBaseLayer", "sigstoreSigned"}
_KNOWN = {*_SIGNED, "insecureAcceptAnything", "reject"}


def policy(snapshot: Snapshot, _: Wanted) -> Iterator[Finding]:
    """There is a policy that podman can read."""
    found = mapping(snapshot, "supply", "policy")
    if not found or at(snapshot, "podman") is None:
        return
    if text(found, "path") is None:
        yield fail(
            "trust.policy",
            "there is no /etc/containers/policy.json",
            "podman pulls nothing without a trust policy.",
            "Install the package containers-common, which brings the distribution's.",
        )
    elif text(found, "error"):
        yield fail(
            "trust.policy",
            f"{found['path']}: {found['error']}",
            "podman pulls nothing under a trust policy that it cannot read.",
            "Mend it; man containers-policy.json tells its form.",
        )


def images(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Images that the policy lets in as they come."""
    found = mapping(snapshot, "supply", "policy")
    path = text(found, "path")
    groups: dict[tuple[str, str, str], list[str]] = {}
    for image in wanted.images:
        if not image.repository or installed(snapshot, image.reference):
            continue
        scope, kinds = _rule(found, image)
        problem = next((kind for kind in kinds if kind in _SIGNED or kind == "reject" or kind not in _KNOWN), None)
        if problem:
            groups.setdefault((scope, problem, image.repository.partition("/")[0]), []).append(image.name)
    for (scope, kind, host), names in sorted(groups.items()):
        where = f"{path} has {kind} for {scope}, and that holds for the images {listed(names)} of {host}"
        if kind in _SIGNED:
            yield fail(
                "trust.signature",
                where,
                "podman asks for signatures, which a mirror has only when they were copied along.",
                "Name the images by the internal registry in the lock, copy the signatures too, or give the scope "
                "a rule that fits: the policy is the site's own, and vllm-node never writes it.",
            )
        else:
            yield fail(
                "trust.reject",
                where,
                "podman pulls none of them.",
                f"Give {host} a rule of its own in that file, below transports and docker: the policy is the site's "
                "own, and vllm-node never writes it.",
            )


def _rule(policy: Snapshot, image: Image) -> tuple[str, list[str]]:
    """Scope of the rule that counts, for people, and the kinds that it asks for; none when the policy was not seen."""
    docker = mapping(policy, "rules", "docker")
    for scope in scopes(image.repository or "", image.digest or ""):
        if scope in docker:
            return scope or "all registries", words(docker, scope)
    return "everything (default)", words(policy, "rules", "default")


CHECKS = (policy, images)
