"""What a registry's refusal of an image means, and what to do about it.

A registry says it in words of its own, which the container tools hand on. What nobody has seen yet stays as it was
said.
"""

from __future__ import annotations

import re
from typing import Final

from vllm_node.images.skopeo import Kind, SkopeoError

_BY_KIND: Final[dict[Kind, str]] = {
    "refused": "give an account that may push there with --authfile (`skopeo login --authfile FILE REGISTRY`); "
    "registries also answer so for a project that has to be made first",
    "tls": "give the folder with the registry's authority (*.crt) with --cert-dir; the name in the registry's "
    "certificate must be the one in --registry",
    "unreachable": "look at --registry, and at the way to it (name, firewall, proxy); run push again, it goes on there",
    "busy": "wait, and run push again; it goes on there",
    "stopped": "run push again; it goes on there",
}
# First match wins. The texts are those of distribution, Harbor, Nexus, Artifactory and Quay, as skopeo hands them on.
_BY_WORDS: Final[tuple[tuple[str, str], ...]] = (
    (
        r"no space left|insufficient storage|quota|exceed.*limit|status(?: ?code)?:? 507",
        "its storage is full, or a quota of the project is: make room there, and run push again",
    ),
    (
        r"status(?: ?code)?:? 413|entity too large|payload too large",
        "it, or a proxy before it, takes no blob of this size: raise the limit there (nginx: client_max_body_size 0)",
    ),
    (
        r"status(?: ?code)?:? 405|method not allowed|read-?only|maintenance|operation is unsupported",
        "it takes nothing: it is switched to read-only, or the name leads to a mirror or a group repository; push to "
        "the one that is hosted there",
    ),
    (
        r"immutable|already exists|cannot be overwritten|does not allow updating",
        "the tag is there and may not be moved: remove it there, or let push have another --prefix",
    ),
    (
        r"manifest.?blob.?unknown|blob unknown to registry|not found in index|references? .*(missing|unknown)",
        "it refuses an index because it does not find what the index names, although that was sent first: it has to "
        "keep images of every platform (Nexus and Artifactory: a hosted repository, not a proxy, current version)",
    ),
    (
        r"media ?type|status(?: ?code)?:? 415|manifest.?invalid|invalid manifest|unsupported manifest|schema version"
        r"|does not support (?:oci|artifact)",
        "it does not take this kind of manifest (OCI index, attestation): update the registry, or switch on OCI there; "
        "another kind would have another digest",
    ),
    (
        r"digest.?invalid|did not match",
        "what came is not what was sent: run `vllm-node bundle verify`, and look at proxies in between",
    ),
    (
        r"blob upload|status(?: ?code)?:? 50\d",
        "look at the registry's own log: its storage may be full, or not writable",
    ),
)


def next_step(error: SkopeoError) -> str:
    """A sentence without its dot: what to do after this refusal."""
    # Some say "denied" for a quota, and "unknown" for a child of an index: words count more than the kind.
    if error.kind in ("other", "refused", "absent"):
        for words, step in _BY_WORDS:
            if re.search(words, error.said, re.IGNORECASE):
                return step
    return _BY_KIND.get(error.kind, "look at the registry's own log, and try it by hand with `skopeo --debug copy`")
