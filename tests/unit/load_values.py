"""Records for tests of the figures."""

from __future__ import annotations

from array import array

from hypothesis import strategies as st

from vllm_node.load.records import OK, Record

NS = 10**9
KINDS = (OK, "http_500", "http_429", "http_503", "reset", "stall_timeout", "first_byte_timeout", "cancelled", "interrupted", "held_back", "bad_event")


def record(
    kind: str = OK,
    *,
    index: int = 0,
    ttft_s: float = 0.1,
    gaps_s: tuple[float, ...] = (0.02, 0.02),
    tokens: int | None = 3,
    late_s: float = 0.0,
    scheduled_s: float = 1.0,
    rest_s: float = 0.0,
    scored: bool = True,
) -> Record:
    """An answer with its first content after `ttft_s`, one more after each gap, and its end `rest_s` later."""
    at, times = round(ttft_s * 1e6), array("q")
    for gap in (0.0, *gaps_s):
        at += round(gap * 1e6)
        times.append(at)
    scheduled = round(scheduled_s * NS)
    sent = scheduled + round(late_s * NS)
    unsent = kind in ("held_back", "connect_error")
    return Record(
        index=index,
        kind=kind,
        scored=scored,
        status=0 if unsent else 200,
        scheduled=scheduled,
        started=sent,
        sent=0 if unsent else sent,
        end=sent + (at + round(rest_s * 1e6)) * 1000,
        output_tokens=tokens,
        prompt_tokens=7,
        contents_us=array("q") if unsent else times,
    )


def records() -> st.SearchStrategy[Record]:
    """Any of them."""
    return st.builds(
        record,
        st.sampled_from(KINDS),
        ttft_s=st.floats(0.001, 5),
        gaps_s=st.lists(st.floats(0, 0.2), max_size=8).map(tuple),
        tokens=st.none() | st.integers(0, 40),
        late_s=st.floats(0, 0.05),
        scheduled_s=st.floats(0.001, 10),
        rest_s=st.floats(0, 0.1),
        scored=st.booleans(),
    )
