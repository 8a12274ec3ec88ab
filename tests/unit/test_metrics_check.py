"""What the check says: of everything that ships, and of each thing that can be wrong with a name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.metrics_pages import SHARED, VLLM_PAGE, endpoint, needs, node, page
from vllm_node.metrics import uses
from vllm_node.metrics.check import check, check_alone
from vllm_node.metrics.problems import Gap, Problem, Report
from vllm_node.metrics.schema import Endpoint
from vllm_node.metrics.uses import Use

DASHBOARDS = ["dcgm-exporter.json", "vllm-grafana.json", "vllm-performance.json"]


def ask(expression: str, label: str | None = None) -> Use:
    return Use("file.json", 'panel "P"', expression, label)


def seen(report: Report) -> list[str]:
    return [f"{problem.metric} {problem.seen}" for problem in report.problems]


def alone(expression: str, label: str | None = None) -> list[str]:
    return seen(check_alone("here", [ask(expression, label)]))


def held(expression: str, **endpoints: Endpoint) -> Report:
    return check("gpu1", [ask(expression)], node(**endpoints))


# --- what ships


def test_everything_that_ships_is_known() -> None:
    report = check_alone("what ships", uses.all_uses(disabled=True))
    assert report.ok, report.text()
    assert report.expressions > 250


def test_everything_that_ships_finds_its_metrics_on_a_node() -> None:
    report = check("gpu1", uses.all_uses(disabled=True), node())
    assert report.ok, report.text()


def test_what_ships_asks_for_more_than_one_place_and_kind() -> None:
    """A collector that misses a kind of file would make the two tests above worth nothing."""
    found = uses.all_uses(disabled=True)
    files = {use.file for use in found}
    assert {uses.RECORDING, "vllm_node/diagnosis/signals.py"} <= files
    assert {f"{uses.ALERTS}/{name}.yml" for name in ("vllm", "gpu", "node", "exporters", "prometheus")} <= files
    assert len([file for file in files if file.startswith(uses.DASHBOARDS)]) >= 5
    assert {use.place.split()[0] for use in found if use.file.endswith(".json")} >= {"panel", "variable"}


def test_an_alert_that_is_switched_off_is_not_asked_of_a_node() -> None:
    places = {use.place for use in uses.alert_uses({})}
    assert "alert VllmE2EHigh" not in places
    assert "alert VllmE2EHigh" in {use.place for use in uses.alert_uses({}, disabled=True)}
    assert "alert VllmTargetDown" not in {use.place for use in uses.alert_uses({"VllmTargetDown": {"enabled": False}})}


def test_overrides_that_are_wrong_are_told() -> None:
    with pytest.raises(ValueError, match="prometheus_alerts: there is no alert Nonsense"):
        uses.all_uses({"Nonsense": {}})


def test_every_place_of_a_dashboard_that_asks_is_found() -> None:
    board = {
        "panels": [
            {"title": "A", "targets": [{"expr": "a"}, {"expr": ""}, {"refId": "x"}]},
            {"type": "row", "title": "R", "panels": [{"title": "B", "targets": [{"expr": "b"}]}]},
            {"id": 7, "targets": [{"expr": "c"}]},
            {"type": "text", "title": "T"},
        ],
        "templating": {
            "list": [
                {"type": "query", "name": "node", "query": "label_values(up, node)"},
                {"type": "query", "name": "gpu", "query": {"query": 'label_values(d{x="1"}, gpu)', "refId": "x"}},
                {"type": "query", "name": "any", "query": "label_values(model_name)"},
                {"type": "datasource", "name": "datasource", "query": "prometheus"},
            ]
        },
        "annotations": {"list": [{"name": "built in"}, {"name": "N", "expr": "e"}]},
    }
    assert [(use.place, use.expression, use.label) for use in uses.dashboard_uses(board, "x.json")] == [
        ('panel "A"', "a", None),
        ('panel "B"', "b", None),
        ('panel "7"', "c", None),
        ("variable node", "up", "node"),
        ("variable gpu", 'd{x="1"}', "gpu"),
        ("annotation N", "e", None),
    ]


# --- without a node


@pytest.mark.parametrize(
    "expression",
    [
        "sum by (node, instance, model_name) (rate(vllm:generation_tokens_total[5m]))",
        'rate(vllm:time_to_first_token_seconds_bucket{le="2.5"}[$__rate_interval])',
        'vllm:request_prompt_tokens_bucket{le="50000.0"}',
        'up{job=~"vllm|dcgm"} == 0',
        'process_resident_memory_bytes{job!="vllm"}',
        'vllm:request_success_total{finished_reason!~"abort|error"}',
        "vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc",
        'DCGM_FI_DEV_XID_ERRORS{err_code!~"13|31"} > 0',
        "instance:vllm_kv_cache_usage:max > 0.9",
        'sum(rate(http_requests_total{status="5xx", handler=~"/v1/.*"}[5m]))',
        'vllm:request_success_total{finished_reason=~"$reason"}',
        "delta(DCGM_FI_DEV_GPU_TEMP[5m])",
        "increase(node_vmstat_oom_kill[5m])",
        "node_filesystem_avail_bytes{device_error='x'}",
        "resets(vllm:prompt_tokens_total[1h])",
        '{job="vllm"}',
        # Prometheus' patterns know \\z, those of Python do not: not judged.
        'vllm:request_success_total{finished_reason=~"halt\\\\z"}',
    ],
)
def test_what_is_right_is_not_complained_about(expression: str) -> None:
    assert alone(expression) == []


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("vllm:kv_cache_use_perc", "is no metric that is known; did you mean vllm:kv_cache_usage_perc"),
        ("vllm:gpu_cache_usage_factor", "(no version ever had it); did you mean vllm:kv_cache_usage_perc?"),
        ("rate(vllm:num_preemptions[5m])", "did you mean vllm:num_preemptions_total?"),
        ("vllm:time_to_first_token_seconds", "did you mean vllm:time_to_first_token_seconds_bucket?"),
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS > 0", "did you mean DCGM_FI_DEV_CLOCKS_EVENT_REASONS?"),
        ("instance:vllm_kv_cache_usage:min", "did you mean instance:vllm_kv_cache_usage:max"),
        ("completely_different", "completely_different is no metric that is known"),
        ("vllm:prompt_tokens_created", "is no metric that is known"),
        ("vllm:gpu_cache_usage_perc > 0.9", "ended with 0.9.1; since then it is called vllm:kv_cache_usage_perc"),
        ("vllm:num_requests_swapped", "ended with 0.9.0, and nothing took its place"),
        ("sum by (pod) (vllm:num_requests_running)", "has no label pod; it has engine, model_name"),
        ('DCGM_FI_DEV_GPU_TEMP{hostname="x"}', "has no label hostname: it is dropped at the scrape"),
        ("DCGM_FI_DEV_GPU_TEMP unless on (gpu) vllm:num_requests_running", "vllm:num_requests_running has no label gpu"),
        ("node_load1{mountpoint='/'}", "has no label mountpoint; it has none"),
        ('vllm:request_success_total{finished_reason="errors"}', "never says finished_reason='errors'; it says stop"),
        ('http_requests_total{status=~"5.."}', None),
        ('http_requests_total{status="500"}', "never says status='500'"),
        ('vllm:time_to_first_token_seconds_bucket{le="3"}', 'has no edge le="3"; did you mean le="2.5"?'),
        ('vllm:time_to_first_token_seconds_bucket{le="1"}', 'has no edge le="1"; did you mean le="1.0"?'),
        ('vllm:request_prompt_tokens_bucket{le="3000.0"}', 'has no edge le="3000.0"'),
        ('up{job="vllm-serving"} == 0', 'never has job="vllm-serving", a job that does not exist; it comes from alert'),
        ('vllm:num_requests_running{job="dcgm"}', 'never has job="dcgm"; it comes from vllm'),
        ('vllm:num_requests_running{job!~"vllm|dcgm"}', 'never has job!~"vllm|dcgm"; it comes from vllm'),
        ('http_requests_total{status!="500"}', "never says status!='500'"),
        ('instance:vllm_kv_cache_usage:max{job="vlm"}', 'never has job="vlm", a job'),
        ("rate(vllm:kv_cache_usage_perc[5m])", "is a gauge, and rate() of it means nothing"),
        ("increase(DCGM_EXP_XID_ERRORS_COUNT[5m])", "is a gauge, and increase() of it"),
        ("delta(vllm:prompt_tokens_total[5m])", "is a counter, and delta() of it breaks"),
        ("prometheus_http_request_duration_seconds_bucket", "is dropped at the scrape"),
        ("histogram_quantile(0.9, vllm:num_requests_running)", "has no label le"),
        ("sum(", 'panel "P" is no PromQL: '),
    ],
)
def test_what_is_wrong_is_told(expression: str, said: str | None) -> None:
    found = alone(expression)
    assert len(found) == (0 if said is None else 1), found
    assert said is None or said in found[0]


def test_the_label_that_a_variable_lists_must_exist() -> None:
    assert alone("DCGM_FI_DEV_GPU_TEMP", "gpu") == []
    assert "has no label model_name" in alone("DCGM_FI_DEV_GPU_TEMP", "model_name")[0]


@pytest.mark.skipif(needs(VLLM_PAGE) is not None, reason=str(needs(VLLM_PAGE)))
@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_public_dashboards_ask_for_names_that_exist(name: str) -> None:
    board = json.loads((SHARED / "dashboards" / name).read_text())
    found = uses.dashboard_uses(board, name)
    assert len(found) > 8
    assert seen(check_alone(name, found)) == []


# --- on a node


def test_a_node_that_offers_everything_is_well() -> None:
    report = held("vllm:kv_cache_usage_perc > 0.9 and on (node) DCGM_FI_DEV_GPU_UTIL == 0")
    assert report.ok
    assert report.text() == "gpu1: 1 expressions, every metric that they ask for is there"


def test_a_metric_that_was_renamed_is_told_with_file_panel_and_next_step() -> None:
    text = page("vllm", "0.32.0").replace("vllm:kv_cache_usage_perc", "vllm:kv_cache_usage_percent")
    report = held("vllm:kv_cache_usage_perc > 0.9", vllm=endpoint("vllm", text, version="0.34.0"))
    assert report.text().splitlines() == [
        "gpu1: vllm:kv_cache_usage_perc is not offered by vllm/chat (0.34.0); did you mean vllm:kv_cache_usage_percent?",
        '  asked by file.json: panel "P"',
        "  next: `curl http://127.0.0.1:1/vllm` on the node shows what vllm-chat.service offers; another release may call "
        "it otherwise",
        "gpu1: 1 expressions, 1 problem",
    ]


def test_one_problem_is_told_once_with_everything_that_asks() -> None:
    places = [Use("a.yml", "alert A", "vllm:num_requests_running"), Use("b.json", 'panel "B"', "vllm:num_requests_running")]
    report = check("gpu1", [*places, places[0]], node(vllm=endpoint("vllm", page("vllm", without=["requests_running"]))))
    assert list(report.problems.values()) == [places]
    assert report.as_dict()["problems"][0]["asked_by"] == ["a.yml: alert A", 'b.json: panel "B"']


def test_an_older_vllm_is_asked_by_its_older_name() -> None:
    old = endpoint("vllm", page("vllm", "0.9.0"), version="0.9.0")
    report = held("vllm:kv_cache_usage_perc > 0.9", vllm=old)
    assert seen(report) == ["vllm:kv_cache_usage_perc is called vllm:gpu_cache_usage_perc by vllm/chat (0.9.0)"]
    assert held("vllm:gpu_cache_usage_perc > 0.9", vllm=old).ok
    assert held("vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc", vllm=old).ok


def test_a_newer_vllm_is_not_asked_by_an_older_name_alone() -> None:
    report = held("vllm:gpu_cache_usage_perc > 0.9")
    assert seen(report) == ["vllm:gpu_cache_usage_perc is called vllm:kv_cache_usage_perc by vllm/chat (0.32.0)"]
    assert held("vllm:gpu_cache_usage_perc or vllm:kv_cache_usage_perc").ok


def test_a_metric_that_ended_is_a_problem_and_one_that_is_to_come_is_none() -> None:
    assert seen(held("vllm:num_requests_swapped")) == [
        "vllm:num_requests_swapped ended with 0.9.0; vllm/chat (0.32.0) has it no more"
    ]
    old = endpoint("vllm", page("vllm", "0.28.0"), version="0.28.0")
    report = held("rate(vllm:request_num_preemptions_sum[5m])", vllm=old)
    assert list(report.gaps) == [
        Gap("vllm:request_num_preemptions_sum", "since 0.30.0; vllm/chat (0.28.0) is older")
    ]
    assert report.ok


def test_an_older_name_that_lingers_is_enough() -> None:
    both = page("vllm", "0.10.0") + "# TYPE vllm:gpu_cache_usage_perc gauge\n"
    both += 'vllm:gpu_cache_usage_perc{engine="0",model_name="x"} 1\n'
    assert held("vllm:gpu_cache_usage_perc", vllm=endpoint("vllm", both, version="0.10.0")).ok


def test_a_version_that_is_not_told_is_said() -> None:
    report = held("vllm:kv_cache_usage_perc", vllm=endpoint("vllm"))
    assert report.off == ["vllm/chat did not tell its version: names are judged by the newest one"]
    assert report.ok


def test_a_metric_that_may_be_absent_is_listed_with_the_reason() -> None:
    report = held("rate(vllm:kv_block_lifetime_seconds_sum[5m])")
    assert report.ok
    assert report.text().splitlines() == [
        "gpu1: not there now, and need not be:",
        "  vllm:kv_block_lifetime_seconds_sum: only with --kv-cache-metrics",
        "gpu1: 1 expressions, every metric that they ask for is there",
    ]
    assert report.as_dict()["may_be_absent"][0]["asked_by"] == ['file.json: panel "P"']


def test_a_label_that_is_gone_is_told() -> None:
    text = page("vllm", "0.32.0").replace("model_name=", "model=")
    report = held("sum by (model_name) (vllm:num_requests_running)", vllm=endpoint("vllm", text, version="0.32.0"))
    assert seen(report) == ["vllm:num_requests_running has no label model_name on vllm/chat; it has engine, model"]


def test_a_label_that_is_there_at_times_is_a_gap() -> None:
    report = held('DCGM_EXP_XID_ERRORS_COUNT{xid!=""} > 0')
    assert report.ok
    assert list(report.gaps) == [Gap("DCGM_EXP_XID_ERRORS_COUNT, label xid", "with an XID only")]


def test_labels_of_the_target_are_there_although_no_page_has_them() -> None:
    assert held('sum by (node, instance, job) (vllm:num_requests_running{instance="chat"})').ok


def test_an_edge_that_a_site_replaced_is_told() -> None:
    text = page("vllm", "0.32.0").replace('le="2.5"', 'le="3.0"')
    own = endpoint("vllm", text, version="0.32.0")
    asked = 'rate(vllm:time_to_first_token_seconds_bucket{le="2.5"}[5m])'
    (found,) = held(asked, vllm=own).problems
    assert found.seen == 'has no edge le="2.5" on vllm/chat; did you mean le="3.0"?'
    assert "--custom-histogram-buckets" in found.mend
    assert held(asked.replace("2.5", "3.0"), vllm=own).ok, "the node's edges count, not those of the dictionary"
    assert held(asked.replace('="2.5"', '=~"2.5|3.0"'), vllm=own).ok
    assert not held(asked.replace('="2.5"', '=~"4.*5"'), vllm=own).ok


def test_another_type_is_told() -> None:
    text = page("vllm", "0.32.0").replace("TYPE vllm:num_preemptions_total counter", "TYPE vllm:num_preemptions_total gauge")
    own = endpoint("vllm", text, version="0.32.0")
    assert seen(held("rate(vllm:num_preemptions_total[5m])", vllm=own)) == [
        "vllm:num_preemptions_total is a gauge on vllm/chat, and not a counter"
    ]
    assert held("vllm:num_requests_running", vllm=own).ok, "nobody asks for it"


def test_an_endpoint_that_is_gone_is_told_once_and_not_for_each_metric() -> None:
    gone = endpoint("dcgm", "", state="gone", error="Connection refused")
    report = held("DCGM_FI_DEV_GPU_TEMP and DCGM_FI_DEV_GPU_UTIL", dcgm=gone)
    assert list(report.problems) == [
        Problem(
            "dcgm/dcgm-exporter",
            "gives no metrics: Connection refused",
            "`systemctl status dcgm-exporter.service`, then `curl http://127.0.0.1:1/dcgm` on the node",
        )
    ]


def test_an_empty_page_is_told_once() -> None:
    report = held("DCGM_FI_DEV_GPU_TEMP and DCGM_FI_DEV_GPU_UTIL", dcgm=endpoint("dcgm", ""))
    assert seen(report) == ["dcgm/dcgm-exporter answers with an empty page"]


def test_a_component_that_is_switched_off_is_no_failure_and_is_said() -> None:
    report = held("DCGM_FI_DEV_GPU_TEMP > 80", dcgm=endpoint("dcgm", "", state="off"))
    assert report.ok
    assert report.off == [
        "dcgm/dcgm-exporter is switched off here: what is asked of it has no data, and is not judged"
    ]
    assert "switched off" in report.text()


def test_a_wrong_name_is_told_of_a_component_that_is_switched_off_as_well() -> None:
    report = held("DCGM_FI_DEV_GPU_TEMPER > 80", dcgm=endpoint("dcgm", "", state="off"))
    assert "did you mean DCGM_FI_DEV_GPU_TEMP" in seen(report)[0]


def test_each_instance_has_to_offer_it() -> None:
    other = endpoint("vllm", page("vllm", "0.32.0", without=["kv_usage"]), version="0.32.0", instance="embed")
    report = check("gpu1", [ask("vllm:kv_cache_usage_perc")], [*node(), other])
    assert seen(report) == ["vllm:kv_cache_usage_perc is not offered by vllm/embed (0.32.0)"]
    only = ask('vllm:kv_cache_usage_perc{instance="chat"}')
    assert check("gpu1", [only], [*node(), other]).ok


def test_what_several_jobs_offer_has_to_be_on_one_of_those_that_are_asked() -> None:
    bare = endpoint("alertmanager", "up 1\n")
    assert held("process_virtual_memory_max_bytes", alertmanager=bare).ok
    narrowed = held('process_virtual_memory_max_bytes{job="alertmanager"}', alertmanager=bare)
    assert seen(narrowed) == ["process_virtual_memory_max_bytes is not offered by alertmanager/alertmanager"]


def test_what_prometheus_makes_itself_is_asked_of_no_page() -> None:
    assert held('ALERTS{alertstate="firing", severity="critical"} and on (job) up == 0').ok


def test_an_expression_that_cannot_be_read_is_told_on_a_node_too() -> None:
    assert re.match('panel "P" is no PromQL: ', seen(held("sum("))[0])


@pytest.mark.skipif(needs(VLLM_PAGE) is not None, reason=str(needs(VLLM_PAGE)))
def test_everything_that_ships_finds_its_metrics_on_a_real_server() -> None:
    real = endpoint("vllm", VLLM_PAGE.read_text(), version="0.32.0")
    report = check("gpu1", uses.all_uses(disabled=True), node(vllm=real))
    assert report.ok, report.text()


@pytest.mark.skipif(needs(VLLM_PAGE) is not None, reason=str(needs(VLLM_PAGE)))
@pytest.mark.parametrize(
    ("change", "file"),
    [
        (("vllm:num_preemptions_total", "vllm:preemptions_total"), uses.RECORDING),
        (("finished_reason=", "reason="), f"{uses.ALERTS}/vllm.yml"),
        (('le="2.5"', 'le="3.0"'), uses.RECORDING),
        (("vllm:cache_config_info", "vllm:kv_config_info"), f"{uses.DASHBOARDS}/vllm-node-kv-cache.json"),
    ],
)
def test_a_real_server_that_changed_would_be_noticed(change: tuple[str, str], file: str) -> None:
    real = endpoint("vllm", VLLM_PAGE.read_text().replace(*change), version="0.32.0")
    report = check("gpu1", uses.all_uses(disabled=True), node(vllm=real))
    assert file in {use.file for asking in report.problems.values() for use in asking}


def test_a_report_is_a_document_for_a_program(tmp_path: Path) -> None:
    told: dict[str, Any] = json.loads(json.dumps(held("vllm:nothing").as_dict()))
    assert (told["where"], told["ok"], told["expressions"]) == ("gpu1", False, 1)
    assert told["problems"][0]["metric"] == "vllm:nothing"
