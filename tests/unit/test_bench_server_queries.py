"""What is asked of Prometheus: over exactly the window, by the names of the node's vLLM, and nothing unknown."""

from __future__ import annotations

import pytest
from packaging.version import Version

from tests.unit.metrics_pages import endpoint, node, page
from tests.unit.node_code import utils
from tests.unit.role_code import load as role_code
from vllm_node.bench.answers import expressions, queries
from vllm_node.bench.evidence import COUNTERS, HISTOGRAMS, SERIES
from vllm_node.bench.window import Window
from vllm_node.metrics.check import check, check_alone
from vllm_node.metrics.dictionary import load
from vllm_node.metrics.promql import selectors
from vllm_node.metrics.uses import Use

VERSIONS = (None, "0.8.5", "0.9.1", "0.10.2", "0.11.0", "0.16.0", "0.32.0", "0.33.0")
WINDOW = Window(1_800_000_000.125, 1_800_000_059.998)


def uses(asked: dict[str, str]) -> list[Use]:
    return [Use("bench", name, text) for name, text in asked.items()]


@pytest.mark.parametrize("version", VERSIONS)
def test_each_expression_is_promql_over_the_exact_window_and_of_the_instance(version: str | None) -> None:
    for name, text in queries(WINDOW, "tiny", "tiny-1b", version).items():
        assert text.count("[59873ms]") == text.count("["), name
        for selector in selectors(text):
            assert load().known(selector.name or "") is not None, name
            told = {matcher.label: matcher.value for matcher in selector.matchers}
            assert told["job"] == ("dcgm" if name.startswith("gpu") else "vllm")
            assert name.startswith("gpu") or told["instance"] == "tiny"
            if name in (*SERIES, *(f"{one}_buckets" for one in HISTOGRAMS)):
                assert told["model_name"] == "tiny-1b"


@pytest.mark.parametrize("version", [version for version in VERSIONS if version])
def test_each_name_is_the_right_one_in_its_version(version: str) -> None:
    for text in queries(WINDOW, "tiny", "tiny", version).values():
        for selector in selectors(text):
            metric = load().known(selector.name or "")
            assert metric is not None
            assert metric.named(selector.name or "").holds(Version(version)) or metric.source != "vllm"


def test_what_a_version_does_not_have_is_not_asked_for() -> None:
    old, new = (queries(WINDOW, "tiny", "tiny", version) for version in ("0.9.1", "0.32.0"))
    assert "prompt_by_source_count" not in old
    assert "tpot_buckets" not in old
    assert "vllm:gpu_cache_usage_perc" in old["kv_usage"]
    assert "vllm:time_per_output_token_seconds_bucket" in old["itl_buckets"]
    assert "vllm:kv_cache_usage_perc" in new["kv_usage"]


def test_histograms_are_added_up_by_edge_and_nothing_takes_a_quantile_of_an_engine() -> None:
    asked = queries(WINDOW, "tiny", "tiny", "0.32.0")
    assert not any("histogram_quantile" in text or "engine" in text for text in asked.values())
    for name in HISTOGRAMS:
        assert asked[f"{name}_buckets"].startswith("sum by (le) (increase(")


def test_a_name_with_quotes_stays_one_value() -> None:
    text = queries(WINDOW, 'a"b\\c', None)["running"]
    (selector,) = selectors(text)
    assert [matcher.value for matcher in selector.matchers if matcher.label == "instance"] == ['a"b\\c']


def test_all_that_can_be_asked_is_known_and_a_wrong_name_would_be_told() -> None:
    asked = expressions()
    assert {*SERIES, *(f"{name}_count" for name in COUNTERS), *(f"{name}_buckets" for name in HISTOGRAMS)} <= {*asked}
    assert {*queries(WINDOW, "tiny", "tiny", None)} <= {*asked}
    assert not check_alone("here", uses(asked)).problems
    broken = {**asked, "running": asked["running"].replace("num_requests_running", "num_request_running")}
    assert check_alone("here", uses(broken)).problems


@pytest.mark.parametrize("version", ["0.10.2", "0.32.0"])
def test_a_node_is_checked_whatever_its_instances_are_called(version: str) -> None:
    vllm = endpoint("vllm", page("vllm", version, conditional=True), version=version)
    report = check("gpu1", uses(expressions()), node(vllm=vllm))
    assert not report.problems
    lost = endpoint("vllm", page("vllm", version, without=("queue_time",), conditional=True), version=version)
    assert check("gpu1", uses(expressions()), node(vllm=lost)).problems


def test_what_the_module_asks_on_the_node_is_checked_as_well() -> None:
    utils("snapshot_host")
    asked = role_code("roles/benchmark/library/instance_facts.py").FINISHED % "$instance"
    assert expressions()["finished_last_minute"] == asked


def test_a_window_without_length_is_refused() -> None:
    with pytest.raises(ValueError, match="has no length"):
        Window(5.0, 5.0)


def test_the_window_is_that_of_the_engines_result() -> None:
    result = {"window": {"start_unix_s": 10.5, "end_unix_s": 20.75, "seconds": 10.25}}
    assert Window.of(result).document() == {"start": 10.5, "end": 20.75}
    assert Window.of(result).duration == "10250ms"
