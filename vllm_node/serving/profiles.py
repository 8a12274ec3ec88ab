"""Profiles: what an instance is for, as flags of vLLM, each with its reason and the versions for which it is true.

A profile holds what makes a difference and no more: chunked prefill and prefix caching are on without being asked for,
and a value that is vLLM's own default on the GPU at hand is not written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm_node.serving.defaults import Tier
from vllm_node.serving.flags.known import Version

CUSTOM = "custom"
# A burst of a few requests is no overload, however few can run.
LEAST_WAITING = 16


@dataclass(frozen=True)
class OfRunning:
    """A number of requests: so many times those that may run at once, over all data-parallel ranks."""

    times: float

    def of(self, running: int) -> int:
        """The number for an instance that runs so many; a handful more are never refused."""
        return max(math.ceil(self.times * running), running + LEAST_WAITING)


Scalar = int | str
# One for all, or one a size of GPU: a size that is missing keeps vLLM's default.
Values = Scalar | OfRunning | Mapping[Tier, Scalar]


@dataclass(frozen=True)
class ProfileValue:
    """A flag of a profile. It is written for versions from `since` on, where vLLM would do otherwise by itself."""

    flag: str
    values: Values
    reason: str
    since: Version


@dataclass(frozen=True)
class Profile:
    """`aim` is the end of the sentence "it is for …"."""

    name: str
    aim: str
    values: tuple[ProfileValue, ...] = field(default=())


_TOKENS, _SEQS, _QUEUE = "max-num-batched-tokens", "max-num-seqs", "max-num-queued-reqs"
# Versions before these do not have the flag.
_ALWAYS: Version = (0, 10)
_STREAM_SINCE: Version = (0, 11, 1)
_MODE_SINCE: Version = (0, 17)
_QUEUE_SINCE: Version = (0, 29)

_INTERACTIVE = Profile(
    "interactive",
    "people who read along: an early first token, and even spacing of the rest",
    (
        ProfileValue(
            _TOKENS,
            {"large": 2048, "huge": 4096},
            "Running answers wait while a step works on new prompts, and a step takes up to this many tokens of "
            "them. vLLM's default for this GPU favours throughput; this one keeps the spacing even, and the prompt "
            "of a chat still fits into a step or two.",
            _ALWAYS,
        ),
        ProfileValue(
            _SEQS,
            {"large": 256, "huge": 256},
            "Each answer that runs makes every step longer for all others. Beyond some hundred, requests had better "
            "wait before their first token than stretch the spacing of all.",
            _ALWAYS,
        ),
        ProfileValue(
            _QUEUE,
            OfRunning(1.25),
            "Running and waiting requests together. One that finds a quarter as many in front of it as can run would "
            "wait for about a quarter of an answer's time; beyond that it is refused at once (503), and can go "
            "elsewhere.",
            _QUEUE_SINCE,
        ),
        ProfileValue(
            "performance-mode",
            {"small": "interactivity", "large": "interactivity", "huge": "interactivity"},
            "A CUDA graph for each batch size up to 32 instead of a few, so that small batches are not padded up to "
            "the next size. It costs some seconds at start and a little memory.",
            _MODE_SINCE,
        ),
    ),
)

_RAG = Profile(
    "rag",
    "long prompts with short answers: throughput, while a first token still comes in time",
    (
        ProfileValue(
            _TOKENS,
            {"small": 4096, "large": 16384, "huge": 16384},
            "A prompt of many thousand tokens is done in fewer steps, which brings its first token sooner and keeps "
            "the GPU busy. It costs some KV cache, as memory for a step of this size is set aside; spacing gets less "
            "even.",
            _ALWAYS,
        ),
        ProfileValue(
            _SEQS,
            {"small": 64, "large": 128, "huge": 256},
            "Each request holds the KV cache of a long prompt. With more of them the cache runs out while they "
            "answer, and a request that is put back computes its long prompt again.",
            _ALWAYS,
        ),
        ProfileValue(
            _QUEUE,
            OfRunning(2),
            "Running and waiting requests together. As many may wait as run; a queue without end would let every "
            "request miss its time once more arrive than can be served. What is above is refused (503).",
            _QUEUE_SINCE,
        ),
    ),
)

_AGENT = Profile(
    "agent",
    "programs that call again and again with a common beginning: no wait before a call, beginnings stay cached",
    (
        ProfileValue(
            _TOKENS,
            {"large": 4096, "huge": 8192},
            "Most of a call's prompt comes out of the prefix cache, so few of its tokens are left for a step. A "
            "smaller step sets less memory aside, which the KV cache of beginnings gets, and the calls beside it are "
            "held up less.",
            _ALWAYS,
        ),
        ProfileValue(
            _SEQS,
            {"small": 512},
            "Every wait adds to a chain of calls, and agents call side by side. Calls that begin alike share the KV "
            "cache of that beginning, so that more of them fit than requests of a chat.",
            _ALWAYS,
        ),
    ),
)

_BATCH = Profile(
    "batch",
    "work that nobody waits for: throughput only",
    (
        ProfileValue(
            _TOKENS,
            {"small": 8192, "large": 16384, "huge": 16384},
            "What vLLM takes by itself where it is used without a server: larger steps use the GPU better, and "
            "nobody minds that answers come unevenly.",
            _ALWAYS,
        ),
        ProfileValue(
            _SEQS,
            {"small": 512},
            "More answers in each step, for as long as the KV cache holds them: each one comes later, all of them "
            "together sooner.",
            _ALWAYS,
        ),
        ProfileValue(
            "stream-interval",
            10,
            "Where answers are streamed at all, ten tokens go out together (the first one by itself), which saves "
            "work of the CPU for each token.",
            _STREAM_SINCE,
        ),
    ),
)

PROFILES: Mapping[str, Profile] = {
    each.name: each
    for each in (
        _INTERACTIVE,
        _RAG,
        _AGENT,
        _BATCH,
        Profile(CUSTOM, "sites that choose every flag themselves: nothing is added"),
    )
}
