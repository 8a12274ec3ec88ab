"""What an answer says: its content events with their times, its usage, and whether it is whole.

This runs after the stage, over the raw reads.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vllm_node.load.framing import BadAnswerError, Framing
from vllm_node.load.records import OK, Record
from vllm_node.load.spool import Part
from vllm_node.load.sse import Events
from vllm_node.load.template import Template, template
from vllm_node.load.wire import COMPLETE

_DETAIL_BYTES = 400
# Parts of a chat delta that a user sees, or that a program acts upon. A role alone is not content.
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


class Answer:
    """Reads of one answer, in order."""

    def __init__(self, framing: Framing) -> None:
        """Nothing has been read; `framing` reads the bodies."""
        self.contents: array[int] = array("q")
        self.first_byte = 0
        self.size = 0
        self.empty_events = 0
        self.usage: Mapping[str, Any] | None = None
        self.finish_reason = ""
        self.done = False
        self.problem: tuple[str, str] | None = None
        self._framing = framing
        self._events = Events()
        self._other = b""
        self._form: Template | None = None

    def feed(self, stamps: Iterable[int], reads: Iterable[bytes]) -> None:
        """Take reads with the time of each."""
        form = self._form if self._between() else None
        for stamp, data in zip(stamps, reads, strict=True):
            self.size += len(data)
            # Passing over one whole chunk with one whole event leaves both readers where they are.
            if form is not None and form.fits(data):
                self.contents.append(stamp)
                continue
            self.first_byte = self.first_byte or stamp
            try:
                self._read(stamp, data)
            except BadAnswerError as error:
                self.problem = self.problem or ("protocol", str(error))
                return
            form = self._form if self._between() else None

    def _between(self) -> bool:
        """Whether neither a chunk nor an event is under way."""
        return self._framing.between_chunks and self._events.idle

    def _read(self, stamp: int, data: bytes) -> None:
        fresh = self._between()
        pieces = self._framing.feed(data)
        if not pieces:
            return
        if self._framing.status == 200 and "event-stream" in self._framing.content_type:
            texts = [self._event(stamp, event) for piece in pieces for event in self._events.feed(piece)]
            if fresh and len(texts) == 1 and texts[0] and self._between():
                self._form = template(data, texts[0])
        elif len(self._other) < _DETAIL_BYTES:
            self._other += b"".join(pieces)

    def record(self, part: Part) -> Record:
        """The record of an exchange, when its last part has been fed."""
        kind, detail = self._outcome(part)
        usage = self.usage or {}
        sent_us = part.sent // 1000
        return Record(
            index=part.index,
            kind=kind,
            scored=part.scored,
            status=self._framing.status,
            scheduled=part.scheduled,
            started=part.started,
            sent=part.sent,
            first_byte=self.first_byte,
            end=part.end,
            size=self.size,
            prompt_tokens=_count(usage, "prompt_tokens"),
            cached_tokens=_count(usage.get("prompt_tokens_details"), "cached_tokens"),
            output_tokens=_count(usage, "completion_tokens"),
            empty_events=self.empty_events,
            finish_reason=self.finish_reason,
            detail=detail,
            contents_us=array("q", (stamp // 1000 - sent_us for stamp in self.contents)),
        )

    def _outcome(self, part: Part) -> tuple[str, str]:
        if part.kind != COMPLETE:
            return part.kind, part.detail
        if self._framing.status >= 300:
            return f"http_{self._framing.status}", self._other[:_DETAIL_BYTES].decode(errors="replace")
        if self.problem:
            return self.problem
        if "event-stream" not in self._framing.content_type:
            return "not_a_stream", f"content type {self._framing.content_type!r}"
        if not self.done:
            return "unfinished", "the stream ended without [DONE]"
        if not self.contents:
            return "no_content", "the answer has no content"
        return OK, ""

    def _event(self, stamp: int, data: bytes) -> str | None:
        """Take one event; gives its text when there is nothing else in it that counts."""
        if data == b"[DONE]":
            self.done = True
            return None
        try:
            event = json.loads(data)
        except ValueError:
            self._wrong("bad_event", f"an event that is no JSON: {data[:80]!r}")
            return None
        if not isinstance(event, dict):
            self._wrong("bad_event", f"an event that is no object: {data[:80]!r}")
            return None
        if event.get("error") or event.get("object") == "error":
            self._wrong("stream_error", data.decode(errors="replace"))
            return None
        try:
            return self._take(stamp, event)
        except (AttributeError, TypeError):
            self._wrong("bad_event", f"an event of an unknown form: {data[:80]!r}")
            return None

    def _wrong(self, kind: str, detail: str) -> None:
        """Note what is wrong; the first thing that was is the one that counts."""
        self.problem = self.problem or (kind, detail)

    def _take(self, stamp: int, event: Mapping[str, Any]) -> str | None:
        if event.get("usage"):
            self.usage = event["usage"]
        choices = event.get("choices") or []
        for choice in choices:
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if not any(map(_has_content, choices)):
            self.empty_events += bool(choices)
            return None
        self.contents.append(stamp)
        if len(choices) > 1 or event.get("usage") or choices[0].get("finish_reason"):
            return None
        text = choices[0].get("text") or (choices[0].get("delta") or {}).get("content")
        return text if isinstance(text, str) else None


def _has_content(choice: Mapping[str, Any]) -> bool:
    if choice.get("text"):
        return True
    delta = choice.get("delta") or {}
    if any(delta.get(name) for name in _TEXTS):
        return True
    functions = (call.get("function") or {} for call in delta.get("tool_calls") or ())
    return any(one.get("name") or one.get("arguments") for one in functions)


def _count(usage: object, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def records(parts: Iterable[Part], framing: Callable[[bool], Framing]) -> Iterable[Record]:
    """Records of all exchanges that have ended, in the order of their ends."""
    open_answers: dict[int, Answer] = {}
    for part in parts:
        answer = open_answers.pop(part.index, None) or Answer(framing(True))
        answer.feed(part.stamps, part.reads)
        if part.last:
            yield answer.record(part)
        else:
            open_answers[part.index] = answer


def first_content_ns(framing: Framing, stamps: Iterable[int], reads: Iterable[bytes]) -> int | None:
    """Time of the first content, read no further than that; for what is shown while a stage runs."""
    answer = Answer(framing)
    for stamp, data in zip(stamps, reads, strict=True):
        answer.feed((stamp,), (data,))
        if answer.contents:
            return answer.contents[0]
    return None
