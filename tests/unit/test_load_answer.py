"""What an answer says, whichever way its bytes came; and the short cut finds what the long way finds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_load_framing import CUTS, READERS, chunked, cut
from vllm_node.load import answer
from vllm_node.load.answer import Answer
from vllm_node.load.framing import Framing
from vllm_node.load.template import template

TEXT = st.text(max_size=6) | st.sampled_from(["", " the", '"', "\\", "\n", "é", '","text":"', "}\r\n", "data: "])


def event(text: str, api: str = "completions", **other: Any) -> bytes:
    choice: dict[str, Any] = {"index": 0, "finish_reason": None, "logprobs": None}
    choice |= {"text": text} if api == "completions" else {"delta": {"content": text}}
    document = {"id": "x-1", "choices": [choice], **other}
    return b"data: " + json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def finding(framing: Framing, reads: list[bytes]) -> tuple[Any, ...]:
    found = Answer(framing)
    found.feed(range(1, len(reads) + 1), reads)
    return list(found.contents), found.empty_events, found.usage, found.done, found.problem, found.size, framing.complete


def as_reads(pieces: list[bytes]) -> list[bytes]:
    """The head, then each chunk in a read of its own, as a server sends its tokens."""
    head, _, rest = chunked([]).partition(b"\r\n\r\n")
    return [head + b"\r\n\r\n", *(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces), rest]


@pytest.mark.parametrize("reader", READERS)
@given(texts=st.lists(TEXT, max_size=12), sizes=CUTS, api=st.sampled_from(["completions", "chat"]), apart=st.booleans())
def test_short_cut_finds_what_decoding_finds(
    reader: Callable[[bool], Framing], texts: list[str], sizes: list[int], api: str, apart: bool
) -> None:
    pieces = [event(text, api) for text in texts]
    usage = {"prompt_tokens": 1, "completion_tokens": len(texts)}
    pieces += [b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n", b"data: [DONE]\n\n"]
    reads = as_reads(pieces) if apart else cut(chunked(pieces), sizes)
    fast = finding(reader(True), reads)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer, "template", lambda *_: None)
        slow = finding(reader(True), reads)
    assert fast == slow
    assert fast[0] == sorted(fast[0])
    assert (len(fast[0]), fast[1]) == (sum(map(bool, texts)), texts.count(""))
    assert fast[2:5] == (usage, True, None)


def test_short_cut_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above would prove nothing."""
    decoded: list[bytes] = []
    real = json.loads

    def loads(data: bytes) -> Any:
        decoded.append(data)
        return real(data)

    monkeypatch.setattr(json, "loads", loads)
    reads = as_reads([event(f" word{number}") for number in range(50)])
    assert len(finding(READERS[0](True), reads)[0]) == 50
    # The first event is where the body begins, and the second shows the form.
    assert len(decoded) == 2


CHUNK = b"%x\r\n%b\r\n"


@pytest.mark.parametrize(
    "other",
    [
        event(""),
        event('a"'),
        event("a\\"),
        event("é"),
        event("a", id="x-2"),
        event("a", usage={"completion_tokens": 3}),
        event("a").replace(b"null", b'"stop"'),
        event("a")[:-1],
        event("a") + event("b"),
        b": ping\n\n",
    ],
)
def test_what_is_no_plain_token_is_not_taken_for_one(other: bytes) -> None:
    form = template(CHUNK % (len(event("the")), event("the")), "the")
    assert form is not None
    assert form.fits(CHUNK % (len(event("other")), event("other")))
    assert not form.fits(CHUNK % (len(other), other))
    # A chunk whose size is not what it says is left to whoever reads chunks.
    assert not form.fits(CHUNK % (len(event("other")) + 1, event("other")))


@pytest.mark.parametrize("read", [b"", b"5\r\nhello\r\n", CHUNK % (len(event('"')), event('"')), CHUNK % (9, event("a"))])
def test_no_form(read: bytes) -> None:
    assert template(read, "a") is None


@pytest.mark.parametrize(
    ("delta", "content"),
    [
        ({"role": "assistant", "content": ""}, False),
        ({"role": "assistant"}, False),
        ({"content": None}, False),
        ({}, False),
        ({"content": "a"}, True),
        ({"reasoning_content": "a"}, True),
        ({"reasoning": "a"}, True),
        ({"tool_calls": [{"index": 0, "function": {"name": "look", "arguments": ""}}]}, True),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, True),
        ({"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}, False),
        ({"tool_calls": []}, False),
    ],
)
def test_what_is_content(delta: dict[str, Any], content: bool) -> None:
    data = b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"
    contents, empty, *_ = finding(READERS[0](True), as_reads([data]))
    assert (len(contents), empty) == ((1, 0) if content else (0, 1))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"data: {\n\n", "bad_event"),
        (b"data: 5\n\n", "bad_event"),
        (b"data: \xff\n\n", "bad_event"),
        (b'data: {"choices":5}\n\n', "bad_event"),
        (b'data: {"choices":[1]}\n\n', "bad_event"),
        (b'data: {"error":{"message":"x"}}\n\n', "stream_error"),
        (b'data: {"object":"error","message":"x"}\n\n', "stream_error"),
    ],
)
def test_events_that_are_none(data: bytes, kind: str) -> None:
    problem = finding(READERS[0](True), as_reads([event("a"), data, event("b")]))[4]
    assert problem is not None
    assert problem[0] == kind
