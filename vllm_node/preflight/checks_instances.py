"""Instances against each other and against the node's devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from vllm_node.preflight import checks_profiles, checks_sharing
from vllm_node.preflight.devices import aliases
from vllm_node.preflight.findings import Finding, fail, warn
from vllm_node.preflight.reading import Snapshot, at, gib, listed, number, rows, words
from vllm_node.preflight.wanted import Wanted

_GIB = 1 << 30


def names(_: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Two instances of one name."""
    count = Counter(each.name for each in wanted.instances)
    twice = sorted(name for name, times in count.items() if times > 1)
    if twice:
        yield fail(
            "instance.name",
            f"instance names used twice: {listed(twice)}",
            "The name is the name of the unit: the second would overwrite the first.",
            "Give each entry of vllm_instances a name of its own.",
        )


def asked_for(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """GPUs that the node does not have."""
    known = aliases(snapshot)
    if not known:
        return
    # A site's own spec may give devices names of its own.
    in_specs = {name for spec in rows(snapshot, "cdi", "specs") for name in words(spec, "devices")}
    for instance in wanted.gpu_instances:
        unknown = [gpu for gpu in instance.gpus if gpu != "all" and gpu not in known and gpu not in in_specs]
        if unknown:
            yield fail(
                "gpu.unknown",
                f"instance {instance.name} asks for GPU {listed(unknown)}; the node has "
                f"{listed(sorted(name for name in known if len(name) < 8), 12)}",
                "There is no such device.",
                "Correct gpus of the instance; `nvidia-smi -L` on the node lists indices and UUIDs.",
            )


def served(_: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Two models behind one name: the gateway takes instances of one name for copies of each other."""
    if not wanted.gateway:
        return
    for first, second in combinations(wanted.instances, 2):
        if first.served == second.served and first.model != second.model:
            yield warn(
                "instance.served",
                f"instances {first.name} and {second.name} both serve {first.served}, from {first.model} and "
                f"{second.model}",
                "The gateway spreads the requests for a name over all that serve it: clients would get answers of "
                "either model.",
                "Give them different names (served_model_name). Copies of one model may share theirs.",
            )


def memory(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """What all instances together want of the host's memory."""
    total = number(snapshot, "memory", "total_bytes")
    sizes = {str(row.get("path")): number(row, "bytes") or 0 for row in rows(snapshot, "models")}
    if total is None or len(wanted.instances) < 2:
        return
    models = {each.model: sizes.get(str(each.model), 0) for each in wanted.instances}
    weights, shm = sum(models.values()), sum(each.shm_bytes or 0 for each in wanted.instances)
    reserve = wanted.limits.memory_reserve_gib * _GIB
    # One alone that does not fit has a finding of its own.
    if weights + shm + reserve > total and max(models.values()) + reserve <= total and shm <= total:
        yield warn(
            "memory.instances",
            f"{gib(total)} of memory; the {len(wanted.instances)} instances have {gib(weights)} of weights and "
            f"{gib(shm)} of shared memory together",
            "They load at the same time, and the page cache cannot hold the weights of all: a start reads them more "
            "than once.",
            "Count on slow starts (start_budget_s), lower shm_size, or serve fewer models on this node.",
        )


def ports(_: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Two units on one port."""
    for first, second in combinations(wanted.ports, 2):
        if first.number == second.number:
            yield fail(
                "port.shared",
                f"{first.variable} and {second.variable} are both {first.number}",
                "Only one of the two units can listen there.",
                f"Change one of them ({first.unit}, {second.unit}).",
            )


def kubernetes(snapshot: Snapshot, _: Wanted) -> Iterator[Finding]:
    """A node that already serves a cluster."""
    if at(snapshot, "units", "watched", "kubelet.service", "active") == "active":
        yield fail(
            "kubelet.running",
            "kubelet is running",
            "The node is part of a cluster, whose pods use the same GPUs and ports.",
            "Drain the node and stop kubelet first, or take a node outside of the cluster.",
        )


CHECKS = (
    names,
    asked_for,
    *checks_sharing.CHECKS,
    *checks_profiles.CHECKS,
    served,
    memory,
    ports,
    kubernetes,
)
