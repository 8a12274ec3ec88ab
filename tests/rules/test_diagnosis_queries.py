"""Every question of a diagnosis, asked of a real Prometheus of both generations over samples that are known."""

from __future__ import annotations

import http.client
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.role_code import load, run_module
from tests.unit.web import nobody
from vllm_node.diagnosis.facts import Facts, Instance, Subject
from vllm_node.diagnosis.hypotheses import next_queries
from vllm_node.diagnosis.look import Look
from vllm_node.diagnosis.signals import SIGNALS, expressions
from vllm_node.lab import tools

STEP, END = 15, 1_790_000_010
START = END - 2 * 3600
STALLED_FOR = 300
CHAT = Instance("chat", 8000, ("0", "1"), {"max-num-seqs": 64})
EMBED = Instance("embed", 8001, ("2",))
LATENCIES = {
    # seconds a request, on average; every one of them in the bucket up to 5 s
    "vllm:time_to_first_token_seconds": 4.0,
    "vllm:request_queue_time_seconds": 3.0,
    "vllm:request_prefill_time_seconds": 0.6,
    "vllm:request_decode_time_seconds": 4.5,
    "vllm:e2e_request_latency_seconds": 5.0,
    "vllm:inter_token_latency_seconds": 0.04,
    "vllm:request_prompt_tokens": 500.0,
    "vllm:request_generation_tokens": 100.0,
}


def samples() -> Iterator[str]:
    """OpenMetrics: two hours of a node with two instances. `chat` has stopped to move five minutes before the end."""
    for at in range(START, END + 1, STEP):
        for line in (*scrapes(at), *chat(at), *gpus(at), *host()):
            yield f"{line} {at}"
    yield "# EOF"


def scrapes(at: int) -> Iterator[str]:
    for job, instance in (("vllm", "chat"), ("vllm", "embed"), ("dcgm", "dcgm-exporter"), ("prometheus", "prometheus")):
        labels = f'{{job="{job}",node="gpu1",instance="{instance}"}}'
        yield f"up{labels} 1"
        yield f"scrape_duration_seconds{labels} 0.25"
    # The exporter of the host misses every second scrape.
    yield f'up{{job="node",node="gpu1",instance="node-exporter"}} {(at // STEP) % 2}'
    yield f'process_start_time_seconds{{job="prometheus",node="gpu1",instance="prometheus"}} {START}'
    start = START if at < END - 1800 else END - 1800
    yield f'process_start_time_seconds{{job="vllm",node="gpu1",instance="chat"}} {start}'
    yield f'process_cpu_seconds_total{{job="vllm",node="gpu1",instance="chat"}} {0.8 * (at - START)}'


def chat(at: int) -> Iterator[str]:
    moved = min(at, END - STALLED_FOR) - START
    finished = moved / 10  # one in ten seconds
    for engine, waiting in (("0", 4), ("1", 8)):
        labels = f'node="gpu1",instance="chat",engine="{engine}",model_name="m"'
        yield f"vllm:num_requests_waiting{{{labels}}} {waiting}"
        yield f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} {waiting - 1}'
        yield f'vllm:num_requests_waiting_by_reason{{{labels},reason="deferred"}} 1'
        yield f"vllm:num_requests_running{{{labels}}} 16"
        yield f"vllm:kv_cache_usage_perc{{{labels}}} 0.{engine}5"
        yield f"vllm:num_preemptions_total{{{labels}}} {finished / 4}"
        yield f"vllm:prefix_cache_queries_total{{{labels}}} {500 * finished}"
        # Until half an hour ago every second token was found.
        early = min(finished, (END - 1800 - START) / 10)
        yield f"vllm:prefix_cache_hits_total{{{labels}}} {250 * early + 50 * (finished - early)}"
        yield f'vllm:prompt_tokens_by_source_total{{{labels},source="local_compute"}} {400 * finished}'
        yield f"vllm:prompt_tokens_total{{{labels}}} {500 * finished}"
        yield f"vllm:generation_tokens_total{{{labels}}} {100 * finished}"
        for reason, share in (("stop", 0.7), ("length", 0.2), ("abort", 0.1), ("error", 0)):
            yield f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {share * finished}'
        yield f'vllm:engine_sleep_state{{{labels},sleep_state="awake"}} 1'
        for name, mean in LATENCIES.items():
            for edge in ("1.0", "5.0", "1000.0", "+Inf"):
                yield f'{name}_bucket{{{labels},le="{edge}"}} {finished if mean <= float(edge.replace("+Inf", "inf")) else 0}'
            yield f"{name}_count{{{labels}}} {finished}"
            yield f"{name}_sum{{{labels}}} {mean * finished}"
        yield f"vllm:iteration_tokens_total_count{{{labels}}} {moved}"
        yield f"vllm:iteration_tokens_total_sum{{{labels}}} {64 * moved}"
    yield f'http_requests_total{{node="gpu1",instance="chat",handler="/v1/completions",method="POST",status="2xx"}} {finished}'
    yield f'vllm:admission_rejections_total{{node="gpu1",instance="chat",model_name="m",reason="max_num_queued_reqs"}} {moved // 600}'


def gpus(at: int) -> Iterator[str]:
    """GPU 0 works, GPU 1 is idle, GPU 2 was lost half an hour ago; in the first minute the exporter has none yet."""
    if at < START + 60:
        return
    late = at >= END - 450
    for gpu, values in {
        # 4: power; 36: power, and heat as well
        "0": {"GPU_UTIL": 90, "SM_CLOCK": 1980 if at == START + 60 else 1188, "CLOCKS_EVENT_REASONS": 36 if late else 4, "POWER_USAGE": 700},
        "1": {"GPU_UTIL": 0, "SM_CLOCK": 345, "CLOCKS_EVENT_REASONS": 1, "POWER_USAGE": 70},
        "2": {"GPU_UTIL": 40, "SM_CLOCK": 1000, "CLOCKS_EVENT_REASONS": 0, "POWER_USAGE": 300},
    }.items():
        if gpu == "2" and at > END - 1800:
            continue
        labels = f'{{job="dcgm",node="gpu1",instance="dcgm-exporter",gpu="{gpu}",UUID="GPU-{gpu}"}}'
        fixed = {"GPU_TEMP": 60, "GPU_TEMP_LIMIT": 25 - int(gpu), "ENFORCED_POWER_LIMIT": 700, "FB_USED": 70000, "ECC_DBE_VOL_TOTAL": 0}
        for kind in ("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY"):
            fixed[f"NVLINK_{kind}_ERROR_COUNT_TOTAL"] = 0
        # All at once, ten minutes before the end.
        fixed["PCIE_REPLAY_COUNTER"] = 200 if gpu == "1" and at > END - 600 else 0
        for name, value in {**values, **fixed}.items():
            yield f"DCGM_FI_DEV_{name}{labels} {value}"
        yield f"DCGM_EXP_XID_ERRORS_COUNT{labels} 0"
        if gpu == "1" and END - 600 < at <= END - 300:
            yield f'DCGM_EXP_XID_ERRORS_COUNT{labels[:-1]},xid="79"}} 1'
        yield f'DCGM_EXP_GPU_HEALTH_STATUS{labels[:-1]},health_watch="ALL"}} 0'


def host() -> Iterator[str]:
    node = 'job="node",node="gpu1",instance="node-exporter"'
    for mount, fstype, free, readonly in (("/", "xfs", 40, 0), ("/models", "xfs", 1, 1), ("/run", "tmpfs", 2, 0)):
        labels = f'{{{node},device="d",fstype="{fstype}",mountpoint="{mount}"}}'
        yield f"node_filesystem_avail_bytes{labels} {free}"
        yield f"node_filesystem_size_bytes{labels} 100"
        yield f"node_filesystem_readonly{labels} {readonly}"
    yield f"node_memory_MemAvailable_bytes{{{node}}} 25"
    yield f"node_memory_MemTotal_bytes{{{node}}} 100"


# Expected at the end, of a window of fifteen minutes; None: unobservable.
CHAT_IS: dict[str, float | None] = {
    "waiting": 12,
    "queue_share": 0.75,
    "queue_growth": 0,
    "deferred_share": 2 / 12,
    "queue_p95": 4.8,
    "kv_use": 0.15,
    "preemptions": 0.25,
    "prefix_hits": 0.1,
    # Before: half of the tokens for an hour and a half, a tenth for a quarter of an hour.
    "prefix_change": 0.1 / ((0.5 * 5400 + 0.1 * 900) / 6300),
    "running": 32,
    "batch_share": 0.5,
    "running_band": 0,
    "step_load": 2,
    "prompt_weight": 4,
    "prefill_share": 0.15,
    "frontend_share": 0.1,
    "decode_share": 0.9,
    "traffic_growth": 2 / 3,
    "ttft_mean": 4,
    "ttft_growth": 1,
    "abort_share": 0.1,
    "cut_share": 0.2,
    "engine_errors": 0,
    # No answer with an error was ever given: that is none, not unknown.
    "http_errors": 0,
    "steps": 0,
    "stalled": 1,
    "awake": 1,
    "restarts": 1,
    "process_age": 1800,
    "api_cpu": 0.8,
    "vllm_up": 1,
    "engine_metrics": 1,
    "gpu_util": 90,
    "gpu_util_spread": 90,
    "power": 1,
    "power_spread": 0.9,
    # The idle GPU lowers its clocks by itself and is left out.
    "clock": 1188 / 1980,
    "clock_spread": None,
    "bit_power": 1,
    "bit_slowdown": 0,
    "margin": 24,
    "xid_hardware": 1,
    "xid_program": 0,
    "ecc": 0,
    "remap_failure": None,
    "nvlink_retries": 0,
    "gpu_memory_growth": 0,
    "health": 0,
}
EMBED_IS: dict[str, float | None] = {
    # It answers, and without its engine's metrics.
    "vllm_up_now": 1,
    "engine_metrics": 0,
    "waiting": None,
    "ttft_p95": None,
    "restarts": None,
    "gpu_util": None,
}
NODE_IS: dict[str, float | None] = {
    "waiting": 12,
    "engine_metrics": 0,
    "gpus_lost": 1,
    "gpu_metrics": 1,
    "exporters_up": 0.5,
    "scrape_time": 0.25,
    "scrapes_missing": 0,
    "history": 8,
    # The model store is mounted read-only and may be full.
    "disk_free": 0.4,
    "memory_free": 0.25,
    "cpu": None,
    "oom_kills": None,
}


@contextmanager
def prometheus(series: tools.Series, folder: Path) -> Iterator[str]:
    """A real Prometheus that holds the samples; gives its address."""
    (folder / "samples").write_text("\n".join(samples()) + "\n")
    done = subprocess.run(
        [*tools.promtool(series), "tsdb", "create-blocks-from", "openmetrics", folder / "samples", folder / "data"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (folder / "prometheus.yml").write_text("{}\n")
    url = nobody()
    address = url.removeprefix("http://")
    words = [
        *tools.prometheus(series),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=20y",
        f"--web.listen-address={address}",
        "--log.level=error",
    ]
    with subprocess.Popen(words) as server:
        try:
            wait(address)
            yield url
        finally:
            server.terminate()


def wait(address: str) -> None:
    for _ in range(200):
        connection = http.client.HTTPConnection(address, timeout=5)
        try:
            connection.request("GET", "/-/ready")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.1)
    raise AssertionError("Prometheus was not ready in 20 s")


@pytest.fixture(scope="module", params=["2.53", "3"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with prometheus(request.param, tmp_path_factory.mktemp("prometheus")) as url:
        yield url


def ask(url: str, capsys: pytest.CaptureFixture[str], queries: dict[str, str], at: float) -> dict[str, Any]:
    module = load("roles/prometheus/library/prometheus_query.py")
    answer = run_module(module, capsys, url=url, queries=queries, at=at)
    answers: dict[str, Any] = answer["answers"]
    return answers


def test_every_question_has_an_answer_and_the_right_one(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    answers = ask(server, capsys, {**expressions("15m"), **{f"next {key}": text for key, text in next_queries().items()}}, END)
    assert {name: one["error"] for name, one in answers.items() if one["error"]} == {}
    facts = Facts("gpu1", END, 900, answers, [CHAT, EMBED], scrape_interval_s=STEP)
    for instance, expected in ((CHAT, CHAT_IS), (EMBED, EMBED_IS), (None, NODE_IS)):
        look = Look(facts, Subject("gpu1", instance), SIGNALS)
        found = {name: look.read(name).value for name in expected}
        # A counter's increase is extrapolated to the edges of its window.
        wrong = {name: (value, expected[name]) for name, value in found.items() if not near(value, expected[name])}
        assert wrong == {}, instance


def near(value: float | None, expected: float | None) -> bool:
    return value == expected if value is None or expected is None else value == pytest.approx(expected, rel=0.03, abs=0.001)


def test_parts_of_a_window_are_shares(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    answers = ask(server, capsys, {"bit_heat": expressions("15m")["bit_heat"]}, END)
    by_gpu = {one["labels"]["gpu"]: one["value"] for one in answers["bit_heat"]["result"]}
    assert by_gpu["0"] == pytest.approx(0.5, abs=0.1)
    assert by_gpu["1"] == 0


def test_a_fault_in_the_middle_of_the_window_is_found(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    answers = ask(server, capsys, {"pcie": expressions("15m")["pcie_replays"]}, END)
    by_gpu = {one["labels"]["gpu"]: one["value"] for one in answers["pcie"]["result"]}
    assert by_gpu["1"] > 150
    assert by_gpu["0"] == 0


def test_an_exporter_without_gpus_is_seen_and_a_silent_one_is_not(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    queries = {"gpu_metrics": expressions("15m")["gpu_metrics"]}
    (early,) = ask(server, capsys, queries, START + 30)["gpu_metrics"]["result"]
    assert early["value"] == 0
    assert ask(server, capsys, queries, START - 3600)["gpu_metrics"]["result"] == []
