"""The sum itself: budget less weights less overhead is what the KV cache gets, and whether that is enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from vllm_node.fit import kv, overhead, weights
from vllm_node.fit.figures import GIB, NOTHING, Span, exactly
from vllm_node.fit.machine import Gpu, Machine
from vllm_node.fit.settings import Settings
from vllm_node.fit.shape import Shape
from vllm_node.fit.weights import Weights
from vllm_node.serving import defaults
from vllm_node.serving.flags.known import Version

Verdict = Literal["fits", "may_not_fit", "does_not_fit", "unknown"]
# Memory of vLLM's own process on a CPU beside the weights: 0.32.0 had 0.61 GiB with a model of a few MiB.
_CPU_PROCESS = Span(0.5 * GIB, 0.6 * GIB, 2.0 * GIB)


@dataclass(frozen=True)
class Case:
    """A model with its settings on a machine. `counted`, `files_bytes`: what the snapshot knows of the weights."""

    shape: Shape
    settings: Settings
    machine: Machine
    counted: Mapping[str, Any] | None = None
    files_bytes: float | None = None
    version: Version | None = None

    def with_settings(self, **changes: Any) -> Case:
        """The same with some settings changed."""
        return replace(self, settings=replace(self.settings, **changes))


@dataclass(frozen=True)
class Sum:
    """Spans in bytes on one GPU; None where something is not known.

    length: of the longest request, in tokens. given: memory of the cache where it is set and not measured. room: what
    the GPU has for the cache when all of its memory may be used.
    """

    weights: Weights
    budget: Span | None
    overhead: Span
    available: Span | None
    cache: kv.Cache | None
    length: int | None
    share: float
    share_how: str
    verdict: Verdict
    why: str
    given: float | None = None
    room: Span | None = None


def reckon(case: Case) -> Sum:
    """The sum for one case."""
    settings, machine, shape = case.settings, case.machine, case.shape
    gpu = machine.smallest
    usable = gpu.usable if gpu else None
    limits = overhead.batch(settings, None if machine.cpu else _tells(gpu), case.version)
    held = weights.per_gpu(shape, case.counted, case.files_bytes, settings)
    beside = NOTHING if machine.cpu else overhead.gpu(shape, settings, limits)
    share, share_how = settings.share(case.version)
    cache = kv.cut(shape, settings, cpu=machine.cpu, in_flight=limits.in_flight)
    budget = _budget(machine, usable, share)
    given = settings.cpu_kv_bytes if machine.cpu and settings.cpu_kv_bytes is not None else settings.kv_bytes
    if settings.blocks is not None and cache is not None:
        given = int(settings.blocks * cache.block_bytes)
    available = exactly(given) if given is not None else _left(machine, budget, held.gpu, beside)
    room = _left(machine, usable, held.gpu, beside)
    length = settings.max_model_len or shape.context
    verdict, why = _judge(case, cache, available, length, given, room)
    return Sum(held, budget, beside, available, cache, length, share, share_how, verdict, why, given, room)


def _tells(gpu: Gpu | None) -> defaults.Gpu:
    """The GPU as vLLM's defaults go by it."""
    if gpu is None or gpu.total_bytes is None:
        return defaults.Gpu(gpu.product if gpu else None, None)
    return defaults.Gpu(gpu.product, int(gpu.total_bytes))


def _budget(machine: Machine, usable: Span | None, share: float) -> Span | None:
    if machine.cpu:
        return None if machine.memory_bytes is None else exactly(machine.memory_bytes * share)
    return None if usable is None else usable.times(share)


def _left(machine: Machine, budget: Span | None, held: Span | None, beside: Span) -> Span | None:
    if budget is None or held is None:
        return None
    own = _CPU_PROCESS if machine.cpu else NOTHING
    taken = held + beside + own
    return Span(budget.low - taken.high, budget.best - taken.best, budget.high - taken.low)


def _judge(
    case: Case,
    cache: kv.Cache | None,
    available: Span | None,
    length: int | None,
    given: int | None,
    room: Span | None,
) -> tuple[Verdict, str]:
    # Memory that is given to the cache outright counts against the whole GPU.
    if given is not None and room is not None and given > room.high:
        return "does_not_fit", "weights, overhead and the memory asked for the KV cache are more than the GPU has"
    if available is None or cache is None or length is None:
        return "unknown", "what is needed for a verdict is not known"
    if available.high <= 0:
        return "does_not_fit", "the weights alone take all memory that vLLM may use"
    # With max-model-len auto vLLM takes the longest request that fits: any will do.
    wanted = 1 if case.settings.fits_itself else length
    if not cache.holds(available.high, wanted):
        return "does_not_fit", f"not one request of {length} tokens fits into the KV cache, and vLLM does not start"
    if not cache.holds(max(available.low, 0), wanted):
        return "may_not_fit", f"one request of {length} tokens fits by less than what the figures may be off by"
    if given is not None and room is not None and given > room.low:
        return "may_not_fit", "weights, overhead and the memory asked for the KV cache may be more than the GPU has"
    return "fits", f"a request of {length} tokens fits, even when all figures lie at the bad end of their ranges"
