"""What an operator may ask for: windows, moments, a client's file, and a node without Prometheus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_node.diagnosis import client, request
from vllm_node.diagnosis.window import clock, duration, moment, seconds

AT = 1_800_000_000
VALUES: dict[str, Any] = {
    "prometheus_enabled": True,
    "prometheus_port": 9091,
    "prometheus_scrape_interval": "15s",
    "vllm_instances": [{"name": "chat", "port": 8000}],
}
CLIENT: dict[str, Any] = {"schema": 1, "from": AT - 300, "to": AT, "ttft_s": {"p95": 0.4, "mean": 0.3, "samples": 900}}


@pytest.mark.parametrize(("text", "value"), [("15m", 900), ("1h30m", 5400), ("90s", 90), ("1d", 86400), ("1m", 60)])
def test_a_duration_and_back(text: str, value: int) -> None:
    assert seconds(text) == value
    assert seconds(duration(value)) == value


@pytest.mark.parametrize("text", ["", " ", "15", "m", "15m1h", "-5m", "1.5h", "59s", "25h", "15 m", "1w"])
def test_what_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"window|duration"):
        seconds(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1800000000", AT), ("1800000000.5", AT + 0.5), ("2027-01-15T08:00:00Z", AT), ("2027-01-15T09:00:00+01:00", AT)],
)
def test_a_moment(text: str, value: float) -> None:
    assert moment(text) == value


@pytest.mark.parametrize(("text", "why"), [("2027-01-15T08:00:00", "no time zone"), ("yesterday", "no time;"), ("", "no time;")])
def test_what_is_no_moment_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        moment(text)


def test_moments_are_shown_in_utc() -> None:
    assert clock(AT) == "2027-01-15 08:00:00 UTC"


def test_a_request_asks_for_all_signals_in_the_window() -> None:
    asked = request.build("gpu1", VALUES, {"window": "1h"})
    assert asked.module_args["url"] == "http://127.0.0.1:9091"
    assert "[1h]" in asked.module_args["queries"]["waiting"]
    assert "at" not in asked.module_args
    facts = asked.facts({"answers": {}, "at": AT}, {})
    assert (facts.window_s, facts.at, facts.scrape_interval_s) == (3600, AT, 15)
    assert [one.name for one in facts.instances] == ["chat"]


def test_the_clients_time_is_taken_unless_another_is_asked_for() -> None:
    asked = request.build("gpu1", VALUES, {"client": CLIENT})
    assert (asked.window_s, asked.module_args["at"]) == (300, AT)
    asked = request.build("gpu1", VALUES, {"client": CLIENT, "window": "10m"})
    assert (asked.window_s, asked.module_args["at"]) == (600, AT)
    asked = request.build("gpu1", VALUES, {"client": CLIENT, "at": str(AT + 60)})
    assert (asked.window_s, asked.module_args["at"]) == (900, AT + 60)
    asked = request.build("gpu1", VALUES, {"client": {**CLIENT, "from": AT - 5}})
    assert asked.window_s == 60


def test_the_sites_thresholds_are_taken() -> None:
    asked = request.build("gpu1", {**VALUES, "prometheus_alerts": {"VllmKVCacheSaturated": {"threshold": 0.8}}}, {})
    assert asked.alerts["VllmKVCacheSaturated"] == 0.8
    with pytest.raises(ValueError, match="prometheus_alerts"):
        request.build("gpu1", {**VALUES, "prometheus_alerts": {"VllmKvCacheSaturated": {"threshold": 0.8}}}, {})


def test_a_node_without_prometheus_says_so() -> None:
    with pytest.raises(ValueError, match=r"Prometheus is off on this node .* next: "):
        request.build("gpu1", {**VALUES, "prometheus_enabled": False}, {})


@pytest.mark.parametrize(("text", "value"), [("15s", 15), ("1m", 60), ("fast", None), (None, None)])
def test_the_scrape_interval_is_known_or_it_is_not(text: str | None, value: float | None) -> None:
    asked = request.build("gpu1", {**VALUES, "prometheus_scrape_interval": text}, {})
    assert asked.facts({"answers": {}, "at": AT}, {}).scrape_interval_s == value


def test_the_command_lines_words_become_variables(tmp_path: Path) -> None:
    file = tmp_path / "client.json"
    file.write_text(json.dumps(CLIENT))
    assert request.variables("1h", "2027-01-15T08:00:00Z", file) == {
        "diagnose_window": "1h",
        "diagnose_at": str(float(AT)),
        "diagnose_client": CLIENT,
    }
    assert request.variables(None, None, None) == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 2}'])
def test_a_clients_file_that_cannot_be_used_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "client.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"client\.json: "):
        request.variables(None, None, file)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"schema": 2}, "schema 1"),
        ({"ttft": {}}, "unknown key ttft"),
        ({"ttft_s": None}, "neither ttft_s nor e2e_s"),
        ({"ttft_s": {"p95": 1}}, "ttft_s holds samples"),
        ({"ttft_s": {"samples": 9}}, "ttft_s holds samples"),
        ({"ttft_s": {"p95": "1", "samples": 9}}, "ttft_s.p95 is no number"),
        ({"ttft_s": {"p95": float("nan"), "samples": 9}}, "ttft_s.p95 is no number"),
        ({"cpu_cores": -1}, "cpu_cores is no number"),
        ({"cpu_cores": True}, "cpu_cores is no number"),
        ({"to": None}, "belong together"),
        ({"to": AT - 301}, "to is the later one"),
    ],
)
def test_a_clients_measurement_of_another_form_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        client.read({**CLIENT, **changes})


def test_a_clients_measurement() -> None:
    found = client.read({**CLIENT, "instance": "chat", "cpu_cores": 0})
    assert (found.window_s, found.instance, found.cpu_cores, found.e2e_s) == (300, "chat", 0, None)
    assert client.read({"schema": 1, "e2e_s": {"mean": 1, "samples": 1}}).window_s is None
