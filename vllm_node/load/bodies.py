"""The bodies of all requests, made before the stage and kept in a file: while it runs, none has to be made."""

from __future__ import annotations

import bisect
import itertools
import json
import mmap
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from vllm_node.load.arrivals import NS
from vllm_node.load.generated import CUT, FOLLOWS, generated
from vllm_node.load.plan import Plan, PlanError


class Bodies:
    """Bodies in a file by their number; use it as a context.

    `output_tokens` are the lengths that are asked for, `cancel_s` is set for requests that are cancelled on purpose.
    `starts` are the numbers of those that come by themselves; each of the others is sent after the answer to the one
    before it, when the nanoseconds in `follows` have passed.
    """

    def __init__(self, path: Path, documents: Iterable[Mapping[str, Any]]) -> None:
        """Write the bodies to `path`."""
        self.output_tokens: array[int] = array("i")
        self.cancel_s: dict[int, float] = {}
        self.starts: array[int] = array("q")
        self.follows: dict[int, int] = {}
        self._starts = array("q", [0])
        with path.open("wb") as file:
            for number, document in enumerate(documents):
                body = dict(document)
                if (cancel_s := body.pop("cancel_after_s", None)) is not None:
                    self.cancel_s[number] = float(cancel_s)
                if (after_s := body.pop(FOLLOWS, None)) is None:
                    self.starts.append(number)
                else:
                    self.follows[number] = round(after_s * NS)
                body.pop(CUT, None)
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

    def workflow(self, number: int) -> tuple[int, int]:
        """Which workflow a body belongs to, and which call of it, both from 0."""
        found = bisect.bisect_right(self.starts, number) - 1
        return found, number - self.starts[found]

    def calls(self, workflow: int) -> int:
        """How many calls a workflow has."""
        end = self.starts[workflow + 1] if workflow + 1 < len(self.starts) else len(self)
        return end - self.starts[workflow]

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

    Of workflows `count` are begun, and there are as many requests as these have calls.

    Raises:
        PlanError: the file is not what it should be, or is too short.
    """
    if plan.requests.path is not None:
        contents = _from_file(Path(plan.requests.path), plan, count, skip)
    else:
        assert count is not None
        contents = generated(plan, purpose, count)
    common = {
        "model": plan.target.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        **plan.parameters,
    }
    return ({**common, **content} for content in contents)


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
            if FOLLOWS in content or CUT in content:
                raise PlanError([f"{path}:{number}: {FOLLOWS} and {CUT} belong to requests that are made here"])
            yield content
