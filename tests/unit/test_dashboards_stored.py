"""The dashboards as they are stored: up to date, valid for the official models, and honest."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.unit.dashboard_rules import Model, complaints
from tests.unit.role_code import ROOT
from vllm_node.alerts import load_catalogue
from vllm_node.dashboards import build, runbooks, store

NUMBERS = store.numbers({})
UIDS = [path.stem for path in store.paths()]
EMPTY = yaml.safe_load((ROOT / "roles/grafana/files/panels-that-may-be-empty.yml").read_text())


def staged(uid: str) -> Model:
    model: Model = json.loads(store.text(store.folder() / f"{uid}.json", NUMBERS))
    return model


def test_what_is_stored_is_what_the_code_builds() -> None:
    stored = {path.stem: path.read_text() for path in store.paths()}
    assert stored == build.documents(), "python -m vllm_node.dashboards writes them anew"


def test_the_wanted_dashboards_are_there() -> None:
    names = ("overview", "requests", "scheduler", "kv-cache", "gpu", "fleet", "runbooks")
    assert {f"vllm-node-{name}" for name in names} <= set(UIDS)


@pytest.mark.parametrize("uid", UIDS)
def test_a_dashboard_keeps_the_rules(uid: str) -> None:
    assert complaints(staged(uid), set(UIDS)) == []


def panel(board: Model, title: str) -> dict[str, Any]:
    return next(each for each in store.panels(board) if each["title"] == title)


def with_query(expr: str) -> Callable[[Model], None]:
    def change(board: Model) -> None:
        panel(board, "Steps per second")["targets"][0]["expr"] = expr

    return change


def changed(key: str, value: Any) -> Callable[[Model], None]:
    def change(board: Model) -> None:
        panel(board, "Steps per second")[key] = value

    return change


def whole(key: str, value: Any) -> Callable[[Model], None]:
    def change(board: Model) -> None:
        board[key] = value

    return change


def linked(board: Model) -> None:
    panel(board, "Steps per second")["links"][0]["url"] = "/d/vllm-node-gone?viewPanel=1"


def unit(board: Model) -> None:
    del panel(board, "Steps per second")["fieldConfig"]["defaults"]["unit"]


def threshold(board: Model) -> None:
    panel(board, "Steps per second")["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"] = "alert:X"


BROKEN: list[tuple[Callable[[Model], None], str]] = [
    (whole("id", 3), "id is not null"),
    (whole("uid", "other"), "uid other"),
    (whole("schemaVersion", 22), "schemaVersion"),
    (whole("__inputs", []), "it waits for an import"),
    (whole("description", ""), "no description"),
    (whole("nonsense", 1), "the official models lose something"),
    (changed("id", 1), "id of a panel is there twice"),
    (changed("title", "Queue time"), "title of a panel is there twice"),
    (changed("type", "graph"), "is of the retired type graph"),
    (changed("description", ""), "Steps per second: no description"),
    (changed("datasource", {"type": "prometheus", "uid": "${DS_X}"}), "it waits for an import"),
    (changed("datasource", {"type": "prometheus", "uid": "x"}), "its data source is not the chosen one"),
    (changed("targets", []), "no query"),
    (changed("gridPos", {"x": 0, "y": 0, "w": 4, "h": 4}), "it lies over another panel"),
    (linked, "links to vllm-node-gone"),
    (unit, "the unit is None"),
    (threshold, "the threshold alert:X is no number"),
    (with_query("sum("), "no PromQL"),
    (with_query("vllm:gpu_cache_usage_factor"), "there is no metric vllm:gpu_cache_usage_factor"),
    (with_query("vllm:gpu_cache_usage_perc"), "vllm:gpu_cache_usage_perc is no more"),
    (with_query("rate(vllm:generation_tokens_total[1m])"), "a rate over 1m"),
    (with_query("vllm:generation_tokens_total"), "vllm:generation_tokens_total is shown as it is"),
    (with_query("rate(vllm:num_requests_running[$__rate_interval])"), "rate() of the gauge"),
    (with_query("rate(vllm:request_queue_time_seconds_sum[$__rate_interval])"), "is no latency"),
    (
        with_query("histogram_quantile(0.9, rate(vllm:request_queue_time_seconds_bucket[$__rate_interval]))"),
        "without a sum by le",
    ),
    (with_query('vllm:num_requests_running{Hostname="x"}'), "has no label Hostname"),
    (with_query('vllm:num_requests_running{node="$nobody"}'), "the variable nobody is not declared"),
]


@pytest.mark.parametrize(("break_it", "words"), BROKEN, ids=[words for _, words in BROKEN])
def test_a_broken_dashboard_is_noticed(break_it: Callable[[Model], None], words: str) -> None:
    board = copy.deepcopy(staged("vllm-node-scheduler"))
    break_it(board)
    assert any(words in text for text in complaints(board, set(UIDS))), complaints(board, set(UIDS))


def test_no_panel_makes_up_a_zero() -> None:
    expressions = [
        target["expr"] for uid in UIDS for each in store.panels(staged(uid)) for target in each.get("targets", [])
    ]
    assert expressions
    assert not [expr for expr in expressions if "vector(" in expr or "or 0" in expr]


def test_each_alert_has_its_page_and_a_way_there() -> None:
    catalogue = load_catalogue()
    pages = {each["title"]: each for each in store.panels(staged(runbooks.UID))}
    assert set(pages) == set(catalogue)
    for name, alert in catalogue.items():
        assert runbooks.path(name) == store.panel_path(runbooks.UID, name)
        assert alert.do[0].split("`")[0].strip() in pages[name]["options"]["content"]
        home = panel(staged(alert.dashboard), alert.panel)
        assert runbooks.path(name) in [link["url"] for link in home["links"]]


def test_a_threshold_follows_an_alert_that_has_this_very_number() -> None:
    named = {
        (uid, step["value"].removeprefix("alert:"))
        for uid in UIDS
        for each in store.panels(store.load(uid))
        for step in each.get("fieldConfig", {}).get("defaults", {}).get("thresholds", {}).get("steps", [])
        if isinstance(step["value"], str)
    }
    assert {"VllmKVCacheSaturated", "VllmITLHigh", "VllmQueueTimeHigh", "GpuThermalMarginLow"} <= {
        name for _, name in named
    }
    catalogue = load_catalogue()
    assert [name for _, name in named if catalogue[name].threshold is None] == []


def test_the_list_of_panels_that_may_be_empty_names_panels_and_reasons_and_is_short() -> None:
    entries = [(uid, title, reason) for uid, titles in EMPTY.items() for title, reason in titles.items()]
    for uid, title, reason in entries:
        assert panel(store.load(uid), title)
        assert len(reason) >= 10
    assert len(entries) <= 15


def test_the_overview_fits_a_screen() -> None:
    # A unit of the grid is 38 pixels high; the last row is about the monitoring itself and may lie below.
    tops = sorted({each["gridPos"]["y"] + each["gridPos"]["h"] for each in staged("vllm-node-overview")["panels"]})
    assert tops[-2] * 38 <= 900


def test_ids_of_runbooks_do_not_move_when_an_alert_comes_before_them() -> None:
    assert runbooks.number("VllmTargetDown") == 340
    assert store.panel_path("vllm-node-kv-cache", "KV cache in use") == "/d/vllm-node-kv-cache?viewPanel=1"
