"""Requests that a user brings along, one JSON object a line: read with suspicion, and sent as nothing but text.

A request may ask a server to fetch a picture, to call a tool, or to compute for an hour. So a line may hold a few
fields and no others, prompts are plain text or token ids, and every size has a bound.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from vllm_node.bench.facts import Facts, WorkloadError
from vllm_node.load.asked import Asked

MOST_LINES = 100_000
MOST_LINE_BYTES = 4 * 1024 * 1024
MOST_FILE_BYTES = 512 * 1024 * 1024
MOST_OUTPUT_TOKENS = 131_072
_MOST_MESSAGES = 1000
_MOST_STOPS = 16
# A token is at least one character, but for rare ones of other scripts; a text longer than this cannot be short.
_CHARACTERS_A_TOKEN = 32
_SHOWN = 20
_ROLES = ("system", "developer", "user", "assistant")
_NUMBERS = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 10.0),
    "cancel_after_s": (0.0, 3600.0),
}
_COUNTS = {
    "max_tokens": (1, MOST_OUTPUT_TOKENS),
    "max_completion_tokens": (1, MOST_OUTPUT_TOKENS),
    "min_tokens": (0, MOST_OUTPUT_TOKENS),
    "top_k": (-1, 1_000_000),
    "seed": (0, 2**63 - 1),
}
ALLOWED = ("prompt", "messages", "stop", "ignore_eos", *_COUNTS, *_NUMBERS)


class _LineError(Exception):
    """What is wrong with a line."""


@dataclass(frozen=True)
class OwnRequests:
    """Requests that were judged. `path` is where the plan will find them, `reuse` whether one may be sent twice."""

    name: str
    api: str
    requests: tuple[Mapping[str, Any], ...]
    path: str = "requests.jsonl"
    reuse: bool = False

    @property
    def description(self) -> str:
        """For a report."""
        return f"{len(self.requests)} requests of one's own, from {self.name}"

    @property
    def notices(self) -> tuple[str, ...]:
        """What a reader has to know."""
        if not self.reuse:
            return ()
        return (
            "requests were sent more than once: the prefix cache answers a part of them, which flatters the server",
        )

    def text(self) -> str:
        """The file for the node: the same requests, and nothing that was not judged."""
        return "".join(json.dumps(one, ensure_ascii=False, separators=(",", ":")) + "\n" for one in self.requests)

    def part(self, number: int, of: int) -> OwnRequests:
        """The `number`-th (from 1) of so many disjoint parts, so that no stage meets the prompts of another."""
        return replace(self, requests=self.requests[number - 1 :: of])

    def check(self, facts: Facts) -> None:
        """Whether all of them fit a model.

        Raises:
            WorkloadError: one does not, with its place among the requests.
        """
        problems = []
        for number, one in enumerate(self.requests, 1):
            asked = one.get("max_completion_tokens", one.get("max_tokens", 0))
            ids = one.get("prompt")
            if isinstance(ids, list):
                if max(ids) >= facts.vocab_size:
                    problems.append(f"request {number}: token id {max(ids)}, the vocabulary has {facts.vocab_size}")
                least = len(ids)
            else:
                least = _characters(one) // _CHARACTERS_A_TOKEN
            if least + asked > facts.max_model_len:
                problems.append(
                    f"request {number}: {least} tokens{'' if isinstance(ids, list) else ' at the very least'} and an "
                    f"answer of {asked} do not fit a context of {facts.max_model_len}"
                )
        if problems:
            raise WorkloadError(_listed(self.name, problems))

    def lengths(self) -> dict[str, Any]:
        """Lengths of prompts (None where they are text, which nobody has tokenized) and answers."""
        asked = Asked()
        for _ in asked.count(self.requests):
            pass
        found = asked.document()
        return {name: found[name] for name in ("prompt_tokens", "output_tokens")}


def read_requests(path: Path, *, api: str = "completions", max_tokens: int | None = None) -> OwnRequests:
    """Requests out of a file. `max_tokens` is for lines without a length of their own.

    Raises:
        WorkloadError: the file or some of its lines are not what they should be; line numbers are named.
    """
    found: list[Mapping[str, Any]] = []
    problems: list[str] = []
    for number, line in _lines(path):
        try:
            found.append(_judged(_parsed(line), api, max_tokens))
        except _LineError as error:
            problems.append(f"line {number}: {error}")
        if len(problems) >= _SHOWN:
            problems.append("… and perhaps more")
            break
    if problems:
        raise WorkloadError(_listed(str(path), problems))
    if not found:
        raise WorkloadError(f"{path} holds no requests")
    return OwnRequests(path.name, api, tuple(found))


def _listed(name: str, problems: Iterable[str]) -> str:
    return f"{name}: " + "\n".join(problems)


def _lines(path: Path) -> Iterable[tuple[int, bytes]]:
    # No pipes and devices: these never end.
    if not path.is_file():
        raise WorkloadError(f"{path} is no file")
    if path.stat().st_size > MOST_FILE_BYTES:
        raise WorkloadError(f"{path} is larger than {MOST_FILE_BYTES >> 20} MiB")
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MOST_LINE_BYTES + 1):
            number += 1
            if len(line) > MOST_LINE_BYTES:
                raise WorkloadError(f"{path}: line {number} is longer than {MOST_LINE_BYTES >> 20} MiB")
            if number > MOST_LINES:
                raise WorkloadError(f"{path} has more than {MOST_LINES} lines")
            if line.strip():
                yield number, line


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line.decode(), object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _LineError(f"no JSON: {str(error)[:100]}") from None
    if not isinstance(value, dict):
        raise _LineError("a request is an object")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field stands there twice")
    return found


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _judged(line: Mapping[str, Any], api: str, max_tokens: int | None) -> dict[str, Any]:
    for name in line:
        if name not in ALLOWED:
            close = difflib.get_close_matches(name, ALLOWED, 1)
            meant = f"; did you mean {close[0]}?" if close else f"; allowed are {', '.join(ALLOWED)}"
            raise _LineError(f"the field {name[:60]!r} is not allowed{meant}")
    wrong = "prompt" if api == "chat" else "messages"
    needed = "messages" if api == "chat" else "prompt"
    if wrong in line or needed not in line:
        raise _LineError(f"a request of the API {api} has {needed!r} and no {wrong!r}")
    if api == "chat":
        _messages(line["messages"])
    else:
        _prompt(line["prompt"])
    for name, (low, high) in _COUNTS.items():
        _bounded(line, name, low, high, whole=True)
    for name, (least, most) in _NUMBERS.items():
        _bounded(line, name, least, most, whole=False)
    if not isinstance(line.get("ignore_eos", False), bool):
        raise _LineError("ignore_eos is true or false")
    _stop(line.get("stop"))
    found = {name: value for name, value in line.items() if value is not None}
    if "max_tokens" not in found and "max_completion_tokens" not in found:
        if max_tokens is None:
            raise _LineError("max_tokens is missing: without it an answer may be as long as the context")
        found["max_tokens"] = max_tokens
    return found


def _prompt(value: object) -> None:
    if isinstance(value, str) and value:
        _text(value, "prompt")
        return
    if isinstance(value, list) and value and all(type(one) is int and one >= 0 for one in value):
        return
    raise _LineError("prompt is a text or a list of token ids, and not empty")


def _messages(value: object) -> None:
    if not isinstance(value, list) or not 0 < len(value) <= _MOST_MESSAGES:
        raise _LineError(f"messages is a list of 1 to {_MOST_MESSAGES}")
    for one in value:
        if not isinstance(one, dict) or set(one) != {"role", "content"}:
            raise _LineError("a message has role and content, and nothing else")
        if one["role"] not in _ROLES:
            raise _LineError(f"the role of a message is one of {', '.join(_ROLES)}")
        if not isinstance(one["content"], str) or not one["content"]:
            raise _LineError("the content of a message is a text; parts with pictures, sounds or files are not allowed")
        _text(one["content"], "content")


def _text(value: str, name: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _LineError(f"{name} holds half a character (a lone surrogate)") from None


def _bounded(line: Mapping[str, Any], name: str, low: float, high: float, *, whole: bool) -> None:
    value = line.get(name)
    if value is None:
        return
    kinds = (int,) if whole else (int, float)
    if type(value) not in kinds or not low <= value <= high or not math.isfinite(value):
        raise _LineError(
            f"{name} is a {'whole ' if whole else ''}number from {low:g} to {high:g}, not {str(value)[:40]}"
        )


def _stop(value: object) -> None:
    texts = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(texts, list) or len(texts) > _MOST_STOPS:
        raise _LineError(f"stop is a text or a list of at most {_MOST_STOPS}")
    for one in texts:
        if not isinstance(one, str) or not 0 < len(one) <= 1000:
            raise _LineError("stop holds texts of 1 to 1000 characters")
        _text(one, "stop")


def _characters(line: Mapping[str, Any]) -> int:
    if "prompt" in line:
        return len(line["prompt"])
    return sum(len(one["content"]) for one in line["messages"])
