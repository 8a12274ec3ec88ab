"""What profiles go by: the version of vLLM and the GPU; and batches that vLLM refuses because of its own defaults."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_node.preflight.findings import Finding, fail, warn
from vllm_node.preflight.reading import Snapshot
from vllm_node.preflight.wanted import Wanted
from vllm_node.serving.effective import conflict
from vllm_node.serving.profiles import CUSTOM
from vllm_node.serving.settings import SEQS, TOKENS
from vllm_node.serving.site import place, settings_of


def declared(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """What the inventory says of the GPUs against what the node has."""
    for instance in wanted.gpu_instances:
        said, seen = place(instance, wanted, snapshot), place(instance, wanted, snapshot, declared=False)
        if said.gpu and seen.gpu and said.tier != seen.tier:
            yield warn(
                "gpu.declared",
                f"the inventory sets up instance {instance.name} {said.told[1]}, and the node runs it {seen.told[1]}",
                "Profiles go by the inventory, and vLLM by the GPU: the flags do not fit it.",
                "Correct vllm_gpu_name and vllm_gpu_memory_gib, or take them out: a bring-up reads both from the node.",
            )
            return


def known(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Profiles of which nothing, or not all, is written."""
    for instance in wanted.instances:
        found = settings_of(instance, wanted, snapshot)
        if found.profile == CUSTOM:
            continue
        if found.place.version is None:
            yield warn(
                "profile.version",
                f"instance {instance.name} has the profile {found.profile}, and the tag {found.place.tag!r} of its "
                "image tells no version of vLLM that is known",
                "A profile holds what is true of a version. Without one nothing of it is written.",
                "Lock the image by a tag that begins with the version of vLLM, such as v0.33.0.",
            )
        elif found.place.tier is None:
            yield warn(
                "profile.gpu",
                f"instance {instance.name} has the profile {found.profile}, and the memory of its GPUs is not known",
                "What depends on it is left out, and written once the node is asked: the unit then differs.",
                "Set vllm_gpu_name and vllm_gpu_memory_gib to have it here as well.",
            )


def batch(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """A batch of which the site sets one number and vLLM's default is the other."""
    for instance in wanted.instances:
        found = settings_of(instance, wanted, snapshot)
        refused = conflict(found)
        if refused is not None and any(each.flag in (TOKENS, SEQS) for each in found.defaults):
            yield fail(
                "instance.batch",
                f"instance {instance.name}: max-num-batched-tokens is {refused.tokens} and max-num-seqs "
                f"{refused.seqs}; one of them is vLLM's default {found.place.told[1]}",
                "A step takes at least a token for each request that runs: vLLM does not start.",
                f"Set max-num-batched-tokens to {refused.seqs} or more in args, or max-num-seqs to {refused.tokens} or "
                "less.",
            )


CHECKS = (declared, known, batch)
