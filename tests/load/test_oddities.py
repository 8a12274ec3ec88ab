"""Each oddity of the wire is counted as the definitions say, by both back ends alike."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.load.runs import BACKENDS, measure, plan, requests_file
from tests.load.server import TimedServer, serving
from vllm_node.load.records import Record

TIMEOUTS = {"connect_s": 1, "first_byte_s": 0.3, "stall_s": 0.3, "total_s": 2}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TimedServer]:
    with serving(tmp_path_factory.mktemp("server"), "--ttft-us", "60000", "--itl-us", "10000") as one:
        yield one


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[TimedServer]:
    """One with a log in which nobody else's aborted streams turn up late."""
    with serving(tmp_path, "--ttft-us", "60000", "--itl-us", "10000") as one:
        yield one


def one(server: TimedServer, folder: Path, line: Mapping[str, Any], backend: str, **other: Any) -> tuple[Record, dict[str, Any]]:
    """The record and the result of a single request."""
    requests = requests_file(folder, [{"max_tokens": 4, **line}], other.get("api", "completions"))
    document = plan(server, requests=requests, backend=backend, timeouts=TIMEOUTS, **other)
    result, records = measure(document, folder)
    assert len(records) == result["counts"]["offered"] == 1
    return records[0], result


FAULTS = {
    # fault: (kind, group, status, content events)
    "http_500": ("http_500", "error", 500, 0),
    "http_404": ("http_404", "error", 404, 0),
    "http_429": ("http_429", "refused", 429, 0),
    "http_503": ("http_503", "refused", 503, 0),
    "reset_head": ("reset", "error", 0, 0),
    "garbage": ("protocol", "error", 0, 0),
    "silent": ("first_byte_timeout", "timeout", 0, 0),
    "reset": ("reset", "error", 200, 2),
    "eof": ("truncated", "error", 200, 2),
    "stall": ("stall_timeout", "timeout", 200, 2),
    "bad_json": ("bad_event", "error", 200, 2),
    "error_event": ("stream_error", "error", 200, 2),
    "no_done": ("unfinished", "error", 200, 4),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_failures_are_told_apart(server: TimedServer, tmp_path: Path, fault: str, backend: str) -> None:
    kind, group, status, contents = FAULTS[fault]
    record, result = one(server, tmp_path, {"fault": fault, "after": 2}, backend)
    assert (record.kind, record.group, record.status, len(record.contents_us)) == (kind, group, status, contents)
    counts = result["counts"]
    assert counts["by_kind"] == {kind: 1}
    assert counts["completed"] == counts["good"] == 0
    assert result["error_rate"] == 1.0
    assert result["latency"]["e2e_sent_s"]["n"] == (1 if group == "timeout" else 0)
    # A first token that came is not forgotten because the rest did not.
    assert result["latency"]["ttft_sent_s"]["n"] == (1 if contents or group == "timeout" else 0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("api", ["completions", "chat"])
def test_empty_first_events_are_no_tokens(server: TimedServer, tmp_path: Path, api: str, backend: str) -> None:
    record, result = one(server, tmp_path, {"empty": 2}, backend, api=api)
    assert record.kind == "ok"
    assert (record.empty_events, len(record.contents_us)) == (2, 4)
    assert record.first_byte - record.sent < 30e6 < 60e6 <= record.contents_us[0] * 1000
    assert result["latency"]["itl_s"]["n"] == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_role_that_comes_with_the_first_token_adds_no_gap(server: TimedServer, tmp_path: Path, backend: str) -> None:
    record, result = one(server, tmp_path, {}, backend, api="chat")
    assert record.kind == "ok"
    assert (record.empty_events, len(record.contents_us)) == (1, 4)
    assert result["latency"]["itl_s"]["n"] == 3
    assert result["latency"]["itl_s"]["min"] > 0.005


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_token_has_no_tpot_and_no_goodput_by_it(server: TimedServer, tmp_path: Path, backend: str) -> None:
    record, result = one(server, tmp_path, {"max_tokens": 1}, backend, slo={"tpot_p95_s": 0.1})
    assert record.kind == "ok"
    assert (record.output_tokens, record.tpot_us()) == (1, None)
    assert result["left_out"]["tpot_one_token"] == 1
    assert result["latency"]["tpot_s"]["n"] == 0
    assert (result["counts"]["good"], result["counts"]["unjudged"]) == (0, 1)
    assert result["verdict"]["verdict"] == "insufficient"
    assert any("one token" in notice for notice in result["notices"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_tokens_in_an_event(server: TimedServer, tmp_path: Path, backend: str) -> None:
    record, result = one(server, tmp_path, {"max_tokens": 12, "group": 4}, backend)
    assert (len(record.contents_us), record.output_tokens) == (3, 12)
    # Two gaps of 10 ms for eleven tokens after the first.
    assert record.tpot_us() == pytest.approx(20000 / 11, abs=400)
    assert any("content events is not the number of tokens" in notice for notice in result["notices"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cut", ["utf8", "json"])
@pytest.mark.parametrize("api", ["completions", "chat"])
def test_event_is_there_with_its_last_byte(own_server: TimedServer, tmp_path: Path, cut: str, api: str, backend: str) -> None:
    record, _ = one(own_server, tmp_path, {"cut": cut}, backend, api=api)
    (stream,) = own_server.truth()
    assert (record.kind, len(record.contents_us)) == ("ok", 4)
    # The log has the second halves; the first were sent three milliseconds earlier.
    errors = [(record.sent + at * 1000 - sent) / 1e6 for at, sent in zip(record.contents_us, stream.events, strict=True)]
    assert min(errors) > -0.1, errors


@pytest.mark.parametrize("backend", BACKENDS)
def test_slow_head(server: TimedServer, tmp_path: Path, backend: str) -> None:
    record, _ = one(server, tmp_path, {"fault": "slow_head"}, backend)
    assert (record.kind, len(record.contents_us)) == ("ok", 4)
    assert record.first_byte - record.sent >= 60e6


@pytest.mark.parametrize("backend", BACKENDS)
def test_answer_without_usage(server: TimedServer, tmp_path: Path, backend: str) -> None:
    record, result = one(server, tmp_path, {"fault": "no_usage"}, backend)
    assert (record.kind, record.output_tokens, record.tpot_us()) == ("ok", None, None)
    assert result["left_out"]["tpot_no_usage"] == 1
    assert any("no usage" in notice for notice in result["notices"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fault", ["close", "until_close"])
def test_server_closes_each_connection(server: TimedServer, tmp_path: Path, fault: str, backend: str) -> None:
    requests = requests_file(tmp_path, [{"max_tokens": 3, "fault": fault}] * 3)
    result, records = measure(plan(server, requests=requests, backend=backend), tmp_path)
    assert [record.kind for record in records] == ["ok"] * 3
    assert result["generator"]["connections_made"] == 3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("keep_alive", "made"), [(True, 1), (False, 5)])
def test_connections(server: TimedServer, tmp_path: Path, keep_alive: bool, made: int, backend: str) -> None:
    requests = requests_file(tmp_path, [{"max_tokens": 2}] * 5)
    result, records = measure(
        plan(server, requests=requests, connections={"keep_alive": keep_alive}, backend=backend), tmp_path
    )
    assert [record.kind for record in records] == ["ok"] * 5
    assert result["generator"]["connections_made"] == made
    # The time to connect is not the generator's lateness.
    assert result["selfcheck"]["lateness_s"]["p99_nearest_rank"] < 0.01


@pytest.mark.parametrize("backend", BACKENDS)
def test_planned_cancellation(own_server: TimedServer, tmp_path: Path, backend: str) -> None:
    record, result = one(own_server, tmp_path, {"max_tokens": 100, "cancel_after_s": 0.2}, backend)
    assert (record.kind, record.group) == ("cancelled", "cancelled")
    assert 3 <= len(record.contents_us) <= 25
    assert (result["counts"]["cancelled"], result["error_rate"]) == (1, 0.0)
    ends = time.monotonic() + 5
    while not own_server.mark() and time.monotonic() < ends:
        time.sleep(0.01)  # until the server has met the end of the connection
    (stream,) = own_server.truth()
    assert stream.outcome == "aborted"


@pytest.mark.parametrize("backend", BACKENDS)
def test_total_timeout(server: TimedServer, tmp_path: Path, backend: str) -> None:
    record, result = one(server, tmp_path, {"max_tokens": 1000}, backend)
    assert (record.kind, record.group) == ("total_timeout", "timeout")
    assert result["latency"]["e2e_sent_s"]["timed_out"] == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_nobody_listens(tmp_path: Path, backend: str) -> None:
    record, _ = one(TimedServer(1, tmp_path / "none"), tmp_path, {}, backend)
    assert (record.kind, record.group, record.sent) == ("connect_error", "error", 0)
    assert "refused" in record.detail.lower()


@pytest.mark.parametrize("backend", BACKENDS)
def test_long_answers_leave_the_memory_before_their_end(server: TimedServer, tmp_path: Path, backend: str) -> None:
    line = {"max_tokens": 1500, "itl_us": 500, "ttft_us": 1000}
    record, _ = one(server, tmp_path, line, backend)
    assert (record.kind, record.output_tokens) == ("ok", 1500)
    assert len(record.contents_us) == 1500
    assert list(record.contents_us) == sorted(record.contents_us)


def test_both_back_ends_find_the_same(server: TimedServer, tmp_path: Path) -> None:
    """One trace of requests with all oddities through both, equal but for the clock."""
    faults: list[dict[str, Any]] = [{"fault": fault, "after": 1, "max_tokens": 3} for fault in FAULTS]
    oddities: list[dict[str, Any]] = [{"empty": 2}, {"group": 3}, {"cut": "utf8"}, {"cut": "json"}, {"fault": "close"}, {"max_tokens": 1}]
    lines = [*faults, *({"max_tokens": 7, **odd} for odd in oddities)]
    seen = []
    for backend in BACKENDS:
        folder = tmp_path / backend
        document = plan(
            server,
            arrivals={"kind": "trace", "offsets_s": [0.02 * number for number in range(len(lines))], "duration_s": 0.5},
            requests=requests_file(folder, lines),
            timeouts=TIMEOUTS,
            backend=backend,
        )
        result, records = measure(document, folder)
        plain = [(one.index, one.kind, one.status, one.output_tokens, len(one.contents_us), one.empty_events, one.size) for one in records]
        seen.append((plain, result["counts"]["by_kind"], result["counts"]["good"], result["left_out"]))
        assert len(records) == len(lines)
    assert seen[0] == seen[1]
