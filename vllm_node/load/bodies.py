"""The bodies of all requests, made before the stage and kept in a file: while it runs, none has to be made."""

from __future__ import annotations

import itertools
import json
import mmap
import random
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from vllm_node.load.plan import Plan, PlanError, Requests

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


class Bodies:
    """Bodies in a file by their number; use it as a context.

    `output_tokens` are the lengths that are asked for, `cancel_s` is set for requests that are cancelled on purpose.
    """

    def __init__(self, path: Path, documents: Iterable[Mapping[str, Any]]) -> None:
        """Write the bodies to `path`."""
        self.output_tokens: array[int] = array("i")
        self.cancel_s: dict[int, float] = {}
        self._starts = array("q", [0])
        with path.open("wb") as file:
            for number, document in enumerate(documents):
                body = dict(document)
                if (cancel_s := body.pop("cancel_after_s", None)) is not None:
                    self.cancel_s[number] = float(cancel_s)
                data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
                file.write(data)
                self._starts.append(self._starts[-1] + len(data))
                asked = body.get("max_completion_tokens", body.get("max_tokens"))
                self.output_tokens.append(asked if isinstance(asked, int) else 0)
        self._file = path.open("rb")
        self._map = mmap.mmap(self._file.fileno(), 0, prot=mmap.PROT_READ) if self._starts[-1] else None

    def __len__(self) -> int:
        """How many there are."""
        return len(self._starts) - 1

    def __getitem__(self, number: int) -> bytes:
        """One body."""
        assert self._map is not None
        return self._map[self._starts[number] : self._starts[number + 1]]

    def __enter__(self) -> Bodies:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        if self._map is not None:
            self._map.close()
        self._file.close()


def documents(plan: Plan, purpose: str, count: int | None, skip: int = 0) -> Iterator[Mapping[str, Any]]:
    """What `count` requests say, None: as many as the file has; out of a file the first `skip` are left to others.

    Raises:
        PlanError: the file is not what it should be, or is too short.
    """
    if plan.requests.path is not None:
        contents = _from_file(Path(plan.requests.path), plan, count, skip)
    else:
        assert count is not None
        contents = _generated(plan, plan.requests, purpose, count)
    common = {
        "model": plan.target.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        **plan.parameters,
    }
    return ({**common, **content} for content in contents)


def _generated(plan: Plan, wanted: Requests, purpose: str, count: int) -> Iterator[Mapping[str, Any]]:
    assert wanted.prompt_tokens is not None
    assert wanted.output_tokens is not None
    # The prefix is the same for the warm-up and for all repeats: that is what sharing means.
    prefix = _tokens(random.Random(f"{plan.seed}/prefix"), plan.api, wanted, wanted.shared_prefix_tokens)  # noqa: S311
    for number in range(count):
        draw = random.Random(plan.seed_for(f"{purpose}/{number}"))  # noqa: S311 - repeatable on purpose
        length = wanted.prompt_tokens.draw(draw)
        tokens = [*prefix[:length], *_tokens(draw, plan.api, wanted, max(0, length - len(prefix)))]
        asked = wanted.output_tokens.draw(draw)
        # The length is the workload's, so the model may not end before it.
        yield {**_prompt(plan.api, tokens), "max_tokens": asked, "ignore_eos": True}


def _tokens(draw: random.Random, api: str, wanted: Requests, count: int) -> list[Any]:
    return draw.choices(range(*wanted.vocabulary) if api == "completions" else _WORDS, k=count)


def _prompt(api: str, tokens: list[Any]) -> dict[str, Any]:
    if api == "completions":
        return {"prompt": tokens}
    return {"messages": [{"role": "user", "content": " ".join(tokens)}]}


def _from_file(path: Path, plan: Plan, count: int | None, skip: int) -> Iterator[Mapping[str, Any]]:
    lines = list(_lines(path, plan.api))[skip:]
    if not lines or (count is not None and count > len(lines) and not plan.requests.reuse):
        raise PlanError(
            [
                f"requests.path: {path} has {len(lines)} requests beyond the {skip} of the warm-up, and {count or 1} "
                "are needed; a request that is sent twice is answered out of the prefix cache (reuse: true allows it)"
            ]
        )
    return itertools.islice(itertools.cycle(lines), len(lines) if count is None else count)


def _lines(path: Path, api: str) -> Iterator[Mapping[str, Any]]:
    needed = "messages" if api == "chat" else "prompt"
    with path.open() as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                content = json.loads(line)
            except ValueError as error:
                raise PlanError([f"{path}:{number}: no JSON: {error}"]) from None
            if not isinstance(content, dict) or needed not in content:
                raise PlanError([f"{path}:{number}: a request of the API {api} has a field {needed!r}"])
            yield content
