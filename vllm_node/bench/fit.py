"""Fits a workload to a model: lengths to its context, the shared prefix to its share. What is changed is said."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from vllm_node.bench.facts import Facts, WorkloadError
from vllm_node.bench.presets import Workload
from vllm_node.load.asked import BLOCK_TOKENS
from vllm_node.load.generated import OWN_TOKENS, outline
from vllm_node.load.lengths import Lengths
from vllm_node.load.plan import Requests

# With more requests cut than this the percentiles of the workload are no longer its own.
MOST_CUT = 0.1
# So many requests are drawn to see how a workload fits; they are sent to nobody.
_DRAWN = 2000
# The words of a chat are up to two tokens each, and the model's template adds some.
_TOKENS_A_WORD, _TEMPLATE_TOKENS = 2, 64


@dataclass(frozen=True)
class Fitted:
    """A workload as it is sent to one model, with the words for what was changed."""

    workload: Workload
    context: int
    vocabulary: tuple[int, int]
    shared_prefix_tokens: int
    notices: tuple[str, ...]

    def requests(self) -> dict[str, Any]:
        """The part `requests` of a plan, but for its count."""
        own = self.workload
        found: dict[str, Any] = {
            "kind": "workflows" if own.steps else "generated",
            "vocabulary": list(self.vocabulary),
            "prompt_tokens": document(own.prompt_tokens),
            "output_tokens": document(own.output_tokens),
            "shared_prefix_tokens": self.shared_prefix_tokens,
            "context_tokens": self.context,
        }
        if own.steps:
            found["calls"] = document(own.steps.calls)
            found["new_tokens"] = document(own.steps.new_tokens)
            found["think_ms"] = document(own.steps.think_ms)
        return found


def document(lengths: Lengths) -> dict[str, Any]:
    """Lengths as a plan has them."""
    if lengths.p50 is None:
        return {"low": lengths.low, "high": lengths.high}
    found = {"p50": lengths.p50, "p95": lengths.p95, "p99": lengths.p99, "min": lengths.low, "max": lengths.high}
    return {name: value for name, value in found.items() if value is not None}


@lru_cache(maxsize=64)
def fit(workload: Workload, facts: Facts, api: str = "completions") -> Fitted:
    """The workload for this model.

    Raises:
        WorkloadError: it does not fit its context, or the share of the prefix cannot be reached.
    """
    context, notices = facts.max_model_len, []
    if api == "chat":
        context = (context - _TEMPLATE_TOKENS) // _TOKENS_A_WORD
        notices.append(
            f"chat messages are made of words, not of tokens: lengths are in words, and at most {context} of them are "
            f"sent into a context of {facts.max_model_len} tokens"
        )
    own = _answers(workload, context, notices, api)
    outlines, cut = _drawn(own, context)
    if cut > MOST_CUT:
        raise WorkloadError(_too_long(workload, context, api, cut))
    if cut:
        what = "workflows are ended early or begun shorter" if own.steps else "prompts are cut"
        notices.append(f"about {cut:.1%} of the {what} to fit a context of {context} tokens; the result counts them")
    shared = _prefix(own, [calls[0].prompt for calls in outlines])
    return Fitted(own, context, facts.vocabulary(), shared, tuple(notices))


def _answers(workload: Workload, context: int, notices: list[str], api: str) -> Workload:
    """Answers take half of the context at most: a prompt has to go in too."""
    lengths, most = workload.output_tokens, context // 2
    if lengths.high <= most:
        return workload
    if (lengths.p95 or lengths.high) > most or most < lengths.low:
        raise WorkloadError(_too_long(workload, context, api))
    notices.append(f"answers are at most {most} tokens, half of the context; the workload goes up to {lengths.high}")
    p99 = None if lengths.p99 is None else min(lengths.p99, most)
    return replace(workload, output_tokens=replace(lengths, high=most, p99=p99))


def _drawn(workload: Workload, context: int | None) -> tuple[list[Any], float]:
    """Lengths as the engine will draw them, and the share of those that were cut."""
    steps = workload.steps
    wanted = Requests(
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
        context_tokens=context,
        calls=steps.calls if steps else None,
        new_tokens=steps.new_tokens if steps else None,
        think_ms=steps.think_ms if steps else None,
    )
    found = [outline(random.Random(f"fit/{number}"), wanted) for number in range(_DRAWN)]  # noqa: S311 - no secret
    return [calls for calls, _ in found], sum(cut for _, cut in found) / _DRAWN


def _too_long(workload: Workload, context: int, api: str, cut: float | None = None) -> str:
    outlines, _ = _drawn(workload, None)
    longest = sorted(calls[-1].prompt + calls[-1].answer for calls in outlines)
    # Half of the context has to hold all but the longest answers, see `_answers`.
    enough = max(longest[round((1 - MOST_CUT) * (len(longest) - 1))], 2 * round(workload.output_tokens.p95 or 0))
    if api == "chat":
        enough = enough * _TOKENS_A_WORD + _TEMPLATE_TOKENS
    why = "its answers may take more than half of it" if cut is None else f"{cut:.0%} of its requests are longer"
    unit = "words" if api == "chat" else "tokens"
    return (
        f"the workload {workload.name} does not fit a context of {context} {unit}: {why}. Serve the model with a "
        f"max_model_len of at least {-(-enough // 256) * 256}, choose a shorter workload (smoke is the shortest), "
        "or bring your own requests"
    )


def _prefix(workload: Workload, prompts: Sequence[int]) -> int:
    """Length of a common prefix that makes the share as it is asked, as near as whole cache blocks come to it."""
    asked = workload.shared_prefix_share
    if not 0 <= asked < 1:
        raise WorkloadError(f"the shared prefix is a share of the prompts, at least 0 and below 1, not {asked!r}")
    total = sum(prompts)

    def share(tokens: int) -> float:
        return sum(_blocks(min(tokens, length - OWN_TOKENS)) for length in prompts) / total

    before, now, tokens = 0.0, 0.0, 0
    while now < asked:
        if tokens > max(prompts):
            raise WorkloadError(
                f"a shared prefix of {asked:.0%} cannot be made for the workload {workload.name}: each prompt keeps "
                f"{OWN_TOKENS} tokens of its own, and caches keep whole blocks of {BLOCK_TOKENS}, so {now:.0%} is the "
                "most"
            )
        tokens += BLOCK_TOKENS
        before, now = now, share(tokens)
    return tokens if now - asked <= asked - before else tokens - BLOCK_TOKENS


def _blocks(tokens: int) -> int:
    return max(0, tokens) // BLOCK_TOKENS * BLOCK_TOKENS
