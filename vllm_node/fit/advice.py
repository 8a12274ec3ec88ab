"""What to change when a model does not fit for certain: each change is reckoned through before it is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vllm_node.fit import kv, parallel
from vllm_node.fit.figures import GIB, size
from vllm_node.fit.machine import Machine
from vllm_node.fit.reckoning import Case, Sum, reckon

_SIXTEEN_BITS = ("float16", "half", "bfloat16", "float32", "float")
_EIGHT_BITS = "(the GPU has to know 8-bit floats; see what it does to the answers)"
_HIGHEST_SHARE = 0.95
# A context below this serves hardly anybody.
_SHORTEST = 1024
_MOST_GPUS = 16
# Of a best guess so much is counted on where not the worst case is meant.
_LIKELY = 0.9


def changes(case: Case, found: Sum) -> list[str]:
    """Ways that make it fit, the cheapest first; empty when it fits or nothing is known."""
    if found.verdict not in ("may_not_fit", "does_not_fit"):
        return []
    if found.given is not None:
        told = [*_other_cache(case, found), *_shorter(case, found), *_smaller_cache(case, found)]
    else:
        told = [*_shorter(case, found), *_smaller_cache(case, found), *_larger_share(case, found)]
        told += [*_less_beside(case, found), *_more_gpus(case, found), *_smaller_weights(case, found)]
    return told or ["no single change of settings makes it fit: take a smaller or quantised model, or larger GPUs"]


def _good(case: Case, before: Sum) -> str | None:
    """How well a changed case fits, as words for its end; None where it is no better than before."""
    found = reckon(case)
    if found.verdict == "fits":
        return ""
    if found.verdict != "may_not_fit" or before.verdict != "does_not_fit" or not _likely(found, found.length):
        return None
    return " (likely, not for certain)"


def _likely(found: Sum, length: int | None) -> bool:
    if found.cache is None or found.available is None or length is None:
        return False
    return found.cache.holds(max(0.0, found.available.best * _LIKELY), length)


def _longest(found: Sum) -> int | None:
    """The longest request that fits for certain, or else that is likely to, as a round number."""
    if found.cache is None or found.available is None or found.length is None:
        return None
    for memory in (found.available.low, found.available.best * _LIKELY):
        longest = found.cache.longest(max(0.0, memory), found.length - 1)
        longest -= longest % (1024 if longest >= 16384 else 256)
        if longest >= _SHORTEST:
            return longest
    return None


def _shorter(case: Case, found: Sum) -> Iterator[str]:
    longest = None if case.settings.fits_itself else _longest(found)
    if longest is None:
        return
    good = _good(case.with_settings(max_model_len=longest), found)
    if good is not None:
        yield f"max-model-len: {longest} (now {found.length}), if no request needs more{good}"


def _smaller_cache(case: Case, found: Sum) -> Iterator[str]:
    if case.machine.cpu or kv.kv_dtype(case.shape, case.settings) not in _SIXTEEN_BITS:
        return
    smaller = case.with_settings(kv_dtype="fp8")
    good = _good(smaller, found)
    if good is not None:
        yield f"kv-cache-dtype: fp8: half the memory for each token {_EIGHT_BITS}{good}"
        return
    longest = _longest(reckon(smaller))
    if longest is None or longest <= (_longest(found) or 0):
        return
    good = _good(smaller.with_settings(max_model_len=longest), found)
    if good is not None:
        yield f"kv-cache-dtype: fp8 together with max-model-len: {longest}{good}"


def _larger_share(case: Case, found: Sum) -> Iterator[str]:
    if case.machine.cpu or case.machine.others or found.share >= _HIGHEST_SHARE:
        return
    good = _good(case.with_settings(utilization=_HIGHEST_SHARE), found)
    if good is not None:
        yield f"gpu-memory-utilization: {_HIGHEST_SHARE:g} (now {found.share:g}), if nothing else uses the GPU{good}"


def _less_beside(case: Case, found: Sum) -> Iterator[str]:
    if case.machine.cpu or case.settings.eager:
        return
    good = _good(case.with_settings(eager=True), found)
    if good is not None:
        yield f"enforce-eager: true: no CUDA graphs, at the price of slower tokens{good}"


def _more_gpus(case: Case, found: Sum) -> Iterator[str]:
    machine, settings, gpu = case.machine, case.settings, case.machine.smallest
    if machine.cpu or machine.in_parts or gpu is None:
        return
    for tp in parallel.possible(case.shape, _MOST_GPUS, settings):
        need = tp * settings.pp * settings.dp
        gpus = tuple(replace(gpu, name=str(number)) for number in range(need))
        wider = replace(case, settings=replace(settings, tp=tp), machine=replace(machine, gpus=gpus, others=()))
        good = None if tp <= settings.tp else _good(wider, found)
        if good is not None:
            yield f"tensor-parallel-size: {tp} {_where(machine, need)}{good}"
            if not good:
                return


def _where(machine: Machine, need: int) -> str:
    given, present = len(machine.gpus or ()), machine.present
    if given >= need:
        return f"on the {given} GPUs that the instance has"
    if present is not None and present >= need:
        return f"on {need} GPUs (the instance has {given}, the node {present})"
    gpu = machine.smallest
    each = "the same size" if gpu is None or gpu.total_bytes is None else size(gpu.total_bytes)
    return f"on {need} GPUs of {each}" + ("" if present is None else f" (the node has {present})")


def _smaller_weights(case: Case, found: Sum) -> Iterator[str]:
    if case.machine.cpu or case.shape.quantization or case.settings.quantization:
        return
    good = _good(case.with_settings(quantization="fp8"), found)
    if good is not None:
        yield f"quantization: fp8, or a checkpoint that is quantised already: half the weights {_EIGHT_BITS}{good}"


def _other_cache(case: Case, found: Sum) -> Iterator[str]:
    """Memory for the cache that is given outright: how much the GPU has for it, how much one request needs."""
    if found.cache is None or found.length is None or found.given is None:
        return
    need = (found.cache.request_blocks(found.length) + 1) * found.cache.block_bytes
    if case.machine.cpu:
        if case.settings.cpu_kv_bytes is not None:
            yield f"VLLM_CPU_KVCACHE_SPACE: {-(-int(need) // GIB)} (GiB): one request of {found.length} tokens needs it"
        return
    room = found.room
    if room is not None and room.low < found.given and room.low >= need:
        yield f"kv-cache-memory-bytes: {int(room.low)} at most ({size(room.low)}), instead of {size(found.given)}"
    elif room is None or need <= room.low:
        yield f"kv-cache-memory-bytes: {int(need)} at least ({size(need)}), for one request of {found.length} tokens"
