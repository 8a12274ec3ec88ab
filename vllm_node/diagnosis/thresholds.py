"""Every number that a sign is compared with, why it is that number, and the alert that it follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Threshold:
    """A limit in the unit of the signals that it is for. `alert`: where that alert has a threshold, it counts."""

    value: float
    why: str
    alert: str | None = None


THRESHOLDS: dict[str, Threshold] = {
    # vLLM: cache and queue
    "kv_full": Threshold(0.95, "above it the next long answer takes a block from somebody", "VllmKVCacheSaturated"),
    "kv_room": Threshold(0.7, "a third of the cache is free, so it is not what requests wait for"),
    "waiting": Threshold(10, "a short queue fills the next step and is wanted", "VllmQueueBacklog"),
    "waiting_none": Threshold(0.5, "on average nobody waits"),
    "queue_high_s": Threshold(5, "what a person notices as not answering", "VllmQueueTimeHigh"),
    "queue_low_s": Threshold(0.3, "the first bucket of the histogram: below it nothing can be told apart"),
    "queue_share": Threshold(0.5, "most of the time to the first token is spent waiting"),
    "deferred_share": Threshold(0.5, "most that wait are held back by something else than capacity"),
    "queue_growth": Threshold(0.01, "requests a second: ten more in the queue in about a quarter of an hour"),
    "preemptions": Threshold(0.2, "every fifth request loses its work once", "VllmPreemptionStorm"),
    # vLLM: latency
    "ttft_high_s": Threshold(2.5, "the edge of a bucket that the objective of the alerts stands on too"),
    "itl_high_s": Threshold(0.1, "slower than people read", "VllmITLHigh"),
    "itl_healthy_s": Threshold(0.05, "twenty tokens a second: faster than people read"),
    "e2e_high_s": Threshold(30, "the time limit that many clients and proxies come with", "VllmE2EHigh"),
    "e2e_quick_s": Threshold(5, "no usual time limit of a client is as short"),
    "prefill_share": Threshold(0.5, "most of the time to the first token is spent computing the prompt"),
    "frontend_share": Threshold(0.3, "a third of the time to the first token passes outside the engine"),
    "decode_share": Threshold(0.8, "nearly all of a request is the writing of its answer"),
    "unchanged": Threshold(1.05, "within the noise of two windows"),
    "grown": Threshold(1.3, "more than the usual difference between two windows of one load"),
    # vLLM: shape of the load
    "long_prompt": Threshold(4096, "tokens: half of a step of the usual budget of 8192"),
    "long_output": Threshold(1000, "tokens: ten seconds and more at a hundred tokens a second"),
    "prompt_heavy": Threshold(10, "prompt tokens computed for each token generated"),
    "big_step": Threshold(4, "tokens a step for each running request: steps carry prompts, not only answers"),
    "small_step": Threshold(2, "tokens a step for each running request: steps carry answers and little else"),
    "big_batch": Threshold(64, "requests: where the weights of a step stop to be its only cost"),
    "batch_limit": Threshold(0.95, "of max-num-seqs: the scheduler admits no more"),
    "batch_room": Threshold(0.8, "of max-num-seqs: the scheduler would admit more"),
    "plateau": Threshold(1, "requests between the least and the most that ran: the number stands still"),
    "near_limit": Threshold(0.9, "of max-model-len"),
    "cut_share": Threshold(0.2, "every fifth answer ends at a limit of its length"),
    "cut_none": Threshold(0.02, "hardly an answer ends at a limit of its length"),
    "traffic_growth": Threshold(1.5, "half as much again as an hour ago"),
    "prefix_drop": Threshold(0.5, "half of the hits that were usual", "VllmPrefixHitDrop"),
    "prefix_used": Threshold(0.1, "below it the cache was of no use before either"),
    # vLLM: outcome and life
    "samples": Threshold(20, "fewer requests give no 95th percentile"),
    "aborts": Threshold(0.1, "every tenth request was given up by its client", "VllmHighAborts"),
    "server_errors": Threshold(0.02, "of all answers", "VllmHttp5xx"),
    "still": Threshold(0.001, "nothing at all, but for rounding"),
    "some": Threshold(0, "none is normal"),
    "half": Threshold(0.5, "yes or no"),
    "restarts": Threshold(2, "one restart may be wanted, a third is not", "VllmFlapping"),
    "busy_core": Threshold(0.9, "cores: one Python process cannot use more than one"),
    "up_always": Threshold(0.99, "a missed scrape now and then is nothing"),
    "up_often": Threshold(0.95, "more than one scrape in twenty was missed"),
    # GPU
    "gpu_busy": Threshold(90, "percent: some kernel runs nearly all the time"),
    "gpu_low": Threshold(50, "percent: half of the time no kernel runs"),
    "gpu_idle": Threshold(1, "percent: no kernel runs"),
    "dram_busy": Threshold(0.5, "real decoding reaches little more of the memory's theoretical bandwidth"),
    "clock_low": Threshold(0.85, "of the GPU's own best in a day"),
    "bit_often": Threshold(0.1, "of the window"),
    "bit_mostly": Threshold(0.5, "of the window"),
    "margin_low": Threshold(5, "degrees to the slowdown", "GpuThermalMarginLow"),
    "margin_fine": Threshold(15, "degrees to the slowdown: heat is no matter"),
    "power_at_limit": Threshold(0.97, "of the limit in force: regulation keeps it a little below"),
    "power_room": Threshold(0.8, "of the limit in force"),
    "spread_util": Threshold(20, "percentage points between GPUs that do the same work"),
    "spread_share": Threshold(0.15, "between GPUs that do the same work, as a share of the highest"),
    "pcie_replays": Threshold(100, "single replays are part of normal work", "GpuPcieReplay"),
    "nvlink_retries": Threshold(100, "single retries are part of normal work", "GpuNvlinkErrors"),
    "health_warns": Threshold(9, "10 is a warning, 20 a failure"),
    # host
    "cpu_busy": Threshold(0.9, "of all cores: threads wait for their turn"),
    "pressure": Threshold(0.1, "of the time some task waited for it"),
    "memory_low": Threshold(
        0.05, "of memory available: the kernel begins to take pages from programs", "NodeMemoryLow"
    ),
    "memory_fine": Threshold(0.2, "of memory available"),
    "swap_rate": Threshold(100, "pages a second: more than what a calm system moves"),
    "disk_low": Threshold(0.1, "of a file system free", "NodeDiskSpaceLow"),
    "disk_fine": Threshold(0.2, "of a file system free"),
    # monitoring
    "scrape_slow_s": Threshold(5, "half of what a scrape may take by default", "TargetScrapeSlow"),
    "scrape_missing": Threshold(0.1, "of the scrapes that the window should hold"),
    "one_window": Threshold(1, "windows: it is younger than what is looked at"),
    # client
    "client_gap": Threshold(1.25, "client over server: more than the width of a bucket explains"),
    "client_same": Threshold(1.05, "client over server: within what buckets hide"),
    "client_late_s": Threshold(0.01, "lateness beyond which a run of the load generator is void"),
    "client_cpu": Threshold(0.8, "of a core: above it the client measures itself"),
}


def limits(alerts: Mapping[str, float]) -> dict[str, float]:
    """The number of each threshold; `alerts` are the site's thresholds by alert (see `vllm_node.alerts`)."""
    return {name: alerts.get(one.alert, one.value) if one.alert else one.value for name, one in THRESHOLDS.items()}
