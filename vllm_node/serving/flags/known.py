"""What is known about flags without asking an image: which are gone, and what to write in their place; which are new.

Sampled over the releases 0.6.6 to 0.33.0. Not each release was sampled: a version here is the first one seen
without (or with) the flag. The page of the image itself, where it was read, has the last word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

Version = tuple[int, ...]

# Of the releases that were looked at.
NEWEST: Version = (0, 33)
_TAG = re.compile(r"v?(\d{1,3}(?:\.\d{1,3}){1,2})(?![.\d])")
# Images of others carry vLLM under numbers of their own, such as a year and a month.
_LARGEST_MAJOR = 4


@dataclass(frozen=True)
class Gone:
    """A flag that was taken away. `since` is the first version without it, None where no version was found out.

    `instead` tells what to do, as a sentence; `renamed` is the flag that does the same, where there is one.
    """

    since: Version | None
    instead: str
    renamed: str | None = None


_STRUCTURED = "Write structured-outputs-config (a dictionary), such as {backend: auto}; requests choose the rest."
_V1 = "Leave it out: the engine of today does without it."

GONE: Mapping[str, Gone] = {
    "swap-space": Gone(
        (0, 18),
        "Leave it out: a preempted request is computed again, nothing is swapped. To keep KV blocks in host memory, "
        "see kv-offloading-size.",
    ),
    "disable-log-requests": Gone(
        (0, 17),
        "Leave it out: requests are not logged unless enable-log-requests is true.",
        "enable-log-requests",
    ),
    "preemption-mode": Gone((0, 11), "Leave it out: a preempted request is always computed again."),
    "scheduler-delay-factor": Gone((0, 11), _V1),
    "max-seq-len-to-capture": Gone(
        (0, 11),
        "CUDA graphs go by batch size now: max-cudagraph-capture-size, or cudagraph-capture-sizes.",
        "max-cudagraph-capture-size",
    ),
    "disable-async-output-proc": Gone((0, 11), "Leave it out; async-scheduling: false is what comes nearest."),
    "num-scheduler-steps": Gone(
        (0, 10, 1), "Leave it out: async-scheduling (0.10.0 and later) hides the same gaps.", "async-scheduling"
    ),
    "multi-step-stream-outputs": Gone(None, "Leave it out; stream-interval says how many tokens come in one piece."),
    "guided-decoding-backend": Gone((0, 12), _STRUCTURED, "structured-outputs-config"),
    "guided-decoding-disable-fallback": Gone((0, 12), _STRUCTURED, "structured-outputs-config"),
    "guided-decoding-disable-any-whitespace": Gone((0, 12), _STRUCTURED, "structured-outputs-config"),
    "guided-decoding-disable-additional-properties": Gone((0, 12), _STRUCTURED, "structured-outputs-config"),
    "task": Gone(
        (0, 13),
        "Leave it out for generation. For embeddings, ranking and rewards: runner: pooling, with convert: embed or "
        "classify where the model generates otherwise.",
        "runner",
    ),
    "device": Gone((0, 10), "Leave it out: the build decides; gpus of the instance says which devices it gets."),
    "max-num-partial-prefills": Gone((0, 27), "Leave it out; max-num-batched-tokens bounds what prefills take."),
    "calculate-kv-scales": Gone(
        (0, 28), "Leave it out, and use a checkpoint that brings scales of its KV cache, or kv-cache-dtype: auto."
    ),
    "use-v2-block-manager": Gone(None, _V1),
    "enable-reasoning": Gone(None, "Leave it out: reasoning-parser alone is enough.", "reasoning-parser"),
    "speculative-model": Gone(
        None, "Write speculative-config (a dictionary) with model and num_speculative_tokens.", "speculative-config"
    ),
    "num-speculative-tokens": Gone(
        None, "Write speculative-config (a dictionary) with model and num_speculative_tokens.", "speculative-config"
    ),
    "rope-scaling": Gone(None, "Write it into hf-overrides (a dictionary).", "hf-overrides"),
    "rope-theta": Gone(None, "Write it into hf-overrides (a dictionary).", "hf-overrides"),
}

NEW: Mapping[str, Version] = {
    "async-scheduling": (0, 10),
    "enable-log-requests": (0, 10, 1),
    "kv-cache-memory-bytes": (0, 10, 2),
    "kv-offloading-backend": (0, 11, 1),
    "kv-offloading-size": (0, 11, 1),
    "stream-interval": (0, 11, 1),
    "kv-cache-metrics": (0, 12),
    "enable-mfu-metrics": (0, 14),
    "performance-mode": (0, 17),
    "shutdown-timeout": (0, 18),
    "max-num-queued-reqs": (0, 29),
    "max-num-queued-tokens": (0, 29),
    "max-num-active-seqs": (0, 31),
    "custom-histogram-buckets": (0, 32),
    "watchdog-config": (0, 33),
}

# Numbers whose default tells no type.
NUMBERS = frozenset(
    {
        "api-server-count",
        "block-size",
        "data-parallel-size-local",
        "kv-cache-memory-bytes",
        "kv-offloading-size",
        "max-cudagraph-capture-size",
        "max-model-len",
        "max-num-active-seqs",
        "max-num-batched-tokens",
        "max-num-queued-reqs",
        "max-num-queued-tokens",
        "max-num-scheduled-tokens",
        "max-num-seqs",
        "num-gpu-blocks-override",
        "spec-tokens",
    }
)

# Whole numbers: a fraction ends the parser.
WHOLE = frozenset(
    {
        "data-parallel-size",
        "max-logprobs",
        "max-loras",
        "nnodes",
        "pipeline-parallel-size",
        "port",
        "seed",
        "shutdown-timeout",
        "stream-interval",
        "tensor-parallel-size",
        *NUMBERS - {"kv-offloading-size"},
    }
)


def version_of(text: str | None) -> Version | None:
    """Version of vLLM out of an image's tag or a distribution's version ("v0.32.0-cpu" is (0, 32, 0)).

    None for a tag that tells none.
    """
    match = _TAG.match(text or "")
    found = tuple(int(part) for part in match[1].split(".")) if match else None
    return found if found and found[0] <= _LARGEST_MAJOR else None


def written(version: Version | None) -> str:
    """A version for people."""
    return ".".join(map(str, version)) if version else "an unknown version"


def gone(name: str, version: Version | None) -> Gone | None:
    """How a flag went, where it is gone in that version; without a version, where it is gone in the newest."""
    entry = GONE.get(name)
    if entry is None:
        return None
    return entry if entry.since is None or (version or NEWEST) >= entry.since else None


def too_new(name: str, version: Version) -> Version | None:
    """First version that has the flag, where that is later than `version`."""
    since = NEW.get(name)
    return since if since is not None and version < since else None
