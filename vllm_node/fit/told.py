"""The figures of a plan, each with its word and where it comes from, and what a plan cannot tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vllm_node.fit import kv, weights
from vllm_node.fit.figures import Figure, Span, Word, unobservable
from vllm_node.fit.overhead import HOW as OVERHEAD_HOW
from vllm_node.fit.reckoning import Case, Sum

NAMES = (
    "weights_total", "gpu_memory", "budget", "weights_gpu", "overhead", "kv_memory", "kv_token_bytes", "block_size",
    "blocks", "kv_tokens", "max_model_len", "full_requests",
)  # fmt: skip


def figures_of(case: Case, found: Sum) -> Iterator[Figure]:
    """All figures, in the order of a sum; each of `NAMES` once."""
    machine, settings, shape = case.machine, case.settings, case.shape
    place = "the node" if machine.cpu else "each GPU"
    total = weights.total(case.counted)
    if total is not None:
        yield Figure("weights_total", total, "bytes", "measured", "safetensors headers")
    elif case.files_bytes is not None:
        yield Figure("weights_total", case.files_bytes, "bytes", "measured", "sizes of the model's files")
    else:
        yield unobservable("weights_total", "bytes", "the model's files were not seen")
    gpu = machine.smallest
    if machine.cpu:
        yield _known("gpu_memory", machine.memory_bytes, "bytes", "measured", "memory of the node: vLLM runs on CPU")
    elif gpu is None:
        yield unobservable("gpu_memory", "bytes", "the node's GPUs are not known")
    elif gpu.reserved_bytes is None:
        how = "the GPU's memory, less up to 2 % that the driver keeps"
        yield _span("gpu_memory", gpu.usable, "bytes", "inferred", how)
    else:
        yield _span("gpu_memory", gpu.usable, "bytes", "measured", "nvidia-smi: total less what the driver keeps")
    how = f"{found.share:g} of it: {found.share_how}"
    yield _span("budget", found.budget, "bytes", "derived", how)
    counted: Word = "derived" if case.counted else "inferred"
    yield _span("weights_gpu", found.weights.gpu, "bytes", counted, found.weights.how)
    if machine.cpu:
        yield unobservable("overhead", "bytes", "not part of the budget on a CPU")
    else:
        yield _span("overhead", found.overhead, "bytes", "inferred", OVERHEAD_HOW)
    fixed = found.available is not None and found.available.low == found.available.high
    how = "as it is set" if fixed else f"what is left on {place}: budget less weights and overhead"
    yield _span("kv_memory", found.available, "bytes", _word(fixed), how)
    yield from _tokens(case, found, fixed)
    length = found.length
    how = "max-model-len of the instance" if settings.max_model_len else "config.json: what the model was made for"
    if settings.fits_itself:
        yield from _fitted(found)
    elif length is None:
        yield unobservable("max_model_len", "tokens", "neither max-model-len nor config.json tells it")
    else:
        word: Word = "derived" if settings.max_model_len else "measured"
        yield Figure("max_model_len", length, "tokens", word, how)
    if shape.dtype_bytes and found.cache is not None and found.available is not None and length:
        spread = _each(found, lambda memory: found.cache.capacity(max(memory, 0), length)[0] if found.cache else 0)
        yield _span("full_requests", spread, "requests", _word(fixed), "tokens over max-model-len")
    else:
        yield unobservable("full_requests", "requests", "KV memory or max-model-len is not known")


def _fitted(found: Sum) -> Iterator[Figure]:
    """With max-model-len auto vLLM takes the longest that fits."""
    if found.cache is None or found.available is None or found.length is None:
        yield unobservable("max_model_len", "tokens", "vLLM takes what fits, and what fits is not known")
        return
    cache, most = found.cache, found.length
    spread = _each(found, lambda memory: cache.longest(max(memory, 0), most))
    yield _span("max_model_len", spread, "tokens", "inferred", "max-model-len auto: the longest request that fits")


def _tokens(case: Case, found: Sum, fixed: bool) -> Iterator[Figure]:
    cache, length = found.cache, found.length
    dtype = kv.kv_dtype(case.shape, case.settings)
    if cache is None:
        why = f"the size of kv-cache-dtype {dtype} is not known here"
        yield unobservable("kv_token_bytes", "bytes", why)
        yield unobservable("block_size", "tokens", why)
        yield unobservable("blocks", "blocks", why)
        yield unobservable("kv_tokens", "tokens", why)
        return
    heads = "one latent for all heads" if case.shape.latent else f"{case.shape.kv_heads} KV heads"
    where = "" if case.machine.cpu else " on one GPU,"
    how = f"layers, {heads}, elements of {dtype};{where} on the average of a request of full length"
    if length is None:
        yield unobservable("kv_token_bytes", "bytes", "the length of a request is not known")
    else:
        yield Figure("kv_token_bytes", cache.token_bytes(length), "bytes", "derived", how)
    chosen = case.settings.block_size is not None
    how = "block-size of the instance" if chosen else "vLLM's usual choice; the attention kernel may want another"
    yield Figure("block_size", cache.block_size, "tokens", "derived" if chosen else "inferred", how)
    word = _word(fixed)
    if found.available is None:
        yield unobservable("blocks", "blocks", "KV memory is not known")
        yield unobservable("kv_tokens", "tokens", "KV memory is not known")
        return
    blocks = _each(found, lambda memory: cache.blocks(max(memory, 0)))
    yield _span("blocks", blocks, "blocks", word, "KV memory over the bytes of a block")
    if length is None:
        yield unobservable("kv_tokens", "tokens", "the length of a request is not known")
        return
    tokens = _each(found, lambda memory: cache.capacity(max(memory, 0), length)[1])
    yield _span("kv_tokens", tokens, "tokens", word, "blocks, at requests of full length, as vLLM counts it")


def _each(found: Sum, of: Any) -> Span | None:
    memory = found.available
    return None if memory is None else Span(of(memory.low), of(memory.best), of(memory.high))


def _span(name: str, span: Span | None, unit: str, word: Word, how: str) -> Figure:
    if span is None:
        return unobservable(name, unit, "something that it depends on is not known")
    low, high = (None, None) if span.low == span.high else (span.low, span.high)
    return Figure(name, span.best, unit, word, how, low, high)


def _known(name: str, value: float | None, unit: str, word: Word, how: str) -> Figure:
    if value is None:
        return unobservable(name, unit, "the snapshot does not tell it")
    return Figure(name, value, unit, word, how)


def _word(fixed: bool) -> Word:
    """What follows from a memory that is set is derived; what follows from one that is guessed is inferred."""
    return "derived" if fixed else "inferred"


def untold_of(case: Case, found: Sum) -> Iterator[str]:
    """What this plan could not tell, in words."""
    yield from case.shape.untold
    yield from case.settings.untold
    yield from found.weights.untold
    if case.shape.kinds.get("state") and case.shape.gdn is None:
        yield "the size of the state of layers without attention: tokens that fit are at most these"
    if case.shape.sees and not case.settings.text_only:
        yield "how much memory the encoder of pictures or sound takes when it is tried"
    if found.cache is None:
        yield f"how large an element of kv-cache-dtype {kv.kv_dtype(case.shape, case.settings)} is"
    if not case.machine.cpu and case.settings.tp > 1 and case.machine.fabric is None:
        yield f"whether the GPUs share a fabric: {case.machine.links or 'their links are not known'}"
    if case.machine.gpus is None:
        yield "the GPUs of the node"
