"""What vLLM does where nobody says otherwise: by version, and by the GPU that it finds.

Read in vLLM's sources of the releases 0.10.2 to 0.33.0. Of other versions nothing is claimed, but that one which is
newer than all of these is taken to do as the newest of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from vllm_node.serving.flags.known import Version

OLDEST: Version = (0, 10)

# What the defaults of a batch go by. `small` also holds A100s of any size: they lose throughput with large batches.
Tier = Literal["cpu", "small", "large", "huge"]

_GIB = 1 << 30
_LARGE_BYTES, _HUGE_BYTES = 70 * _GIB, 160 * _GIB
_HUGE_SINCE: Version = (0, 28)
_GB10_SMALL_SINCE: Version = (0, 33)
_THROUGHPUT_SINCE: Version = (0, 17)


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a MIG device, as nvidia-smi names it; None is not known. `memory_bytes` is its whole memory."""

    name: str | None
    memory_bytes: int | None


@dataclass(frozen=True)
class Batch:
    """`tokens` is max-num-batched-tokens, `seqs` is max-num-seqs."""

    tokens: int
    seqs: int


# Of `vllm serve`; offline use of the library has other ones. On a CPU for each rank of the model.
_BATCHES: dict[Tier, Batch] = {
    "cpu": Batch(2048, 128),
    "small": Batch(2048, 256),
    "large": Batch(8192, 1024),
    "huge": Batch(16384, 1024),
}


def tier_of(gpu: Gpu, version: Version) -> Tier | None:
    """Which of the GPU's sizes vLLM takes its defaults for; None where its memory is not known."""
    name = (gpu.name or "").lower()
    if "gb10" in name:
        # It shares the host's memory, and nvidia-smi tells none of its own.
        return "small" if version >= _GB10_SMALL_SINCE else "large"
    if gpu.memory_bytes is None:
        return None
    if gpu.memory_bytes >= _HUGE_BYTES:
        return "huge"
    return "large" if gpu.memory_bytes >= _LARGE_BYTES and "a100" not in name else "small"


def batch(
    version: Version,
    tier: Tier,
    *,
    tokens: int | None = None,
    seqs: int | None = None,
    context: int | None = None,
    ranks: int = 1,
    throughput: bool = False,
) -> Batch:
    """What vLLM makes of a batch of which `tokens` and `seqs` are given or left to it.

    context: max-model-len, where it is given: a default never exceeds what so many requests can need. ranks: tensor-
    and pipeline-parallel ones. throughput: `performance-mode: throughput`, which doubles both defaults.
    """
    usual = _BATCHES["large" if tier == "huge" and version < _HUGE_SINCE else tier]
    times = ranks if tier == "cpu" else 1
    if throughput and version >= _THROUGHPUT_SINCE:
        times *= 2
    found_seqs = seqs if seqs is not None else usual.seqs * times
    found_tokens = tokens
    if found_tokens is None:
        found_tokens = usual.tokens * times
        if context is not None:
            found_tokens = min(found_tokens, found_seqs * context)
    if seqs is None:
        found_seqs = min(found_seqs, found_tokens)
    return Batch(found_tokens, found_seqs)


def memory_share(version: Version | None) -> float:
    """gpu-memory-utilization; of an unknown version that of the newest."""
    return 0.92 if version is None or version >= (0, 20) else 0.9


@dataclass(frozen=True)
class Default:
    """A default that does not hang on the GPU. `value` of a version; None as a value stands for nothing set."""

    flag: str
    value: Callable[[Version], Any]
    reason: str


# What an operator asks about; the page of the image lists the rest.
DEFAULTS: tuple[Default, ...] = (
    Default(
        "gpu-memory-utilization",
        memory_share,
        "Share of the whole memory of each GPU that this instance may use, weights and KV cache together.",
    ),
    Default(
        "max-model-len",
        lambda _: None,
        "As long as the model was made for. It limits one request, and does not make the KV cache larger or smaller.",
    ),
    Default("tensor-parallel-size", lambda _: 1, "One GPU holds the whole model."),
    Default(
        "enable-chunked-prefill",
        lambda _: True,
        "Long prompts are worked on in pieces, beside the answers that run; on for all models that generate.",
    ),
    Default(
        "enable-prefix-caching",
        lambda _: True,
        "The KV cache of a beginning that was seen before is used again; on where the model can do it.",
    ),
    Default(
        "async-scheduling",
        lambda version: version >= (0, 14),
        "The next step is planned while the GPU works on this one; on since 0.14 where nothing else of the set-up "
        "speaks against it.",
    ),
    Default("stream-interval", lambda version: 1 if version >= (0, 11, 1) else None, "Each token is sent by itself."),
    Default(
        "max-num-queued-reqs",
        lambda _: None,
        "The queue has no end: under too much load all requests wait for longer and longer.",
    ),
    Default("kv-cache-dtype", lambda _: "auto", "As the model's checkpoint says; mostly the type of its weights."),
)
