"""Dashboards from elsewhere: what is mended, what is refused, and that all of it is said at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.role_code import ROOT
from vllm_node import inputs
from vllm_node.cli import cli
from vllm_node.dashboards import panel_types, store
from vllm_node.dashboards.importing import Verdict, judge
from vllm_node.dashboards.sources import NODE_SOURCE
from vllm_node.exit_codes import ExitCode
from vllm_node.lab import gpu

PUBLIC = ROOT.parent / "shared/data/dashboards"
needs_public = pytest.mark.skipif(not PUBLIC.is_dir(), reason="no shared/data beside the project: public dashboards")
GOOD = "sum(rate(vllm:generation_tokens_total[$__rate_interval]))"


def chart(expr: str = GOOD, **changes: Any) -> dict[str, Any]:
    place = {"x": 0, "y": 0, "w": 12, "h": 8}
    source = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
    target = {"refId": "A", "expr": expr, "datasource": source}
    return {
        "id": 4,
        "type": "timeseries",
        "title": "Speed",
        "gridPos": place,
        "datasource": source,
        "targets": [target],
        **changes,
    }


def board(*panels: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "__inputs": [{"name": "DS_PROMETHEUS", "type": "datasource", "pluginId": "prometheus"}],
        "__requires": [{"type": "grafana", "id": "grafana", "version": "11.0.0"}],
        "id": 17,
        "uid": "theirs",
        "title": "Theirs",
        "schemaVersion": 39,
        "version": 9,
        "panels": list(panels) or [chart()],
        **changes,
    }


def verdict(tmp_path: Path, content: Any, name: str = "theirs.json", *, lenient: bool = False) -> Verdict:
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    (found,) = judge([str(path)], lenient=lenient)
    return found


def imported(tmp_path: Path, content: Any, **options: Any) -> dict[str, Any]:
    found = verdict(tmp_path, content, **options)
    assert found.taken, found.reasons
    model: dict[str, Any] = json.loads(found.text)
    return model


# --- what is mended ---------------------------------------------------------------------------------------


def test_inputs_are_settled_and_ids_cleared(tmp_path: Path) -> None:
    made = imported(tmp_path, board())
    assert made["id"] is None
    assert made["uid"] == "theirs"
    assert "__inputs" not in made
    assert "__requires" not in made
    assert made["panels"][0]["datasource"] == NODE_SOURCE
    assert made["panels"][0]["targets"][0]["datasource"] == NODE_SOURCE
    assert "DS_" not in json.dumps(made)


@pytest.mark.parametrize(
    "source",
    [
        *(None, "Prometheus", "default", "$DS_PROMETHEUS", "${DS_PROMETHEUS}", "[[datasource]]", "$datasource"),
        *({"uid": "$datasource"}, {"type": "prometheus", "uid": "PBFA97CFB590B2093"}, {"uid": "${DS_PROMETHEUS}"}),
    ],
)
def test_every_way_to_name_a_prometheus_is_the_nodes(tmp_path: Path, source: Any) -> None:
    variable = {"name": "datasource", "type": "datasource", "query": "prometheus"}
    made = imported(tmp_path, board(chart(datasource=source), templating={"list": [variable]}))
    assert made["panels"][0]["datasource"] == NODE_SOURCE
    assert made["templating"]["list"] == []


@pytest.mark.parametrize("source", ["-- Grafana --", "-- Mixed --", {"type": "datasource", "uid": "grafana"}])
def test_grafanas_own_sources_stay(tmp_path: Path, source: Any) -> None:
    assert imported(tmp_path, board(chart(datasource=source)))["panels"][0]["datasource"] == source


def test_a_constant_of_the_inputs_is_filled_in(tmp_path: Path) -> None:
    given = [{"name": "VAR_JOB", "type": "constant", "value": "vllm"}]
    made = imported(tmp_path, board(chart('up{job="${VAR_JOB}"}'), __inputs=given))
    assert made["panels"][0]["targets"][0]["expr"] == 'up{job="vllm"}'
    refused = verdict(tmp_path, board(__inputs=[{"name": "VAR_JOB", "type": "constant"}]))
    assert refused.reasons == ("input VAR_JOB has no value: write one into the file, nobody is asked for it here",)


def test_variables_of_the_dashboard_stay(tmp_path: Path) -> None:
    expr = 'rate(vllm:generation_tokens_total{model_name=~"$model"}[$__rate_interval])'
    assert imported(tmp_path, board(chart(expr)))["panels"][0]["targets"][0]["expr"] == expr


@pytest.mark.parametrize(
    "wrap", [lambda it: {"dashboard": it, "meta": {"slug": "x"}}, lambda it: {"kind": "Dashboard", "spec": it}]
)
def test_the_wrappers_of_exports_come_off(tmp_path: Path, wrap: Any) -> None:
    assert imported(tmp_path, wrap(board()))["title"] == "Theirs"


@pytest.mark.parametrize("uid", [None, "", "a b", "x" * 41])
def test_a_uid_is_made_of_the_files_name_and_stays(tmp_path: Path, uid: str | None) -> None:
    first = imported(tmp_path, board(uid=uid), name="My Board (1).json")
    again = imported(tmp_path, board(uid=uid, title="changed since"), name="My Board (1).json")
    assert first["uid"] == again["uid"] == "import-my-board-1"


def test_ids_of_panels_are_made_unique(tmp_path: Path) -> None:
    made = imported(tmp_path, board(chart(), chart(title="Second"), chart(id=None, title="Third")))
    ids = [each["id"] for each in made["panels"]]
    assert ids[0] == 4
    assert len(set(ids)) == 3


def test_the_input_is_not_changed_by_judging_it_twice(tmp_path: Path) -> None:
    assert verdict(tmp_path, board()) == verdict(tmp_path, board())


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "it is no JSON"),
        ("[]", "it is no dashboard: the file holds no JSON object"),
        ({"panels": []}, "it has no title"),
        ({"title": "x"}, "it has no list of panels"),
        ({"title": "x", "elements": {}, "layout": {}}, "the second schema"),
        (board(chart(type="graph")), "panel 'Speed' is of the retired type graph: use timeseries"),
        (board(chart(type="singlestat")), "panel 'Speed' is of the retired type singlestat: use stat"),
        (board(chart(type="table-old")), "panel 'Speed' is of the retired type table-old: use table"),
        (board(chart(type="grafana-piechart-panel")), "use piechart"),
        (board(chart(type="natel-plotly-panel")), "needs the plugin natel-plotly-panel: use xychart"),
        (board(chart(type="somebodys-panel")), "is of the type somebodys-panel, which Grafana itself does not have"),
        (board(chart(libraryPanel={"uid": "x", "name": "y"})), "panel 'Speed' is a library panel"),
        (board(chart(datasource={"type": "loki", "uid": "x"})), "panel 'Speed' asks a data source of type loki"),
        (
            board(__inputs=[{"name": "DS_L", "type": "datasource", "pluginId": "loki"}]),
            "input DS_L asks for a data source of type loki",
        ),
        (
            board(templating={"list": [{"name": "logs", "type": "datasource", "query": "loki"}]}),
            "variable logs chooses",
        ),
        (board(chart("sum(")), "panel 'Speed': the query is no PromQL"),
        (board(chart("vllm:gpu_cache_usage_factor")), "use vllm:kv_cache_usage_perc"),
        (board(chart("vllm:num_request_running")), "did you mean vllm:num_requests_running?"),
        (board(chart("vllm:gpu_cache_usage_perc")), "it is called vllm:kv_cache_usage_perc now"),
        (board(chart("vllm:num_requests_swapped")), "vllm:num_requests_swapped ended with version 0.9.0"),
        (
            board({"type": "row", "title": "r", "id": 1, "panels": [chart("nothing_of_ours")]}),
            "there is no metric nothing_of_ours",
        ),
        (board(panels=None, rows=[{"panels": [chart(type="graph")]}]), "of the retired type graph"),
        (
            board(
                templating={"list": [{"name": "m", "type": "query", "query": {"query": "label_values(vllm:gone, x)"}}]}
            ),
            "variable m: there is no metric vllm:gone",
        ),
    ],
)
def test_a_fault_refuses_it_with_a_reason(tmp_path: Path, content: Any, words: str) -> None:
    if isinstance(content, dict) and content.get("panels", 1) is None:
        del content["panels"]
    found = verdict(tmp_path, content)
    assert not found.taken
    assert found.text == ""
    assert words in " / ".join(found.reasons)


def test_all_reasons_are_told_at_once(tmp_path: Path) -> None:
    found = verdict(tmp_path, board(chart("nothing_of_ours", type="graph"), chart("sum(", id=5, title="Other")))
    assert len(found.reasons) == 3


def test_lenient_turns_what_grafana_converts_and_unknown_metrics_into_warnings(tmp_path: Path) -> None:
    found = verdict(tmp_path, board(chart("nothing_of_ours", type="graph")), lenient=True)
    assert found.taken
    assert len(found.warnings) == 2
    assert not verdict(tmp_path, board(chart(type="somebodys-panel")), lenient=True).taken
    assert not verdict(tmp_path, board(chart("sum(")), lenient=True).taken


@pytest.mark.parametrize(
    ("expr", "words"),
    [
        ("rate(vllm:num_requests_running[5m])", "rate() of vllm:num_requests_running, a gauge"),
        ("sum(vllm:generation_tokens_total)", "only ever grows"),
        ("rate(vllm:request_queue_time_seconds_sum[5m])", "is no mean"),
        ('DCGM_FI_DEV_GPU_UTIL{Hostname="x"}', "has no label Hostname"),
        ("DCGM_FI_DEV_XID_ERRORS", "may be empty"),
    ],
)
def test_what_shows_something_else_than_it_says_is_a_warning(tmp_path: Path, expr: str, words: str) -> None:
    found = verdict(tmp_path, board(chart(expr)))
    assert found.taken
    assert words in " / ".join(found.warnings)


@pytest.mark.parametrize(
    "expr",
    [
        GOOD,
        "rate(vllm:request_queue_time_seconds_sum[5m]) / rate(vllm:request_queue_time_seconds_count[5m])",
        "count(vllm:generation_tokens_total)",
        "resets(vllm:generation_tokens_total[1h])",
        "max_over_time(vllm:num_requests_running[$window:$step])",
        "topk($n, vllm:num_requests_running)",
        "$metric{instance='x'}",
    ],
)
def test_sound_queries_are_taken_without_a_word(tmp_path: Path, expr: str) -> None:
    found = verdict(tmp_path, board(chart(expr)))
    assert (found.reasons, found.warnings) == ((), ())


def test_the_values_of_a_variable_may_come_from_a_counter(tmp_path: Path) -> None:
    variable = {"name": "m", "type": "query", "query": "label_values(vllm:generation_tokens_total, model_name)"}
    assert verdict(tmp_path, board(templating={"list": [variable]})).warnings == ()


def test_uids_do_not_clash(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(board()))
    (tmp_path / "b.json").write_text(json.dumps(board(title="Again")))
    (tmp_path / "c.json").write_text(json.dumps(board(uid="vllm-node-gpu")))
    first, second, ours = judge([str(tmp_path)])
    assert first.taken
    assert second.reasons == (f"its uid theirs is already that of {tmp_path}/a.json: give it another one",)
    assert "already that of the project's own vllm-node-gpu" in ours.reasons[0]
    assert ours.text == ""


def test_places_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").mkdir()
    found = judge(["relative.json", str(tmp_path / "gone.json"), str(tmp_path / "empty"), str(tmp_path / "bytes.json")])
    reasons = [each.reasons[0] for each in found]
    assert "{{ inventory_dir }}" in reasons[0]
    assert reasons[1:3] == ["there is no such file or folder", "there is no *.json in this folder"]
    assert "it cannot be read" in reasons[3]


def test_the_panel_types_are_those_of_the_stand_in() -> None:
    text = (gpu.STANDINS / "grafana").read_text()
    listed = text.partition('PANEL_TYPES = """')[2].partition('"""')[0]
    assert set(listed.split()) == panel_types.CORE
    assert not panel_types.CORE & {*panel_types.RETIRED, *panel_types.INSTEAD}
    assert {*panel_types.RETIRED.values(), *panel_types.INSTEAD.values()} <= panel_types.CORE


# --- where it is asked ------------------------------------------------------------------------------------


def test_the_inputs_of_a_site_are_judged_with_it(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(json.dumps(board(chart(type="graph"))))
    (tmp_path / "good.json").write_text(json.dumps(board(chart("rate(vllm:num_requests_running[5m])"), uid="good")))
    specs = inputs.load_specs(ROOT / "roles")
    values = {"grafana_dashboards_import": [str(tmp_path)]}
    found = [each for each in inputs.check(values, specs) if each.id == "inputs.dashboards"]
    assert [each.level for each in found] == ["fail", "warn"]
    assert "bad.json" in found[0].seen
    assert "retired type graph" in found[0].seen
    lenient = inputs.check({**values, "grafana_dashboards_import_lenient": True}, specs)
    assert [each.level for each in lenient if each.id == "inputs.dashboards"] == ["warn", "warn"]


def test_the_command_judges_files_and_says_so_by_its_exit_code(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(board()))
    bad.write_text(json.dumps(board(chart(type="graph"), uid="bad")))
    fine = CliRunner().invoke(cli, ["dashboards", "check", str(good)])
    assert (fine.exit_code, fine.output) == (ExitCode.OK, f"{good} (Theirs, uid theirs): imported\n")
    refused = CliRunner().invoke(cli, ["dashboards", "check", "--json", str(good), str(bad)])
    assert refused.exit_code == ExitCode.VALIDATION
    assert [each["verdict"] for each in json.loads(refused.output)] == ["imported", "refused"]
    assert CliRunner().invoke(cli, ["dashboards", "check", "--lenient", str(bad)]).exit_code == ExitCode.OK


@needs_public
def test_public_dashboards_are_imported_or_refused_with_all_reasons() -> None:
    found = {Path(each.path).name: each for each in judge([str(PUBLIC)])}
    refused = found["dcgm-exporter.json"]
    assert len(refused.reasons) == 6  # its gauges are of a type that Grafana still has
    assert all("retired type graph" in reason for reason in refused.reasons)
    for name in ("vllm-grafana.json", "vllm-performance.json"):
        assert found[name].taken, found[name].reasons
    assert [text for text in found["vllm-grafana.json"].warnings if "'Queue Time'" in text and "is no mean" in text]


@needs_public
def test_public_dashboards_come_through_when_lenient_and_keep_their_panels() -> None:
    for found in judge([str(PUBLIC)], lenient=True):
        assert found.taken, found.reasons
        before = json.loads(Path(found.path).read_text())
        after = json.loads(found.text)
        assert [each["title"] for each in store.panels(after)] == [each["title"] for each in store.panels(before)]
        assert "DS_PROMETHEUS" not in found.text
