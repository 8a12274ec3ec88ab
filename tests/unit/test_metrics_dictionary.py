"""The dictionary: true in itself, true against real pages, and in step with what the roles do."""

from __future__ import annotations

import csv
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

from tests.unit.metrics_pages import COUNTERS, VLLM_PAGE, needs
from tests.unit.node_code import ROOT
from vllm_node.metrics import dictionary
from vllm_node.metrics.dictionary import TARGET_LABELS, TYPES, Dictionary, Metric, Name, load, version_of
from vllm_node.metrics.exposition import schema_of

METRICS = list(load())
ROWS = re.compile(r"^#?\s*(DCGM_[A-Z0-9_]+)\s*,\s*(gauge|counter|label)\s*,", re.MULTILINE)


def entry(**changes: Any) -> dict[str, Any]:
    return {"type": "gauge", "unit": "x", "means": "X.", **changes}


def load_from(folder: Path, monkeypatch: pytest.MonkeyPatch, **metrics: dict[str, Any]) -> Dictionary:
    """A dictionary of one file."""
    (folder / "vllm.yml").write_text(yaml.safe_dump({"job": "vllm", "labels": [], "metrics": metrics}))
    monkeypatch.setattr(dictionary, "__file__", str(folder / "dictionary.py"))
    return load.__wrapped__()


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.logical)
def test_an_entry_is_complete(metric: Metric) -> None:
    assert metric.type in TYPES
    assert metric.unit
    assert re.fullmatch(r"[A-Z].*\.", metric.means), "a sentence of our own"
    assert not metric.labels & (TARGET_LABELS | {"le", "quantile"}), "Prometheus and the type bring these"
    assert not metric.labels & set(metric.labels_when)
    assert set(metric.values) <= metric.labels
    assert set(metric.wire) <= set(TYPES)
    assert metric.type == "histogram" or metric.buckets is None
    edges = [float(edge) for edge in metric.buckets or ()]
    assert edges == sorted(set(edges))
    assert any(name.until is None for name in metric.names) or len(metric.names) == 1


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.logical)
def test_names_of_a_metric_do_not_overlap(metric: Metric) -> None:
    for name in metric.names:
        assert name.since is None or name.until is None or name.since <= name.until
        assert name.lingers is None or (name.until is not None and name.lingers > name.until)
    for older, newer in itertools.pairwise(metric.names):
        assert older.until is not None
        assert newer.since is not None
        assert older.until < newer.since


def test_a_counter_carries_total_where_the_python_client_writes_it() -> None:
    named = [name.name for metric in METRICS if metric.source == "vllm" and metric.type == "counter" for name in metric.names]
    assert [name for name in named if not name.endswith("_total")] == []


@pytest.mark.parametrize(
    ("logical", "version", "name"),
    [
        ("kv_usage", None, "vllm:kv_cache_usage_perc"),
        ("kv_usage", "0.32.0", "vllm:kv_cache_usage_perc"),
        ("kv_usage", "0.9.2", "vllm:kv_cache_usage_perc"),
        ("kv_usage", "0.9.1", "vllm:gpu_cache_usage_perc"),
        ("itl", "0.10.1", "vllm:time_per_output_token_seconds"),
        ("itl", "0.10.2rc1", "vllm:inter_token_latency_seconds"),
        ("itl", "0.33.0+cu129", "vllm:inter_token_latency_seconds"),
        ("ttft", "0.8.5", "vllm:time_to_first_token_seconds"),
        ("tpot", "0.10.2", None),
        ("tpot", "0.11.0", "vllm:request_time_per_output_token_seconds"),
        ("prefix_hits", "0.9.1", "vllm:gpu_prefix_cache_hits_total"),
        ("prefix_queries", "0.20.0", "vllm:prefix_cache_queries_total"),
        ("preemptions", "0.8.0", "vllm:num_preemptions_total"),
        ("preemptions_per_request", "0.29.0", None),
        ("requests_swapped", None, None),
        ("requests_swapped", "0.8.5", "vllm:num_requests_swapped"),
    ],
)
def test_a_logical_name_becomes_that_of_the_version(logical: str, version: str | None, name: str | None) -> None:
    assert load().name(logical, version) == name


def test_a_version_that_is_none_is_not_guessed_at() -> None:
    assert version_of("main") is None
    assert version_of(None) is None
    assert version_of("0.32.1.dev12+gabcdef") == Version("0.32.1")


@pytest.mark.parametrize("series", ["vllm:time_to_first_token_seconds_bucket", "vllm:iteration_tokens_total_count"])
def test_a_histogram_is_known_by_its_parts(series: str) -> None:
    metric = load().known(series)
    assert metric is not None
    assert metric.type == "histogram"


@pytest.mark.parametrize(
    "series",
    [
        "vllm:time_to_first_token_seconds",
        "vllm:iteration_tokens_total",
        "vllm:num_preemptions",
        "vllm:kv_cache_usage_perc_total",
        "vllm:gpu_cache_usage_factor",
        "",
    ],
)
def test_what_prometheus_cannot_ask_for_is_not_known(series: str) -> None:
    assert load().known(series) is None


def test_what_is_mistaken_leads_to_something_that_exists() -> None:
    known = load()
    for wrong, (right, why) in known.mistaken.items():
        assert known.known(wrong) is None
        assert known.known(right) is not None, wrong
        assert why


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"a": entry(type="counterr")}, "vllm.yml: a: counterr is no type"),
        ({"a": entry(name="x"), "b": entry(name="x")}, "x belongs to a and to b"),
        ({"a": entry(names=[{"name": "x", "until": "2"}, {"name": "y", "since": "2"}])}, "x and y are both right"),
        ({"a": entry(names=[{"name": "x"}, {"name": "y", "since": "2"}])}, "x and y are both right"),
        ({"a": entry(since="2", until="1")}, "ends before it begins"),
        ({"a": entry(type="histogram"), "b": entry(name="a_sum")}, "a_sum belongs to a and to b"),
    ],
)
def test_an_entry_that_is_wrong_in_itself_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metrics: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        load_from(tmp_path, monkeypatch, **metrics)


def test_two_files_cannot_share_a_logical_name() -> None:
    one = Metric("a", "x", ("j",), (Name("x"),), "gauge", "u", "M.")
    other = Metric("a", "y", ("j",), (Name("y"),), "gauge", "u", "M.")
    with pytest.raises(ValueError, match="two metrics are called a"):
        Dictionary([], [one, other], {})


def test_jobs_are_those_of_the_scrape() -> None:
    jobs = yaml.safe_load((ROOT / "roles/prometheus/vars/main.yml").read_text())["_prometheus_jobs"]
    assert sorted(jobs.values()) == load().jobs()
    assert {job for metric in METRICS for job in metric.jobs} == set(load().jobs())


def test_what_the_scrape_drops_is_dropped_here() -> None:
    """The golden configuration is what the template makes of a node with everything."""
    config = yaml.safe_load((ROOT / "tests/golden/node-a/etc/vllm-node/prometheus/prometheus.yml").read_text())
    assert {job["job_name"] for job in config["scrape_configs"]} == set(load().jobs())
    for job in config["scrape_configs"]:
        source = load().source_of(job["job_name"])
        relabel = job["metric_relabel_configs"]
        regexes = [one["regex"] for one in relabel if one["action"] == "drop" and one["source_labels"] == ["__name__"]]
        ours = source.dropped_series.pattern if source.dropped_series else ""
        assert set("|".join(regexes).split("|")) - {".+_created"} == set(ours.split("|")) - {"", ".+_created"}
        labels = [one["regex"] for one in relabel if one["action"] == "labeldrop"]
        assert all(re.fullmatch("|".join(labels), label) for label in source.dropped_labels)
        kept = [label for one in METRICS if job["job_name"] in one.jobs for label in one.labels]
        assert not labels or [label for label in kept if re.fullmatch("|".join(labels), label)] == []


def test_modes_of_the_processor_are_those_that_the_scrape_keeps() -> None:
    template = (ROOT / "roles/prometheus/templates/prometheus.yml.j2").read_text()
    dropped = re.search(r"node_cpu_seconds_total;\(([^)]*)\)", template)
    assert dropped is not None
    metric = load().known("node_cpu_seconds_total")
    assert metric is not None
    assert [mode for mode in metric.values["mode"] if re.fullmatch(dropped[1], mode)] == []


def dcgm_rows(text: str) -> dict[str, str]:
    """Field → type of every row of a counters file, those in comments too."""
    return dict(ROWS.findall(text))


def dcgm_complaints(text: str) -> list[str]:
    found = []
    for field, kind in dcgm_rows(text).items():
        metric = load().known(field)
        if kind == "label":
            continue  # it becomes a label of the others
        if metric is None:
            found.append(f"{field} is not known")
        elif kind not in metric.wire and not (field.startswith("DCGM_FI_PROF_PCIE_") and kind == "counter"):
            # NVIDIA's file has those two in a comment as well, as the counters that they no longer are.
            found.append(f"{field} is a {metric.type}, not a {kind}")
    return found


def test_every_counter_that_ships_is_known() -> None:
    text = (ROOT / "roles/dcgm_exporter/templates/counters.csv.j2").read_text()
    assert len(dcgm_rows(text)) > 35
    assert dcgm_complaints(text) == []
    shipped = set(dcgm_rows(text))
    row = yaml.safe_load((ROOT / "vllm_node/metrics/dcgm.yml").read_text())["conditions"]["row"]
    assert [one.logical for one in METRICS if one.source == "dcgm" and (one.when == row) == (one.logical in shipped)] == []


def test_a_counter_that_nobody_knows_would_be_found() -> None:
    said = dcgm_complaints("DCGM_FI_DEV_NEW_THING, gauge, x\nDCGM_FI_DEV_GPU_TEMP, counter, x\n# DCGM_FI_X, gauge, x\n")
    assert said == [
        "DCGM_FI_DEV_NEW_THING is not known",
        "DCGM_FI_DEV_GPU_TEMP is a gauge, not a counter",
        "DCGM_FI_X is not known",
    ]


@pytest.mark.skipif(needs(COUNTERS) is not None, reason=str(needs(COUNTERS)))
def test_every_row_of_the_public_counters_file_is_known() -> None:
    text = COUNTERS.read_text()
    rows = [row for row in csv.reader(text.splitlines()) if row and not row[0].startswith("#")]
    assert {row[0].strip() for row in rows} <= set(dcgm_rows(text)), "the pattern finds every row"
    assert dcgm_complaints(text) == []


def differences(page: dict[str, dict[str, Any]], job: str, version: str) -> list[str]:
    """Where a page and the dictionary say something else."""
    known, found = load(), []
    for family, said in page.items():
        for series in (family + suffix for suffix in said.get("suffixes") or [""]):
            metric = known.known(series)
            if known.dropped(job, series):
                continue
            if metric is None or job not in metric.jobs:
                found.append(f"{series} is not known")
                continue
            if said["type"] not in metric.wire:
                found.append(f"{series} is a {said['type']}")
            labels = set(said.get("labels") or ())
            if not (metric.labels <= labels and (metric.more_labels or labels == metric.labels)):
                found.append(f"{series} has {sorted(labels)}")
            edges = set(said.get("edges") or ()) - {"+Inf"}
            wrong = {edge for edge in edges if not metric.has_edge(edge)}
            if wrong or (metric.buckets and not metric.steps and set(metric.buckets) != edges):
                found.append(f"{series} has edges {sorted(edges)}")
            if metric.name(version_of(version)) != metric.named(series).name:
                found.append(f"{series} is not its name in {version}")
    return found


@pytest.mark.skipif(needs(VLLM_PAGE) is not None, reason=str(needs(VLLM_PAGE)))
def test_every_sample_of_a_real_server_is_known_as_it_is() -> None:
    page = schema_of(VLLM_PAGE.read_text())
    assert differences(page, "vllm", "0.32.0") == []
    names = {family + suffix for family, said in page.items() for suffix in said.get("suffixes") or [""]}
    always = [one for one in METRICS if one.jobs == ("vllm",) and one.when is None]
    expected = {series for one in always if (name := one.name(Version("0.32.0"))) for series in one.series(name)}
    assert expected - names == set(), "what is always there is there"
    assert len(names) > 100


@pytest.mark.skipif(needs(VLLM_PAGE) is not None, reason=str(needs(VLLM_PAGE)))
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("vllm:kv_cache_usage_perc", "vllm:kv_cache_usage"), "vllm:kv_cache_usage is not known"),
        (("num_requests_running gauge", "num_requests_running counter"), "vllm:num_requests_running is a counter"),
        (('le="2.5"', 'le="3.0"'), "vllm:time_to_first_token_seconds_bucket has edges"),
        (("finished_reason=", "reason="), "vllm:request_success_total has"),
        (("vllm:inter_token_latency", "vllm:time_per_output_token"), "is not its name in 0.32.0"),
    ],
)
def test_a_page_that_differs_would_be_found(change: tuple[str, str], said: str) -> None:
    page = schema_of(VLLM_PAGE.read_text().replace(*change))
    assert said in "\n".join(differences(page, "vllm", "0.32.0"))
