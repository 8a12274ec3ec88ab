"""Streams through the real nginx: one by one, in time, many at once, and ended by a client that goes away."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.clients import KEYS, ask, connect, request
from tests.gateway.conftest import Door
from tests.gateway.nginx import NAME
from tests.load.runs import measure
from vllm_node.load.records import Record

TTFT_S, ITL_S = 0.05, 0.02


def streams(door: Door, folder: Path, count: int, clients: int, *, through: bool = True, tokens: int = 8) -> list[Record]:
    """Records of that many streams, by the measuring engine."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "key").write_text(KEYS["app"])
    target: dict[str, Any] = {"url": door.server.url, "model": "tiny"}
    if through:
        address = {"url": f"https://127.0.0.1:{door.gateway.port}", "server_name": NAME}
        target |= {**address, "ca_file": str(door.gateway.ca), "api_key_file": str(folder / "key")}
    asked = {"kind": "generated", "count": count, "vocabulary": [10, 1000], "prompt_tokens": 500, "output_tokens": tokens}
    _, records = measure({"target": target, "arrivals": {"kind": "closed", "clients": clients}, "requests": asked}, folder)
    return records


@pytest.mark.usefixtures("first_in_line")
def test_chunks_come_one_by_one_and_the_first_within_milliseconds(door: Door, tmp_path: Path) -> None:
    first: dict[bool, list[float]] = {True: [], False: []}
    gaps: list[int] = []
    for number in range(6):
        through = number % 2 == 0
        for record in streams(door, tmp_path / str(number), 4, 1, through=through):
            assert (record.kind, len(record.contents_us), record.output_tokens) == ("ok", 8, 8)
            first[through].append(record.contents_us[0] / 1e6)
            gaps += record.gaps_us() if through else []
    assert min(first[True]) >= TTFT_S
    assert statistics.median(first[True]) - statistics.median(first[False]) < 0.003
    # Two that came together would have no gap; other programs on the machine may hold up a few.
    assert statistics.median(gaps) == pytest.approx(ITL_S * 1e6, rel=0.05)
    assert sum(gap < ITL_S * 0.5e6 for gap in gaps) <= len(gaps) // 10


def test_two_hundred_streams_at_once(door: Door, tmp_path: Path) -> None:
    door.server.get("/stats_reset")
    records = streams(door, tmp_path, 400, 200, tokens=20)
    assert [(one.kind, len(one.contents_us)) for one in records] == [("ok", 20)] * 400
    assert door.server.get("/stats")["max_open"] >= 190


def ended(door: Door, mark: int) -> list[tuple[str, int]]:
    """(how it ended, tokens) of streams since a mark, as soon as there is one."""
    end = time.monotonic() + 5
    while not (found := door.server.truth(mark)) and time.monotonic() < end:
        time.sleep(0.02)
    return [(one.outcome, one.tokens) for one in found]


@pytest.mark.parametrize("wait", ["for the head only", "for a token"])
def test_a_client_that_goes_away_ends_the_work_for_it(door: Door, wait: str) -> None:
    mark = door.server.mark()
    body = {"model": "tiny", "prompt": "x", "stream": True, "max_tokens": 500}
    if wait == "for the head only":
        body |= {"ttft_us": 60_000_000}
    with connect(door.gateway) as one:
        one.sendall(request("POST /v1/completions HTTP/1.1", json.dumps(body)))
        seen = b""
        while (b"data: " if wait == "for a token" else b"\r\n\r\n") not in seen:
            seen += one.recv(65536)
    (outcome, tokens), = ended(door, mark)
    assert outcome == "aborted"
    assert tokens < 10
    line = door.gateway.requests("/v1/completions")[-1]
    assert (line["client"], line["model"], line["status"], line["whole"]) == ("app", "tiny", 200, False)


def test_an_answer_without_a_stream_passes_too(door: Door) -> None:
    answer = ask(door.gateway, "/v1/chat/completions", {"model": "tiny", "messages": []})
    assert answer.status == 200
    assert answer.data()["choices"][0]["message"]["content"] == "ok"


def test_a_word_of_the_server_that_would_hold_a_stream_back_does_not_count() -> None:
    text = (Path(__file__).parents[2] / "roles/gateway/templates/nginx.conf.j2").read_text()
    assert "proxy_buffering off;" in text
    assert "X-Accel-Buffering" in text.partition("proxy_ignore_headers")[2].partition(";")[0]
