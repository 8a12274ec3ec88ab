"""Records keep what they are given, in few bytes, and survive a file that was cut off."""

from __future__ import annotations

import tracemalloc
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.load_values import record, records
from vllm_node.load import records as file
from vllm_node.load import spool
from vllm_node.load.records import RecordWriter, pack, unpack
from vllm_node.load.wire import Exchange
from vllm_node.load.wire_stdlib import StdlibFraming


@given(records(), st.text(max_size=40), st.sampled_from(["", "stop", "length"]))
def test_round_trip(one: file.Record, detail: str, finish: str) -> None:
    one.detail, one.finish_reason = detail, finish
    assert unpack(pack(one)) == one


def test_a_record_is_small() -> None:
    """A hundred bytes and four for each token."""
    empty, long = len(pack(record(gaps_s=()))), len(pack(record(gaps_s=(0.02,) * 1000)))
    assert empty < 150
    assert long - empty == 4000


def test_long_detail_is_cut() -> None:
    one = record("reset")
    one.detail = "ä" * 1000
    assert unpack(pack(one)).detail == "ä" * 127


def test_file(tmp_path: Path) -> None:
    taken = [record(index=number, ttft_s=0.1 + number / 100) for number in range(20)]
    path = tmp_path / "records.bin"
    with RecordWriter(path) as writer:
        for one in taken:
            writer.write(one)
    assert list(file.read(path)) == taken
    path.write_bytes(path.read_bytes()[:-3])
    assert list(file.read(path)) == taken[:-1]


def test_file_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"{}")
    with pytest.raises(ValueError, match="does not hold records"):
        list(file.read(tmp_path / "x"))


def exchange(number: int, kind: str, reads: list[bytes]) -> Exchange:
    one = Exchange(number, 1000 + number, number % 2 == 0, StdlibFraming(), None)
    one.started, one.sent, one.end, one.kind, one.detail = 2000, 3000, 4000, kind, "why" if kind else ""
    one.reads = reads
    one.stamps = array("q", range(5000, 5000 + len(reads)))
    return one


@given(st.lists(st.lists(st.binary(min_size=1, max_size=300), max_size=5), max_size=8))
def test_spool(tmp_path_factory: pytest.TempPathFactory, all_reads: list[list[bytes]]) -> None:
    path = tmp_path_factory.mktemp("spool") / "raw"
    writer = spool.SpoolWriter(path)
    for number, reads in enumerate(all_reads):
        writer.put(exchange(number, "" if number == 1 else "reset", list(reads)))
    writer.close()
    parts = list(spool.read(path))
    assert [part.reads for part in parts] == all_reads
    assert [part.index for part in parts] == list(range(len(all_reads)))
    assert [part.last for part in parts] == [number != 1 for number in range(len(all_reads))]
    for part in parts:
        assert list(part.stamps) == list(range(5000, 5000 + len(part.reads)))
        assert (part.scheduled, part.started, part.sent, part.end) == (1000 + part.index, 2000, 3000, 4000)
        assert (part.kind, part.detail) == (("reset", "why") if part.last else ("", ""))


def test_spool_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    writer = spool.SpoolWriter(path)
    for number in range(200):
        writer.put(exchange(number, "reset", [bytes(6000)]))
    writer.close()
    whole = list(spool.read(path))
    path.write_bytes(path.read_bytes()[:-1])
    kept = list(spool.read(path))
    assert 100 < len(kept) < len(whole) == 200
    assert kept == whole[: len(kept)]


def test_an_hour_needs_no_more_memory_than_a_minute(tmp_path: Path) -> None:
    """What has ended leaves the memory: ten times the answers, the same peak."""

    def peak(count: int) -> int:
        writer = spool.SpoolWriter(tmp_path / "raw")
        tracemalloc.start()
        for number in range(count):
            writer.put(exchange(number, "complete", [b"x" * 250 for _ in range(64)]))
            while writer.backlog > 100:
                pass
        writer.close()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    few, many = peak(300), peak(3000)
    assert many < few + 3_000_000
