"""What a workload has to know of the model that it is sent to."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# With fewer ids than this, prompts made by chance would begin alike and be answered out of the prefix cache.
_LEAST_IDS = 256
_ENDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


class WorkloadError(Exception):
    """Why these requests cannot be made for this model, and what to do."""


@dataclass(frozen=True)
class Facts:
    """`max_model_len` is the context that the server was started with, in tokens; `gpus` are those it was given."""

    max_model_len: int
    vocab_size: int
    gpus: int | None = None
    special_token_ids: frozenset[int] = frozenset()

    @classmethod
    def of(cls, given: Facts | Mapping[str, Any]) -> Facts:
        """Facts out of a mapping with these names.

        Raises:
            WorkloadError: one of them is missing or no number.
        """
        if isinstance(given, Facts):
            return given
        for name in ("max_model_len", "vocab_size"):
            if not isinstance(given.get(name), int) or given[name] < 1:
                raise WorkloadError(f"{name} of the model is not known (seen: {given.get(name)!r})")
        special = frozenset(given.get("special_token_ids") or ())
        return cls(given["max_model_len"], given["vocab_size"], given.get("gpus"), special)

    def vocabulary(self) -> tuple[int, int]:
        """Lowest id and highest id + 1 of the longest run of ids without a special one.

        Special ids are ends of texts, turns, pictures: a prompt with one of these asks for something else.

        Raises:
            WorkloadError: too few ids are left.
        """
        walls = sorted({-1, self.vocab_size, *(one for one in self.special_token_ids if one < self.vocab_size)})
        low, high = max(
            ((before + 1, after) for before, after in itertools.pairwise(walls)),
            key=lambda run: run[1] - run[0],
        )
        if high - low < _LEAST_IDS:
            raise WorkloadError(
                f"the vocabulary has no {_LEAST_IDS} neighbouring ids that are not special (longest run: "
                f"{max(0, high - low)} of {self.vocab_size}), so no prompts can be made; bring your own requests"
            )
        return low, high


def from_files(
    config: Mapping[str, Any],
    tokenizer: Mapping[str, Any] | None = None,
    *,
    max_model_len: int | None = None,
    gpus: int | None = None,
) -> Facts:
    """Facts out of a model's `config.json` and `tokenizer_config.json` (or `tokenizer.json`).

    All tokens that were added to the vocabulary count as special. `max_model_len` None: what the model was made for,
    where the server was not told otherwise.

    Raises:
        WorkloadError: the files do not say it.
    """
    # A model that also sees or hears keeps this in a part of its own.
    text: Mapping[str, Any] = next(
        (config[name] for name in ("text_config", "llm_config") if isinstance(config.get(name), Mapping)), {}
    )
    both = {**config, **text}
    special = {one for name in _ENDS for holder in (config, text) for one in _numbers(holder.get(name))}
    added = (tokenizer or {}).get("added_tokens_decoder") or (tokenizer or {}).get("added_tokens") or ()
    if isinstance(added, Mapping):
        special |= {int(one) for one in added}
    else:
        special |= {one["id"] for one in added}
    return Facts.of(
        {
            "max_model_len": max_model_len or both.get("max_position_embeddings"),
            "vocab_size": both.get("vocab_size"),
            "gpus": gpus,
            "special_token_ids": special,
        }
    )


def _numbers(value: object) -> Iterable[int]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int)]
