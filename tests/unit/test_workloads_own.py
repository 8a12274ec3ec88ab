"""Requests and arrivals that somebody brings along: what is not plainly harmless is refused, with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_node.bench import own_requests, trace
from vllm_node.bench.facts import Facts, WorkloadError
from vllm_node.bench.own_requests import ALLOWED, OwnRequests, read_requests
from vllm_node.bench.trace import read_trace
from vllm_node.bench.workloads import describe, plan
from vllm_node.load import bodies
from vllm_node.load import plan as engine

FACTS = Facts(4096, 32_000)
GOOD: dict[str, Any] = {"prompt": "Name three rivers.", "max_tokens": 60}
TALK: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}


def written(folder: Path, *lines: Any) -> Path:
    path = folder / "mine.jsonl"
    path.write_bytes(b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in lines))
    return path


def picture(url: str) -> dict[str, Any]:
    return {**TALK, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}


def test_good_requests_reach_the_engine(tmp_path: Path) -> None:
    lines = [
        GOOD,
        {"prompt": [3, 1, 2], "max_tokens": 9, "temperature": 0.5, "seed": 4, "stop": ["\n"], "cancel_after_s": 1.5},
    ]
    own = read_requests(written(tmp_path, *lines, b""))
    assert list(own.requests) == lines
    (tmp_path / own.path).write_text(own.text())
    document = plan(
        own,
        url="http://x",
        model="m",
        facts=FACTS,
        seed=1,
        repeat=1,
        arrivals={"kind": "closed", "clients": 1},
        duration_s=None,
        warmup={},
    )
    read = engine.parse(document, tmp_path)
    assert [one["prompt"] for one in bodies.documents(read, "scored", None)] == ["Name three rivers.", [3, 1, 2]]
    assert describe(own, seed=1, facts=FACTS)["lengths"]["output_tokens"]["max"] == 60


def test_good_chat(tmp_path: Path) -> None:
    own = read_requests(written(tmp_path, TALK, {**TALK, "max_tokens": None, "max_completion_tokens": 7}), api="chat")
    assert own.requests[1] == {"messages": TALK["messages"], "max_completion_tokens": 7}
    assert describe(own, seed=1, facts=FACTS)["api"] == "chat"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({**GOOD, "model": "other"}, "'model' is not allowed"),
        ({**GOOD, "stream": False}, "'stream' is not allowed"),
        ({**GOOD, "n": 100}, "'n' is not allowed"),
        ({**GOOD, "best_of": 20}, "'best_of' is not allowed"),
        ({**GOOD, "tools": []}, "'tools' is not allowed"),
        ({**GOOD, "image_url": "http://169.254.169.254/"}, "'image_url' is not allowed"),
        ({**GOOD, "guided_regex": "(a+)+$"}, "'guided_regex' is not allowed"),
        ({**GOOD, "response_format": {}}, "'response_format' is not allowed"),
        ({**GOOD, "prompt_embeds": "AAAA"}, "'prompt_embeds' is not allowed"),
        ({**GOOD, "follows_after_s": 1}, "'follows_after_s' is not allowed"),
        ({**GOOD, "max_tokns": 5}, "did you mean max_tokens?"),
        ({**GOOD, "max_tokens": 10**9}, "max_tokens is a whole number from 1"),
        ({**GOOD, "max_tokens": True}, "max_tokens is a whole number"),
        ({**GOOD, "max_tokens": "5"}, "max_tokens is a whole number"),
        ({**GOOD, "temperature": -1}, "temperature is a number from 0"),
        ({**GOOD, "ignore_eos": "yes"}, "ignore_eos is true or false"),
        ({**GOOD, "stop": ["x"] * 100}, "stop is a text or a list"),
        ({**GOOD, "stop": [{}]}, "stop holds texts"),
        ({"prompt": "x"}, "max_tokens is missing"),
        ({"max_tokens": 5}, "has 'prompt'"),
        ({**GOOD, "messages": []}, "no 'messages'"),
        ({**GOOD, "prompt": ""}, "not empty"),
        ({**GOOD, "prompt": []}, "not empty"),
        ({**GOOD, "prompt": [1, -1]}, "token ids"),
        ({**GOOD, "prompt": [1, True]}, "token ids"),
        ({**GOOD, "prompt": ["a", "b"]}, "token ids"),
        ({**GOOD, "prompt": [[1], [2]]}, "token ids"),
        ([], "a request is an object"),
        (b"{", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b'{"prompt": "x", "max_tokens": NaN}', "NaN is no number"),
        (b'{"prompt": "x", "max_tokens": 1, "max_tokens": 9}', "stands there twice"),
        (b'{"prompt": "\\ud800", "max_tokens": 1}', "lone surrogate"),
        (b"[" * 100_000, "no JSON"),
        (b'{"prompt": [' + b"9" * 5000 + b'], "max_tokens": 1}', "no JSON"),
    ],
)
def test_hostile_lines_are_refused(tmp_path: Path, line: Any, words: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        read_requests(written(tmp_path, GOOD, line))
    assert words in str(caught.value)
    assert "line 2: " in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (picture("http://169.254.169.254/latest/meta-data"), "pictures, sounds or files are not allowed"),
        (picture("file:///etc/shadow"), "pictures, sounds or files are not allowed"),
        ({**TALK, "messages": [{"role": "tool", "content": "x"}]}, "the role of a message"),
        ({**TALK, "messages": [{"role": "user", "content": "x", "tool_calls": []}]}, "and nothing else"),
        ({**TALK, "messages": []}, "a list of 1 to"),
        ({**TALK, "chat_template": "{{ 1 }}"}, "'chat_template' is not allowed"),
        ({**TALK, "prompt": "x"}, "no 'prompt'"),
    ],
)
def test_hostile_messages_are_refused(tmp_path: Path, line: Any, words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        read_requests(written(tmp_path, line), api="chat")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from([*ALLOWED, "tools", "n", "model"]) | st.text(max_size=6), json_values, max_size=6)
)
def test_whatever_passes_has_nothing_but_allowed_fields(
    tmp_path_factory: pytest.TempPathFactory, line: dict[str, Any]
) -> None:
    path = written(tmp_path_factory.mktemp("own"), {"prompt": "x", "max_tokens": 1, **line})
    try:
        (one,) = read_requests(path).requests
    except WorkloadError:
        return
    assert set(one) <= {*ALLOWED} - {"messages"}
    assert isinstance(one["prompt"], (str, list))


def test_bounds_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, GOOD, GOOD, GOOD)
    monkeypatch.setattr(own_requests, "MOST_LINES", 2)
    with pytest.raises(WorkloadError, match="more than 2 lines"):
        read_requests(path)
    monkeypatch.setattr(own_requests, "MOST_LINE_BYTES", 20)
    with pytest.raises(WorkloadError, match="line 1 is longer"):
        read_requests(path)
    monkeypatch.setattr(own_requests, "MOST_FILE_BYTES", 20)
    with pytest.raises(WorkloadError, match="is larger"):
        read_requests(path)
    with pytest.raises(WorkloadError, match="is no file"):
        read_requests(Path("/dev/zero"))
    with pytest.raises(WorkloadError, match="holds no requests"):
        read_requests(written(tmp_path, b""))


def test_errors_are_collected_up_to_a_point(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError) as caught:
        read_requests(written(tmp_path, *[{}] * 50))
    assert str(caught.value).count("\nline ") == 19
    assert "perhaps more" in str(caught.value)


def test_length_for_lines_without_one(tmp_path: Path) -> None:
    own = read_requests(written(tmp_path, {"prompt": "x"}, GOOD), max_tokens=16)
    assert [one["max_tokens"] for one in own.requests] == [16, 60]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"prompt": [1] * 4090, "max_tokens": 7}, "request 2: 4090 tokens and an answer of 7 do not fit"),
        ({"prompt": [40_000], "max_tokens": 7}, "request 2: token id 40000"),
        ({"prompt": "x" * 200_000, "max_tokens": 7}, "at the very least"),
    ],
)
def test_requests_that_do_not_fit_the_model(line: dict[str, Any], words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        OwnRequests("mine", "completions", (GOOD, line)).check(FACTS)


def test_too_few_requests_are_seen_before_the_run() -> None:
    def planned(own: OwnRequests) -> dict[str, Any]:
        return plan(
            own,
            url="http://x",
            model="m",
            facts=FACTS,
            seed=1,
            repeat=1,
            arrivals={"kind": "constant", "rate": 2},
            duration_s=10,
        )

    few = OwnRequests("mine", "completions", (GOOD,) * 20)
    with pytest.raises(WorkloadError, match="20 requests, and 28 are needed"):
        planned(few)
    assert planned(OwnRequests("mine", "completions", (GOOD,) * 28))["requests"]["reuse"] is False
    again = OwnRequests("mine", "completions", (GOOD,), reuse=True)
    assert planned(again)["requests"]["reuse"] is True
    assert "flatters" in describe(again, seed=1, facts=FACTS)["notices"][0]


@given(st.integers(1, 50), st.integers(1, 7))
def test_parts_are_disjoint_and_whole(count: int, of: int) -> None:
    own = OwnRequests("mine", "completions", tuple({"prompt": [number], "max_tokens": 1} for number in range(count)))
    parts = [one["prompt"][0] for number in range(1, of + 1) for one in own.part(number, of).requests]
    assert sorted(parts) == list(range(count))


def lines(folder: Path, text: str) -> Path:
    (folder / "trace").write_text(text)
    return folder / "trace"


def test_traces(tmp_path: Path) -> None:
    assert read_trace(lines(tmp_path, "0.5\n\n1\n2.25\n")).offsets_s == (0.5, 1.0, 2.25)
    assert read_trace(lines(tmp_path, "0.5\n1\n"), speed=2).offsets_s == (0.25, 0.5)
    moved = read_trace(lines(tmp_path, "1764500000\n1764500001.5\n"))
    assert moved.offsets_s == (0.0, 1.5)
    assert "moved" in moved.notices[0]
    assert read_trace(lines(tmp_path, "1764500000000\n1764500001500\n")).offsets_s == (0.0, 1.5)
    times = read_trace(lines(tmp_path, "2025-11-30T10:00:02Z\n2025-11-30T11:00:00+01:00\n"))
    assert times.offsets_s == (0.0, 2.0)
    assert "sorted" in times.notices[0]
    assert times.arrivals() == {"kind": "trace", "offsets_s": [0.0, 2.0]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no arrivals"),
        ("1\nx\n", "line 2: 'x' is neither seconds nor"),
        ("1\n-1\n", "line 2: '-1' is no time"),
        ("inf\n", "line 1: 'inf' is no time"),
        ("nan\n", "line 1: 'nan' is no time"),
        ("2025-11-30T10:00:02\n", "no time zone"),
        ("1\n2025-11-30T10:00:02Z\n", "line 2: ISO 8601 times, but the lines before are seconds"),
        ("1764500000\n1764500001000\n", "line 2: Unix times in units of 0.001 s, but"),
        ("0\n900000\n", "spans 250.0 h"),
    ],
)
def test_traces_that_are_none(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        read_trace(lines(tmp_path, text))
    assert words in str(caught.value)


def test_bounds_of_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MOST_ARRIVALS", 1)
    with pytest.raises(WorkloadError, match="more than 1 arrivals"):
        read_trace(lines(tmp_path, "1\n2\n"))
    with pytest.raises(WorkloadError, match="speed"):
        read_trace(lines(tmp_path, "1\n"), speed=0)
    with pytest.raises(WorkloadError, match="is no file"):
        read_trace(tmp_path / "none")
