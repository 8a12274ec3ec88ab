"""Instances against each other and against the node's devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from vllm_node.preflight.devices import Device, aliases, common, meant
from vllm_node.preflight.findings import Finding, fail
from vllm_node.preflight.reading import Snapshot, at, listed, rows, words
from vllm_node.preflight.wanted import Instance, Wanted


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


def shared(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Two instances on one GPU, also under different names of it."""
    known = aliases(snapshot)
    for first, second in combinations(wanted.gpu_instances, 2):
        both = _both(known, first, second)
        if both:
            yield fail(
                "gpu.shared",
                f"instances {first.name} and {second.name} both use {listed(both)}",
                "Each takes nearly all memory of its GPUs at start, so the second fails.",
                "Give each instance GPUs of its own, or split a GPU into MIG devices.",
            )


def _both(known: dict[str, Device] | None, first: Instance, second: Instance) -> list[str]:
    if known:
        devices = common(meant(known, first.gpus), meant(known, second.gpus))
        return [
            f"GPU {gpu}" if mig is None else f"MIG device {gpu}:{mig}"
            for gpu, mig in sorted(devices, key=str)
        ]
    # The devices are not known: only the names can be compared.
    if "all" in (*first.gpus, *second.gpus):
        return ["all GPUs"]
    return [f"GPU {gpu}" for gpu in first.gpus if gpu in second.gpus]


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


CHECKS = (names, asked_for, shared, ports, kubernetes)
