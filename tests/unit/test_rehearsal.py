"""The watch of a rehearsal: names are answered and written down, rules know each unit, lines say who and where."""

from __future__ import annotations

import ipaddress
import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit import role_code

NAMES: Any = role_code.load("roles/rehearse/files/name_watch.py")
WATCH: Any = role_code.load("roles/rehearse/library/egress_watch.py")
UNITS = ["prometheus.service", "vllm-big-one.service"]


def message(name: str, kind: int = 1, number: int = 7) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!HHHHHH", number, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def addresses(reply: bytes, name: str) -> list[str]:
    """Addresses out of an answer; the question stands in it as it was asked."""
    count = struct.unpack_from("!HHHHHH", reply)[3]
    at = len(message(name))
    assert reply[12:at] == message(name, struct.unpack_from("!H", reply, at - 4)[0])[12:]
    found = []
    for _ in range(count):
        length = struct.unpack_from("!HHHIH", reply, at)[4]
        found.append(str(ipaddress.ip_address(reply[at + 12 : at + 12 + length])))
        at += 12 + length
    assert at == len(reply)
    return found


def test_a_question_is_read() -> None:
    assert NAMES.question(message("Store.Example", 28)) == ("store.example", 28, len(message("store.example")))


@given(st.binary(max_size=80))
def test_whatever_comes_is_a_question_or_none(data: bytes) -> None:
    try:
        name, _, end = NAMES.question(data)
    except NAMES.QuestionError:
        return
    assert end <= len(data)
    assert name == name.lower()


@pytest.mark.parametrize("cut", range(1, 31))
def test_a_cut_question_is_none(cut: int) -> None:
    whole = message("store.example")
    with pytest.raises(NAMES.QuestionError):
        NAMES.question(whole[:-cut])


def test_each_unknown_name_has_an_address_of_its_own() -> None:
    names = NAMES.Names({"Allowed.example": ["192.0.2.1", "2001:db8::1"]})
    one, two = names.ask("one.example", 1), names.ask("two.example", 1)
    assert one != two
    assert names.ask("one.example", 1) == one
    assert not one[1]
    assert all(address in ipaddress.ip_network("198.18.0.0/15") for address in (*one[0], *two[0]))
    assert names.ask("one.example", 28) == ([], False)
    assert names.ask("1.2.0.192.in-addr.arpa", 12) == (None, False)
    assert names.ask("allowed.example", 1) == ([ipaddress.ip_address("192.0.2.1")], True)
    assert names.ask("allowed.example", 28) == ([ipaddress.ip_address("2001:db8::1")], True)


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[tuple[Path, dict[str, int]]]:
    """The program itself, as the unit runs it, and its ports."""
    (tmp_path / "wanted.json").write_text(json.dumps({"units": UNITS, "allowed": {"in.example": ["192.0.2.1"]}}))
    running = subprocess.Popen([sys.executable, NAMES.__file__, str(tmp_path)])
    try:
        end = time.monotonic() + 20
        while not (tmp_path / "ports.json").exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        yield tmp_path, json.loads((tmp_path / "ports.json").read_text())
    finally:
        running.kill()
        running.wait()


def test_questions_are_answered_and_written_down(watching: tuple[Path, dict[str, int]]) -> None:
    folder, ports = watching
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(10)
        one.sendto(b"\0" * 5, ("127.0.0.1", ports[UNITS[0]]))
        one.sendto(message("out.example"), ("127.0.0.1", ports[UNITS[0]]))
        given_address = addresses(one.recv(512), "out.example")
    with socket.create_connection(("127.0.0.1", ports[UNITS[1]]), 10) as two:
        asked = message("in.example")
        two.sendall(struct.pack("!H", len(asked)) + asked)
        reply = two.recv(512)
        assert addresses(reply[2:], "in.example") == ["192.0.2.1"]
    assert [json.loads(line) for line in (folder / "asked.jsonl").read_text().splitlines()] == [
        {"unit": UNITS[0], "name": "out.example", "allowed": False, "given": given_address[0]},
        {"unit": UNITS[1], "name": "in.example", "allowed": True, "given": None},
    ]


def test_rules_have_a_chain_for_each_unit_and_name_a_network_once() -> None:
    networks = [ipaddress.ip_network(one) for one in ("192.0.2.0/24", "192.0.2.7/32", "2001:db8::/64")]
    text = WATCH.rules(UNITS, networks)
    assert "elements = { 192.0.2.0/24 }" in text
    assert text.count(" chain u_vllm_big_one_service {") == 1
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize(
    ("attempt", "line"),
    [
        (("a.service", "x.example", None, "tcp", 443, 3), "a.service tried to reach x.example:443 (tcp, packets: 3)"),
        (("a.service", None, "203.0.113.7", "icmp", None, 1), "a.service tried to reach 203.0.113.7 (icmp, packets: 1)"),
        (("a.service", "x.example", None, None, None, None), "a.service asked for the name x.example"),
    ],
)
def test_lines(attempt: tuple[Any, ...], line: str) -> None:
    keys = ("unit", "name", "address", "protocol", "port", "packets")
    assert WATCH.line_of(dict(zip(keys, attempt, strict=True))) == line
