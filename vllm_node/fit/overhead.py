"""Memory beside weights and cache: activations of the largest step, CUDA graphs, libraries. A rule with its range."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_node.fit.figures import GIB, Span
from vllm_node.fit.settings import Settings
from vllm_node.fit.shape import Shape
from vllm_node.serving import defaults
from vllm_node.serving.flags.known import NEWEST, Version

HOW = (
    "rule of thumb: activations of max-num-batched-tokens, scores of max-num-seqs, CUDA graphs, libraries; only the "
    "profile run of vLLM itself tells it"
)
_ASYNC_SINCE: Version = (0, 14)
# vLLM works through a mixture of experts in pieces of so many tokens.
_EXPERT_CHUNK = 32768


@dataclass(frozen=True)
class Batch:
    """Limits of one step: those given, or vLLM's own for this GPU."""

    tokens: int
    requests: int
    steps_at_once: int

    @property
    def in_flight(self) -> int:
        """Tokens that may be computed at the same time."""
        return self.tokens * self.steps_at_once


def batch(settings: Settings, gpu: defaults.Gpu | None, version: Version | None) -> Batch:
    """Limits of one step. `gpu` None: the CPU build. Where the GPU or the version is not known: a small, a new one."""
    release = version or NEWEST
    tier = "cpu" if gpu is None else defaults.tier_of(gpu, release) or "small"
    usual = defaults.batch(
        release,
        tier,
        tokens=settings.max_num_batched_tokens,
        seqs=settings.max_num_seqs,
        context=settings.max_model_len,
        ranks=settings.tp * settings.pp,
    )
    ahead = settings.async_scheduling and gpu is not None and release >= _ASYNC_SINCE
    return Batch(usual.tokens, usual.seqs, settings.pp + (1 if ahead else 0))


def gpu(shape: Shape, settings: Settings, limits: Batch) -> Span:
    """Bytes on one GPU beside weights and cache."""
    wide = (shape.intermediate or 4 * shape.hidden) / settings.tp
    if shape.experts:
        chosen, width = shape.experts.chosen, shape.experts.intermediate / settings.tp
        tokens = min(limits.tokens, _EXPERT_CHUNK)
        layer = tokens * 2 * chosen * (max(2 * width, shape.hidden) + width + shape.hidden)
    else:
        layer = limits.tokens * 2 * 3 * wide
    activations = layer + limits.tokens * 2 * 6 * shape.hidden
    # Sampling keeps scores in 32 bits, and where it sorts them their places and sums as well.
    scores = float(limits.requests * (shape.vocab or 128_000))
    found = Span(activations * 0.5, activations, activations * 2) + Span(scores * 4, scores * 8, scores * 28)
    found += Span(0.1 * GIB, 0.3 * GIB, 2.0 * GIB)
    if settings.tp * settings.pp > 1:
        # Buffers of NCCL and of the all-reduce of its own.
        found += Span(0.2 * GIB, 0.7 * GIB, 2.0 * GIB)
    if not settings.eager:
        found += Span(0.1 * GIB, 0.6 * GIB, 2.0 * GIB)
    if shape.sees and not settings.text_only:
        # The encoder is tried with the largest picture that the model takes.
        found += Span(0.1 * GIB, 1.0 * GIB, 6.0 * GIB)
    return found
