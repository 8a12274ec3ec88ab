"""How a model is cut over the GPUs of an instance, and what speaks against it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from vllm_node.fit import parallel
from vllm_node.fit.reckoning import Case

_MOST_SIZES = 8


@dataclass(frozen=True)
class Reason:
    """Something about how the model is cut over GPUs. `stop`: vLLM does not start so."""

    kind: Literal["size", "parts", "count", "fabric", "share"]
    level: Literal["stop", "warn"]
    seen: str
    why: str
    mend: str


def reasons_of(case: Case) -> Iterator[Reason]:
    """What speaks against it, in the order in which a person would mend it."""
    settings, machine, shape = case.settings, case.machine, case.shape
    given = None if machine.gpus is None else len(machine.gpus)
    why_not = parallel.why_not(shape, settings.tp, settings)
    sizes = ", ".join(map(str, parallel.possible(shape, max(machine.present or 0, _MOST_SIZES), settings)))
    if why_not:
        yield Reason(
            "size",
            "stop",
            f"tensor-parallel-size {settings.tp}: {why_not}",
            "vLLM refuses to cut the model so, when it starts.",
            f"Set tensor-parallel-size to one of {sizes}, and give the instance as many GPUs.",
        )
    if machine.in_parts and settings.gpus > 1:
        yield Reason(
            "parts",
            "stop",
            f"the model is to be cut over {settings.gpus} GPUs, and there are MIG devices among them",
            "MIG devices do not reach each other: NCCL fails.",
            "Give each MIG device an instance of its own with tensor-parallel-size 1, or turn MIG off on these GPUs.",
        )
    if given is None or machine.cpu:
        return
    if settings.gpus > given:
        yield Reason(
            "count",
            "stop",
            f"the settings need {settings.gpus} GPUs (tensor {settings.tp}, pipeline {settings.pp}, data {settings.dp} "
            f"parallel), and the instance has {given}",
            "vLLM sees the GPUs of its container only, and stops without enough of them.",
            f"Give it {settings.gpus} GPUs, or set tensor-parallel-size to {given}.",
        )
    elif settings.gpus < given:
        yield Reason(
            "count",
            "warn",
            f"the settings use {settings.gpus} of {given} GPUs",
            "The others stay idle: nobody else may use them.",
            f"Set tensor-parallel-size so that all are used (possible: {sizes}), or take the GPUs out of gpus.",
        )
    if settings.tp > 1 and machine.fabric == "none":
        yield Reason(
            "fabric",
            "warn",
            f"tensor-parallel-size {settings.tp} over GPUs without NVLink between them: {machine.links}",
            "After every layer all GPUs exchange their parts: over PCIe that is most of the time of a token.",
            "Take GPUs that share a fabric, or pipeline-parallel-size, or an instance for each GPU.",
        )
    taken = settings.share(case.version)[0] + sum(share for _, share in machine.others)
    if machine.others and taken > 1:
        names = ", ".join(f"{name} ({share:g})" for name, share in machine.others)
        yield Reason(
            "share",
            "stop",
            f"gpu-memory-utilization adds up to {taken:.2f} on a GPU that is shared with {names}",
            "Each takes its share of the whole memory at its start, and the last one finds too little.",
            "Lower them so that they add up to at most 0.95 together.",
        )
