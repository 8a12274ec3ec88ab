"""Events come out the same wherever the body is cut, and with the piece that completes them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_load_framing import CUTS, cut
from vllm_node.load.sse import Events

TEXTS = st.lists(st.text(max_size=12), max_size=6)


def feed(pieces: list[bytes]) -> list[bytes]:
    events = Events()
    return [event for piece in pieces for event in events.feed(piece)]


@given(TEXTS, CUTS, st.sampled_from(["\n", "\r\n", "\r"]))
def test_events_survive_any_cut(texts: list[str], sizes: list[int], end: str) -> None:
    """Borders inside a character, inside JSON and inside a line end included."""
    sent = [json.dumps({"text": text}, ensure_ascii=False).encode() for text in texts]
    body = b"".join(b"data: " + data + end.encode() * 2 for data in sent)
    assert feed(cut(body, sizes)) == sent


@given(TEXTS, st.integers(1, 30))
def test_event_is_complete_with_its_last_byte(texts: list[str], short: int) -> None:
    body = b"".join(b"data: " + json.dumps(text).encode() + b"\n\n" for text in ["first", *texts])
    whole = len(feed([body]))
    assert len(feed([body[:-1]])) == whole - 1
    assert len(feed([body[:-short]])) < whole


@pytest.mark.parametrize(
    ("body", "events"),
    [
        (b": ping\n\ndata: a\n\n", [b"a"]),
        (b"event: x\nid: 1\ndata: a\nretry: 5\n\n", [b"a"]),
        (b"data:a\ndata: b\n\n", [b"a\nb"]),
        (b"data:a\r\ndata: b\r\n\r\n", [b"a\nb"]),
        (b"data\n\n", [b""]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: a\n", []),
        (b"\n\n\n", []),
        (b"data: [DONE]\r\n\r\n", [b"[DONE]"]),
    ],
)
def test_forms(body: bytes, events: list[bytes]) -> None:
    assert feed([body]) == events
    assert feed([body[at : at + 1] for at in range(len(body))]) == events
