"""The alert catalogue and what is made of it, without Prometheus: schema, a site's changes, what a node lacks, runbooks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.node_code import ROOT
from vllm_node import alerts, inputs, runbooks
from vllm_node.alerts import Alert
from vllm_node.dashboards import store
from vllm_node.plugins.filter.alerts import FilterModule

URL = "http://grafana.example:3000"
CATALOGUE = alerts.load_catalogue()
EACH = pytest.mark.parametrize("alert", CATALOGUE.values(), ids=lambda alert: alert.name)
# What has to be watched, and what every Prometheus should know of itself.
FLOOR = [
    "Watchdog", "TargetNeverScraped", "VllmTargetDown", "VllmNoEngineMetrics", "VllmMetricDrift",
    "VllmEngineStalled", "VllmQueueStuck", "VllmQueueBacklog", "VllmQueueTimeHigh", "VllmTTFTHigh", "VllmITLHigh",
    "VllmE2EHigh", "VllmKVCacheSaturated", "VllmPreemptionStorm", "VllmRequestErrors", "VllmHighAborts",
    "VllmHttp5xx", "VllmAdmissionRejections", "VllmPrefixHitDrop", "VllmFlapping", "DcgmExporterDown", "DcgmNoGpu",
    "GpuLost", "GpuXidHardware", "GpuXidHardwareFallback", "GpuXidApplication", "GpuEccUncorrectable",
    "GpuRowRemapFailure", "GpuRowRemapPending", "GpuRecoveryAction", "GpuHealthFailed", "GpuHealthWarning",
    "GpuHwSlowdown", "GpuSwThermalSlowdown", "GpuPowerCapped", "GpuThermalMarginLow", "GpuMemoryTempHigh",
    "GpuPcieReplay", "GpuNvlinkErrors", "GpuIdleWhileServing", "NodeDiskFilling", "NodeDiskSpaceLow",
    "NodeInodesLow", "NodeMemoryLow", "NodeClockSkew", "NodeClockNotSynchronised", "NodeOomKill",
    "NodeFilesystemReadOnly", "NodeExporterDown", "PrometheusConfigReloadFailed", "PrometheusRuleFailures",
    "PrometheusNotConnectedToAlertmanager", "PrometheusTsdbCorruption", "PrometheusNotificationsDropped",
    "AlertmanagerNotificationsFailed", "PrometheusRemoteWriteBehind", "PrometheusRemoteWriteFailing",
    "TargetSampleLimit", "TargetScrapeSlow", "PrometheusMissingRuleEvaluations",
]


def rules(component: str, overrides: dict[str, Any] | None = None, **context: Any) -> dict[str, dict[str, Any]]:
    text = alerts.rule_file(component, overrides or {}, dashboards_url=URL, **context)
    groups = yaml.safe_load(text)["groups"] if text else []
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def test_what_has_to_be_there_is_there() -> None:
    assert [name for name in FLOOR if name not in CATALOGUE] == []


@EACH
def test_an_entry_is_whole(alert: Alert) -> None:
    assert alert.severity in alerts.SEVERITIES
    assert alert.kind in ("service", "hardware", "monitoring", "watchdog")
    assert alerts.seconds(alert.for_) >= 0
    for text in (alert.summary, alert.means, alert.trap, *alert.do):
        assert re.search(r"[a-z]{3}", text)
    # What tells what stands alone: neither the page nor a message has a value to put there.
    assert "{{" not in "".join((alert.means, alert.trap, *alert.do))
    assert alert.threshold is None or alert.unit


@EACH
def test_an_alert_about_hardware_is_never_of_the_kind_that_a_benchmark_silences(alert: Alert) -> None:
    told = re.compile(r"XID|ECC|REMAP|HEALTH|RECOVERY|REPLAY|NVLINK|TEMP_LIMIT|MEMORY_TEMP|filesystem|corrupt")
    if told.search(alert.expr) and alert.severity in ("critical", "warning"):
        assert alert.kind in ("hardware", "monitoring")


@EACH
def test_each_placeholder_has_a_number_and_each_number_a_place(alert: Alert) -> None:
    used = set(re.findall(r"\$(\w+)", alert.expr + (alert.expr_expected or "")))
    given = {name for name in ("threshold", "window") if getattr(alert, name) is not None}
    assert used - {"job", "gpus"} - set(alert.params) == given
    # An alert that shares another's numbers need not use all of them.
    assert alert.params_of or set(alert.params) <= used


@EACH
def test_the_panel_exists(alert: Alert) -> None:
    assert re.fullmatch(rf"/d/{alert.dashboard}\?viewPanel=\d+", store.panel_path(alert.dashboard, alert.panel))
    assert store.panel_path(alerts.RUNBOOKS, alert.name)


@EACH
def test_panels_that_the_steps_name_exist(alert: Alert) -> None:
    titles = {panel.get("title") for path in store.paths() for panel in store.panels(store.load(path.stem))}
    named = [title for step in (*alert.do, alert.trap) for title in re.findall(r'"([A-Z][a-z][^"]+)"', step)]
    # nvidia-smi has sections, too.
    assert [title for title in named if title not in titles | {"GPU Link Info"}] == []


@EACH
def test_units_and_jobs_that_the_texts_name_exist(alert: Alert) -> None:
    known = {"prometheus", "alertmanager", "dcgm-exporter", "node-exporter", "grafana", "vllm-INSTANCE", "UNIT"}
    others = {"chronyd", "nvidia-fabricmanager"}
    named = re.findall(r"([\w-]+)\.service", " ".join(alert.do))
    assert [name for name in named if name not in known | others] == []
    jobs = yaml.safe_load((ROOT / "roles/prometheus/vars/main.yml").read_text())["_prometheus_jobs"]
    selected = {job for group in re.findall(r'job=~?"([^"$]+)"', alert.expr) for job in group.split("|")}
    assert selected | set(alert.jobs) <= set(jobs.values())


def test_alerts_that_are_named_exist() -> None:
    text = " ".join(" ".join((alert.means, alert.trap, *alert.do)) for alert in CATALOGUE.values())
    named = set(re.findall(r"\b(?:Vllm|Gpu|Dcgm|Node|Prometheus|Alertmanager)[A-Z]\w+", text))
    assert named <= set(CATALOGUE)


def test_what_alertmanager_selects_by_name_exists() -> None:
    text = (ROOT / "roles/alertmanager/templates/alertmanager.yml.j2").read_text()
    named = re.findall(r'alertname!?="(\w+)"', text)
    assert named
    assert set(named) <= set(CATALOGUE)


def test_a_rule_has_its_labels_and_its_addresses() -> None:
    rule = rules("vllm")["VllmKVCacheSaturated"]
    assert rule["labels"] == {"severity": "warning", "kind": "service", "component": "vllm"}
    assert rule["for"] == "10m"
    assert "> 0.95" in rule["expr"]
    assert "[5m]" in rule["expr"]
    told = rule["annotations"]
    assert set(told) == {"summary", "description", "runbook_url", "dashboard_url"}
    assert told["runbook_url"].startswith(f"{URL}/d/vllm-node-runbooks?viewPanel=")
    assert told["dashboard_url"].endswith("&var-node={{ or $labels.node $externalLabels.node }}")


def test_a_slash_at_the_end_of_the_address_does_not_count() -> None:
    text = alerts.rule_file("vllm", {}, dashboards_url=f"{URL}/")
    assert f"{URL}/d/" in text
    assert f"{URL}//" not in text


def test_no_dollar_is_left_for_prometheus_to_stumble_over() -> None:
    for component in alerts.COMPONENTS:
        for rule in rules(component).values():
            assert "$" not in rule["expr"]


def test_a_sites_changes_are_in_the_rules() -> None:
    changes = {
        "VllmKVCacheSaturated": {"threshold": 0.9, "for": "1h", "window": "30m", "severity": "info", "min_waiting": 3},
        "VllmQueueBacklog": {"enabled": False},
        "VllmE2EHigh": {"enabled": True, "threshold": 60},
    }
    found = rules("vllm", changes)
    changed = found["VllmKVCacheSaturated"]
    assert (changed["for"], changed["labels"]["severity"]) == ("1h", "info")
    assert "[30m]) > 0.9" in changed["expr"]
    assert "> 3" in changed["expr"]
    assert "VllmQueueBacklog" not in found
    assert "> 60" in found["VllmE2EHigh"]["expr"]
    # And nothing of it stays for the next node.
    assert "VllmE2EHigh" not in rules("vllm")


def test_alerts_that_share_numbers_change_together() -> None:
    found = rules("vllm", {"VllmTTFTHigh": {"objective_s": 1}})
    # An edge is a label, written as vLLM writes it.
    assert 'le="1.0"' in found["VllmTTFTHigh"]["expr"]
    assert 'le="1.0"' in found["VllmTTFTObjectiveUnmeasured"]["expr"]
    found = rules("gpu", {"GpuXidHardware": {"app_xids": "13|31"}})
    assert {name for name, rule in found.items() if '"13|31"' in rule["expr"]} == {
        "GpuXidHardware",
        "GpuXidHardwareFallback",
        "GpuXidApplication",
    }


def test_thresholds_are_numbers_with_the_sites_changes() -> None:
    found = alerts.thresholds({"VllmITLHigh": {"threshold": 0.2}})
    assert found["VllmITLHigh"] == 0.2
    assert found["VllmTTFTHigh"] == 0.95
    assert "Watchdog" not in found


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([], "not a dictionary"),
        ({"VllmTTFTHihg": {}}, "there is no alert VllmTTFTHihg; did you mean VllmTTFTHigh?"),
        ({"Nothing": {}}, "there is no alert Nothing"),
        ({"VllmTTFTHigh": 3}, "VllmTTFTHigh: it is not a dictionary; it may hold threshold, for"),
        ({"VllmTTFTHigh": {"treshold": 1}}, "it has no treshold; did you mean threshold?"),
        ({"VllmTargetDown": {"threshold": 1}}, "it has no threshold; it has for, severity, enabled"),
        ({"VllmTTFTHigh": {"threshold": "much"}}, "threshold is 'much', and not a number"),
        ({"VllmTTFTHigh": {"threshold": True}}, "threshold is True, and not a number"),
        ({"VllmTTFTHigh": {"threshold": float("nan")}}, "threshold is nan, and not a number"),
        ({"VllmTTFTHigh": {"for": "10 minutes"}}, "'10 minutes' is not a duration"),
        ({"VllmTTFTHigh": {"for": 600}}, "for is 600, and not a text such as 10m"),
        ({"VllmTTFTHigh": {"for": ""}}, "'' is not a duration"),
        ({"VllmTTFTHigh": {"for": "5m1h"}}, "'5m1h' is not a duration"),
        ({"VllmTTFTHigh": {"window": "0s"}}, "a window of 0s holds too few samples to fire at all; the least is 4s"),
        ({"VllmTTFTHigh": {"severity": "page"}}, "severity is 'page', not one of critical"),
        ({"VllmTTFTHigh": {"enabled": "no"}}, "enabled is 'no', not true or false"),
        ({"VllmTTFTHigh": {"objective_s": 2}}, "objective_s cannot be 2, which is no edge of the histogram; the nearest is 2.5"),
        ({"VllmTTFTObjectiveUnmeasured": {"objective_s": 1}}, "objective_s is set at VllmTTFTHigh"),
        ({"GpuXidHardware": {"app_xids": "13,31"}}, "app_xids is '13,31', and not numbers with | between them"),
    ],
)
def test_what_is_wrong_is_told(changes: Any, words: str) -> None:
    (told,) = alerts.problems(changes)
    assert words in told
    with pytest.raises(ValueError, match="prometheus_alerts"):
        alerts.rule_file("vllm", changes, dashboards_url=URL)


def test_all_that_is_wrong_is_told_at_once() -> None:
    assert len(alerts.problems({"Nothing": {}, "VllmTTFTHigh": {"for": "x", "window": "y", "threshold": []}})) == 4


def test_a_window_is_measured_by_the_sites_own_interval() -> None:
    changes = {"VllmTTFTHigh": {"window": "30s"}}
    assert alerts.problems(changes, scrape_interval="5s") == []
    assert "the least is 60s" in alerts.problems(changes, scrape_interval="15s")[0]
    assert alerts.problems({"VllmTTFTHigh": {"window": "3m"}}, scrape_interval="1m")
    # A wrong interval is somebody else's to tell.
    assert alerts.problems({"VllmTTFTHigh": {"window": "5m"}}, scrape_interval="often") == []


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(
    value=ANYTHING
    | st.dictionaries(
        st.sampled_from(["VllmTTFTHigh", "GpuXidHardware", "Watchdog"]),
        st.dictionaries(st.sampled_from(["for", "window", "threshold", "severity", "enabled", "app_xids", "objective_s"]), ANYTHING),
    )
)
def test_no_value_breaks_the_check_and_what_passes_can_be_rendered(value: Any) -> None:
    if not alerts.problems(value):
        for component in alerts.COMPONENTS:
            alerts.rule_file(component, value, dashboards_url=URL)


@pytest.mark.parametrize(
    ("text", "length_s"),
    [("0", 0), ("0s", 0), ("90s", 90), ("1h30m", 5400), ("1d", 86400), ("1w", 604800), ("500ms", 0.5), ("1y", 31536000)],
)
def test_a_duration_in_seconds(text: str, length_s: float) -> None:
    assert alerts.seconds(text) == length_s


def test_a_node_without_gpus_and_models_has_no_alerts_about_them() -> None:
    jobs = ["prometheus", "node"]
    assert alerts.rule_file("vllm", {}, dashboards_url=URL, jobs=jobs) == ""
    assert alerts.rule_file("gpu", {}, dashboards_url=URL, jobs=jobs) == ""
    found = rules("exporters", jobs=jobs)
    assert "DcgmNoGpu" not in found
    assert found["TargetNeverScraped"]["expr"] == 'absent(up{job="node"})\n'
    monitoring = rules("prometheus", jobs=jobs)
    # Without an Alertmanager there is none to be connected to.
    assert not {"AlertmanagerDown", "PrometheusNotConnectedToAlertmanager"} & set(monitoring)
    assert {"Watchdog", "PrometheusConfigReloadFailed"} <= set(monitoring)


def test_an_alert_over_two_jobs_needs_both() -> None:
    assert "GpuIdleWhileServing" in rules("gpu", jobs=["vllm", "dcgm"])
    assert "GpuIdleWhileServing" not in rules("gpu", jobs=["dcgm"])


def test_a_known_number_of_gpus_takes_the_place_of_the_past() -> None:
    assert "max_over_time" in rules("gpu")["GpuLost"]["expr"]
    assert rules("gpu", gpus=8)["GpuLost"]["expr"] == "node:dcgm_gpus:count < 8\n"


def test_the_role_gets_files_of_what_the_node_has() -> None:
    files = FilterModule().filters()["alert_rule_files"](
        {}, "/etc/vllm-node/prometheus/rules", dashboards_url=URL, jobs=["prometheus", "vllm"]
    )
    assert [file["path"].rpartition("/")[2] for file in files] == [
        "alerts-vllm.yml",
        "alerts-exporters.yml",
        "alerts-prometheus.yml",
    ]


def test_preflight_tells_wrong_alerts() -> None:
    specs = inputs.load_specs(ROOT / "roles")
    found = [
        each
        for each in inputs.check({"prometheus_alerts": {"VllmTTFTHihg": {}}}, specs, host="gpu1")
        if each.id == "inputs.alerts"
    ]
    assert [(each.level, each.host) for each in found] == [("fail", "gpu1")]
    assert "did you mean VllmTTFTHigh?" in found[0].seen
    good = inputs.check({"prometheus_alerts": {"VllmTTFTHigh": {"window": "20s"}}, "prometheus_scrape_interval": "5s"}, specs)
    assert [each for each in good if each.id == "inputs.alerts"] == []


def test_an_entry_that_lacks_something_names_itself(tmp_path: Path) -> None:
    for component in alerts.COMPONENTS:
        (tmp_path / f"{component}.yml").write_text("[]")
    (tmp_path / "gpu.yml").write_text("- {alert: GpuOdd, panel: {dashboard: a, title: b}, for: 5m, do: [x]}")
    with pytest.raises(ValueError, match=r"gpu\.yml, GpuOdd: "):
        alerts.load_catalogue(tmp_path)


def test_every_alert_has_its_page_and_no_page_is_left_over() -> None:
    folder = ROOT / "docs/runbooks"
    assert {path.stem for path in folder.glob("*.md")} == {"README", *CATALOGUE}
    stale = [path.name for path, text in runbooks.pages(folder).items() if path.read_text() != text]
    assert stale == [], "run python -m vllm_node.docs"


@EACH
def test_a_page_says_what_an_operator_needs(alert: Alert) -> None:
    page = runbooks.runbook_markdown(alert)
    for heading in ("What it means", "What it is not", "What to do", "The rule"):
        assert f"## {heading}\n" in page
    assert "1. " in page
    assert "{{" not in page
    assert alerts.expression(alert) in page
    example = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert alerts.problems(yaml.safe_load(example[-1])["prometheus_alerts"]) == []


@EACH
def test_each_number_has_a_meaning(alert: Alert) -> None:
    assert set(alert.params) <= set(runbooks.MEANINGS)


def test_the_index_links_every_page() -> None:
    index = (ROOT / "docs/runbooks/README.md").read_text()
    assert re.findall(r"\[(\w+)\]\(\w+\.md\)", index) == list(CATALOGUE)
