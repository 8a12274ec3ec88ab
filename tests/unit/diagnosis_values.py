"""Signals of a well node, and readings made of any values. Tests tell stories as changes to the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vllm_node.diagnosis.hypotheses import HYPOTHESES
from vllm_node.diagnosis.hypothesis import Judgement, Verdict, judge
from vllm_node.diagnosis.look import Reading
from vllm_node.diagnosis.signals import SIGNALS
from vllm_node.diagnosis.thresholds import limits

LIMITS = limits({})

# A model on two GPUs with a moderate load that meets its limits; the client agrees with the server.
WELL: dict[str, float] = {
    "waiting": 0.2,
    "queue_p95": 0.2,
    "queue_share": 0.1,
    "queue_growth": 0,
    "deferred_share": 0,
    "kv_use": 0.5,
    "preemptions": 0,
    "prefix_hits": 0.4,
    "prefix_hits_before": 0.4,
    "running": 20,
    "running_band": 15,
    "step_load": 1.5,
    "prompt_p95": 900,
    "output_p95": 300,
    "prompt_weight": 2,
    "first_tokens": 900,
    "finished": 900,
    "traffic_growth": 1,
    "ttft_p95": 0.4,
    "ttft_mean": 0.2,
    "ttft_growth": 1,
    "prefill_share": 0.4,
    "frontend_share": 0.1,
    "itl_p95": 0.03,
    "e2e_p95": 9,
    "e2e_mean": 4,
    "decode_share": 0.9,
    "abort_share": 0.01,
    "cut_share": 0.1,
    "engine_errors": 0,
    "http_errors": 0,
    "rejections": 0,
    "running_least": 12,
    "waiting_least": 0,
    "steps": 40,
    "awake": 1,
    "restarts": 0,
    "process_age": 86400,
    "api_cpu": 0.4,
    "vllm_up": 1,
    "vllm_up_now": 1,
    "engine_metrics": 1,
    "gpu_util": 80,
    "gpu_util_spread": 3,
    "gpu_util_most": 95,
    "dram": 0.4,
    "tensor_spread": 0.03,
    "power": 0.7,
    "power_spread": 0.04,
    "clock": 0.98,
    "clock_spread": 0.01,
    "bit_power": 0,
    "bit_slowdown": 0,
    "bit_heat": 0,
    "bit_hw_heat": 0,
    "bit_brake": 0,
    "margin": 30,
    "gpus_lost": 0,
    "gpu_metrics": 1,
    "xid_hardware": 0,
    "xid_program": 0,
    "ecc": 0,
    "remap_failure": 0,
    "remap_pending": 0,
    "recovery": 0,
    "health": 0,
    "pcie_replays": 1,
    "nvlink_recoveries": 0,
    "nvlink_retries": 2,
    "gpu_memory_growth": 0,
    "cpu": 0.3,
    "cpu_pressure": 0.01,
    "memory_pressure": 0,
    "memory_free": 0.6,
    "swapping": 0,
    "oom_kills": 0,
    "disk_free": 0.5,
    "exporters_up": 1,
    "scrape_time": 0.05,
    "scrapes": 60,
    "prometheus_age": 864000,
    "batch_share": 0.2,
    "length_share": 0.2,
    "process_young": 96,
    "history": 960,
    "prefix_change": 1,
    "scrapes_missing": 0,
    "stalled": 0,
    "unit_active": 1,
    "unit_looping": 0,
    "exporters_stopped": 0,
    "units_failed": 0,
    "port_closed": 0,
    "disk_seen": 0.5,
    "memory_seen": 0.6,
    "smi_missing": 0,
    "smi_faults": 0,
    "strangers": 0,
    "client_ttft": 1.02,
    "client_e2e": 1.01,
    "client_late": 0.001,
    "client_cpu": 0.3,
}


def reader(values: Mapping[str, float]) -> Callable[[str], Reading]:
    """Readings of these values; every other signal is unobservable."""

    def read(name: str) -> Reading:
        value = values.get(name)
        missing = "no such series in Prometheus" if value is None else ""
        return Reading(SIGNALS[name], value, missing, "15m")

    return read


def judged(values: Mapping[str, float]) -> dict[str, Judgement]:
    """Every hypothesis judged by these values."""
    return {one.id: judge(one, reader(values), LIMITS) for one in HYPOTHESES}


def supported(values: Mapping[str, float]) -> set[str]:
    """Ids of the supported ones."""
    return {name for name, one in judged(values).items() if one.verdict is Verdict.SUPPORTED}
