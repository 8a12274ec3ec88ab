"""What the requests of a stage ask for, counted from the requests themselves.

A workload promises lengths and a share of common prefixes; what was drawn is what the server had to do.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from vllm_node.load.generated import CUT, FOLLOWS

# vLLM keeps prefixes in blocks of so many tokens unless told otherwise; less than a block is never found again.
BLOCK_TOKENS = 16
# About a hundred megabytes of prefixes; the shares of a longer stage are those of its first requests.
_MOST_BLOCKS = 1_000_000


class Asked:
    """Counts requests in the order in which they are made, as they pass by."""

    def __init__(self) -> None:
        """No request has been seen."""
        self.cut = 0
        self._prompts: array[int] = array("q")
        self._outputs: array[int] = array("q")
        self._calls: array[int] = array("q")
        self._looked_at = self._looked_tokens = self._again = 0
        self._first_tokens = self._shared = 0
        self._whole = True
        self._seen: set[int] = set()

    def meet(self, documents: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Requests that the server meets before the stage: their prefixes are known, else they count nowhere."""
        for document in documents:
            self._known(document.get("prompt"))
            yield document

    def count(self, documents: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Requests of the stage."""
        for document in documents:
            self._take(document)
            yield document

    def document(self) -> dict[str, Any]:
        """As it stands in a result; prompts that are text have no length here, as nobody has tokenized them."""
        shares = self._whole and self._first_tokens
        return {
            "count": len(self._outputs),
            "prompt_tokens": _summary(self._prompts) if self._whole else None,
            "output_tokens": _summary([one for one in self._outputs if one]),
            "shared_prefix_share": self._shared / self._first_tokens if shares else None,
            "repeated_share": self._again / self._looked_tokens if shares else None,
            "shares_of_requests": self._looked_at,
            "block_tokens": BLOCK_TOKENS,
            "workflows": len(self._calls),
            "calls_per_run": _summary(self._calls),
            "cut": self.cut,
        }

    def _take(self, document: Mapping[str, Any]) -> None:
        first = FOLLOWS not in document
        if first:
            self._calls.append(0)
        self._calls[-1] += 1
        self.cut += bool(document.get(CUT))
        asked = document.get("max_completion_tokens", document.get("max_tokens"))
        self._outputs.append(asked if isinstance(asked, int) else 0)
        prompt = document.get("prompt")
        again = self._known(prompt)
        if not _is_tokens(prompt):
            self._whole = False
            return
        self._prompts.append(len(prompt))
        if again is None:
            return
        self._looked_at += 1
        self._looked_tokens += len(prompt)
        self._again += again
        if first:
            self._first_tokens += len(prompt)
            self._shared += again

    def _known(self, prompt: object) -> int | None:
        """How much of its beginning an earlier prompt began with, in whole blocks; None when nobody can say."""
        if not _is_tokens(prompt) or len(self._seen) > _MOST_BLOCKS:
            return None
        chain = again = 0
        for end in range(BLOCK_TOKENS, len(prompt) + 1, BLOCK_TOKENS):
            # Of numbers, so the same in each process.
            chain = hash((chain, *prompt[end - BLOCK_TOKENS : end]))
            if chain in self._seen:
                again = end
            self._seen.add(chain)
        return again


def _is_tokens(prompt: object) -> TypeGuard[list[int]]:
    return isinstance(prompt, list) and all(isinstance(one, int) for one in prompt)


def _summary(values: Sequence[int]) -> dict[str, float] | None:
    """Nearest ranks: these are all requests there are, not a sample of them."""
    if not values:
        return None
    ordered = sorted(values)
    ranks = {f"p{share}": ordered[max(0, -(-share * len(ordered) // 100) - 1)] for share in (50, 95, 99)}
    return {"mean": sum(ordered) / len(ordered), "min": ordered[0], **ranks, "max": ordered[-1]}
