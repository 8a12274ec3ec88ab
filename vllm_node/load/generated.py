"""Requests made from lengths and a seed: each on its own, or as the calls of workflows."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_node.load.plan import Plan, Requests

# Fields of a request that are not sent: seconds after the answer to the one before, and that it was cut to fit.
# Names that no API has: they are taken out of a body before it is sent.
FOLLOWS, CUT = "follows_after_s", "cut_by_generator"
# No prompt is all prefix: two of them would be one request that is sent twice.
OWN_TOKENS = 8

# For chat, whose messages are text: words of one or two tokens in most vocabularies.
# fmt: off
_WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state",
    "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system",
    "program", "question", "work", "government", "number", "night", "point", "home", "water", "room", "mother",
    "area", "money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business",
    "issue", "side", "kind", "head", "house", "service", "friend",
)
# fmt: on


@dataclass(frozen=True)
class Call:
    """Lengths of one request in tokens, and the thinking before it."""

    prompt: int
    answer: int
    think_ms: int = 0


def outline(draw: random.Random, wanted: Requests) -> tuple[list[Call], bool]:
    """The calls of one workflow, or one request, and whether something was cut to fit the context.

    A first prompt that is too long is cut. A workflow that reaches the end of the context is over, as in real life.
    """
    assert wanted.prompt_tokens is not None
    assert wanted.output_tokens is not None
    room = math.inf if wanted.context_tokens is None else wanted.context_tokens
    length, answer = wanted.prompt_tokens.draw(draw), wanted.output_tokens.draw(draw)
    cut = length + answer > room
    calls = [Call(int(min(length, room - answer)), answer)]
    if wanted.calls is None:
        return calls, cut
    assert wanted.new_tokens is not None
    for _ in range(1, wanted.calls.draw(draw)):
        length, answer = calls[-1].prompt + answer + wanted.new_tokens.draw(draw), wanted.output_tokens.draw(draw)
        think_ms = wanted.think_ms.draw(draw) if wanted.think_ms else 0
        if length + answer > room:
            return calls, True
        calls.append(Call(length, answer, think_ms))
    return calls, cut


def generated(plan: Plan, purpose: str, count: int) -> Iterator[Mapping[str, Any]]:
    """`count` requests, or the calls of `count` workflows; the same plan and purpose give the same ones."""
    wanted = plan.requests
    # The prefix is the same for the warm-up and for all repeats: that is what sharing means.
    prefix = _tokens(random.Random(f"{plan.seed}/prefix"), plan.api, wanted, wanted.shared_prefix_tokens)  # noqa: S311
    for number in range(count):
        draw = random.Random(plan.seed_for(f"{purpose}/{number}"))  # noqa: S311 - repeatable on purpose
        calls, cut = outline(draw, wanted)
        tokens = prefix[: max(0, calls[0].prompt - OWN_TOKENS)]
        for at, call in enumerate(calls):
            # A prompt begins with the one before; the rest of it stands for the answer to that, and for what is new.
            tokens = [*tokens, *_tokens(draw, plan.api, wanted, call.prompt - len(tokens))]
            extra = {FOLLOWS: call.think_ms / 1000} if at else {CUT: True} if cut else {}
            yield _content(plan.api, tokens, call.answer, extra)


def _content(api: str, tokens: list[Any], asked: int, extra: Mapping[str, Any]) -> dict[str, Any]:
    # The length is the workload's, so the model may not end before it; what it says then is often a token that ends a
    # text, and such a one would have no text of its own.
    going_on = {"ignore_eos": True, "skip_special_tokens": False}
    return {**_prompt(api, tokens), "max_tokens": asked, **going_on, **extra}


def _tokens(draw: random.Random, api: str, wanted: Requests, count: int) -> list[Any]:
    return draw.choices(range(*wanted.vocabulary) if api == "completions" else _WORDS, k=count)


def _prompt(api: str, tokens: list[Any]) -> dict[str, Any]:
    if api == "completions":
        return {"prompt": tokens}
    return {"messages": [{"role": "user", "content": " ".join(tokens)}]}
