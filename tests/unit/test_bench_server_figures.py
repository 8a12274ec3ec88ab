"""Figures of the server out of Prometheus's answers: right, or absent with a reason, and never zero instead."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.server_answers import WINDOW, answers, buckets, gpus, raw, rows, steady
from vllm_node.bench import server
from vllm_node.load.distribution import INSUFFICIENT


def figures(given: Any = (), **changes: Any) -> dict[str, Any]:
    return server.figures(answers(**changes), WINDOW, given)


def why(found: dict[str, Any], what: str) -> str:
    return str(next(one["why"] for one in found["unobservable"] if one["what"] == what))


def value(found: dict[str, Any], name: str) -> Any:
    return found["figures"][name]["value"]


def test_a_quantile_is_derived_and_tells_its_bucket_and_its_samples() -> None:
    # 200 samples; the 190th is the 30th of 40 in the third bucket.
    assert figures()["figures"]["ttft_p95_s"] == {
        "value": pytest.approx(0.25 + 0.75 * 30 / 40),
        "how": "derived",
        "samples": 200,
        "bucket": [0.25, 1.0],
    }
    assert value(figures(), "e2e_mean_s") == pytest.approx(0.15)


def test_gauges_are_added_up_over_engines_and_the_cache_is_the_fullest() -> None:
    found = figures()
    assert found["figures"]["running_mean"] == {"value": 4.0, "how": "measured", "samples": 12}
    assert (value(found, "waiting_max"), value(found, "waiting_mean")) == (7.0, pytest.approx(7 / 12))
    assert (value(found, "kv_usage_max"), value(found, "kv_usage_mean")) == (0.5, 0.5)


def test_counts_and_ratios() -> None:
    found = figures()
    expected = {
        "requests_finished": 200.0,
        "preemptions_per_request": 0.12,
        "prefix_hit_ratio": 0.3,
        "prompt_tokens_computed": 1400.0,
        "prompt_tokens_cached": 600.0,
        "generation_tokens": 2000.0,
        "generation_tokens_per_s": pytest.approx(2000 / 60),
    }
    assert {name: value(found, name) for name in expected} == expected
    assert found["figures"]["requests_finished"]["by_reason"] == {"stop": 150.0, "length": 50.0}


def test_the_timeline_has_one_row_a_scrape() -> None:
    line = figures()["timeline"]
    assert line["t_s"][:3] == [5.0, 10.0, 15.0]
    assert line["waiting"][-1] == 7.0
    # Of the first scrape nobody knows what was before.
    assert line["preemptions"][:3] == [None, 2.0, 2.0]
    assert len({len(column) for column in line.values()}) == 1


def test_a_division_by_nothing_is_unobservable() -> None:
    found = figures(prefix_queries_count=rows(({}, 0.0)), prefix_hits_count=rows(({}, 0.0)))
    assert value(found, "prefix_hit_ratio") is None
    assert why(found, "prefix_hit_ratio") == "no prompt token was looked up in the window"
    idle = figures(finished_count=rows(({"finished_reason": "stop"}, 0.0)), ttft_buckets=buckets(0, 0, 0, 0))
    assert value(idle, "preemptions_per_request") is None
    assert (value(idle, "ttft_p95_s"), value(idle, "ttft_mean_s")) == (None, None)
    assert why(idle, "ttft_p95_s") == "nothing was observed in the window"


def test_too_few_samples_are_told_by_a_word() -> None:
    found = figures(ttft_buckets=buckets(0, 60, 0, 0))
    assert value(found, "ttft_p95_s") == pytest.approx(0.1 + 0.15 * 0.95)
    assert value(found, "ttft_p99_s") == INSUFFICIENT
    assert value(figures(running=raw(steady(3.0)[:1])), "running_mean") == INSUFFICIENT


@pytest.mark.parametrize(
    "changes",
    [
        {"resets_of_generation_tokens": rows(({}, 1.0))},
        {"resets_of_prompt_tokens": rows(({}, 1.0))},
        {"restarts": rows(({}, 1.0))},
        {"started": rows(({}, WINDOW.start + 1))},
    ],
)
def test_a_window_with_a_reset_is_refused(changes: dict[str, Any]) -> None:
    found = figures(("0",), **gpus(), **changes)
    assert "was reset" in found["refused"]
    assert found["figures"] == {}
    # What happened can still be looked at.
    assert found["timeline"]["running"]
    assert figures()["refused"] is None


def test_several_api_servers_have_no_process_metrics_and_are_judged_all_the_same() -> None:
    assert figures(restarts=rows(), started=rows())["refused"] is None


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "this version of vLLM has no such metric"),
        ({"result": [], "error": "execution: timed out"}, "Prometheus did not answer: execution: timed out"),
        ({"result": [], "error": None}, "Prometheus has no samples of it in the window, or only one"),
    ],
)
def test_what_was_not_answered_is_unobservable_with_the_reason(answer: Any, reason: str) -> None:
    found = figures(queue_time_buckets=answer, generation_tokens_count=answer, kv_usage=answer)
    for name in ("queue_time_p95_s", "generation_tokens", "kv_usage_max"):
        assert value(found, name) is None
        assert why(found, name) == reason


def test_what_is_no_number_is_not_counted() -> None:
    found = figures(preemptions_count=rows(({}, "NaN")), ttft_buckets=rows(({"le": "+Inf"}, "NaN")))
    assert (value(found, "preemptions"), value(found, "ttft_p50_s")) == (None, None)
    assert why(found, "preemptions") == "Prometheus has no number for it"
    assert value(figures(running=raw([*steady(3.0), (1060.0, float("nan"))])), "running_mean") == pytest.approx(3.0)


def test_few_or_failed_scrapes_are_told() -> None:
    assert figures()["notices"] == []
    found = figures(scrapes=rows(({}, 3.0)), scrapes_failed=rows(({}, 1.0)))["notices"]
    assert found[0].startswith("Prometheus scraped the server 3 times in 60 s")
    assert found[1] == "1 of 4 scrapes in the window failed"


def test_only_the_gpus_of_the_instance_count() -> None:
    found = figures(("0", "1"), **gpus())
    assert value(found, "gpu_util_mean") == 85.0
    assert value(found, "gpu_power_mean_w") == 300.0
    # 2 GPUs of 20 kJ by 2000 tokens
    assert found["figures"]["energy_per_token_j"] == {"value": 20.0, "how": "derived", "samples": 2000}
    assert [one["gpu"] for one in found["gpus"]] == ["0", "1"]
    assert value(figures(("GPU-2",), **gpus()), "gpu_util_mean") == 100.0


def test_without_gpus_or_their_exporter_there_is_a_reason_and_no_zero() -> None:
    for given, extra, reason in (
        ((), gpus(), "no GPU is allocated to the instance"),
        (("0",), {}, "Prometheus has nothing of the DCGM exporter on these GPUs in the window"),
        (("7",), gpus(), "Prometheus has nothing of the DCGM exporter on these GPUs in the window"),
    ):
        found = figures(given, **extra)
        for name in ("gpu_util_mean", "gpu_power_mean_w", "energy_per_token_j"):
            assert value(found, name) is None
            assert why(found, name) == reason


def test_a_gpu_that_does_not_count_energy_is_judged_by_its_power() -> None:
    found = figures(("0",), **gpus(energy=False))["figures"]["energy_per_token_j"]
    assert found == {"value": pytest.approx(300 * 60 / 2000), "how": "inferred", "samples": 2000}
    reset = gpus(gpu_energy_resets=rows(({"gpu": "0", "UUID": "GPU-0"}, 1.0)))
    assert figures(("0",), **reset)["figures"]["energy_per_token_j"]["how"] == "inferred"


def test_a_mig_device_has_no_energy_of_its_own() -> None:
    found = figures(("0:1",), **gpus())
    assert value(found, "energy_per_token_j") is None
    assert "MIG" in why(found, "energy_per_token_j")


def test_every_null_has_its_reason_and_the_document_is_json() -> None:
    found = server.figures({}, WINDOW, ("0",))
    nulls = {name for name, one in found["figures"].items() if one["value"] is None}
    assert nulls == set(found["figures"])
    assert nulls == {one["what"] for one in found["unobservable"]}
    json.dumps(found, allow_nan=False)
    assert {one["how"] for one in found["figures"].values()} <= {"measured", "derived", "inferred"}
