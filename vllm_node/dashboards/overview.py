"""One screen: is it well, is it full, why is it slow."""

from __future__ import annotations

from vllm_node.dashboards.vocabulary import (
    GREEN,
    NODE,
    ORANGE,
    RED,
    SERVER,
    VLLM,
    Board,
    Column,
    Limits,
    Row,
    above,
    ask,
    below,
    dial,
    lines,
    number,
    quantile,
    rate,
    ratio,
    row,
    rows,
)

FIRING = f'ALERTS{{alertstate="firing",{NODE}}}'
DISKS = f'{NODE},fstype!~"tmpfs|devtmpfs|ramfs|squashfs|erofs|iso9660|autofs"'
"""File systems that can fill up: the others are always full, or are memory."""
OBJECTIVE = "{alert:VllmTTFTHigh.objective_s}"
"""Seconds that a first token may take: the number of the alert, filled in when the dashboard is staged."""


def build() -> Board:
    """The dashboard."""
    return Board(
        uid="vllm-node-overview",
        title="vLLM node: overview",
        description="Is it well, is it full, why is it slow: the top row answers the first two, the rest the third.",
        rows=(_now(), _latency(), _load(), _machine(), _monitoring()),
    )


def _now() -> Row:
    return row(
        4,
        number(
            1,
            "Targets up",
            "Share of the scraped targets that answered their last scrape: sum over count of `up`. A vLLM that is "
            "still loading its weights does not answer yet.",
            "percentunit",
            ask(f"sum(up{{{NODE}}}) / count(up{{{NODE}}})", instant=True),
            limits=Limits(RED, ((0.999, GREEN),)),
        ),
        number(
            2,
            "Alerts firing",
            "Alerts that fire now, without those that are only there to be seen (severity none). Counted from the "
            "series ALERTS that Prometheus writes; no series means that nothing fires.",
            "none",
            ask(f'count({FIRING[:-1]},severity!="none"}})', instant=True),
            limits=Limits(GREEN, ((1, RED),)),
            none="none",
        ),
        number(
            3,
            "First tokens within the objective now",
            f"Share of the requests whose first token came within {OBJECTIVE} s, of those that got one in the last "
            "interval: the bucket of that edge over all. Empty without requests.",
            "percentunit",
            ask(within_objective(""), instant=True),
            limits=below("VllmTTFTHigh", ORANGE),
        ),
        number(
            4,
            "Requests waiting now",
            "Requests in vLLM's queue at the last scrape, all instances together.",
            "none",
            ask(f"sum(vllm:num_requests_waiting{{{VLLM}}})", instant=True),
            limits=above("VllmQueueBacklog", ORANGE),
        ),
        dial(
            5,
            "KV cache in use now",
            "Share of the KV cache blocks in use, of the fullest engine. A full cache with nobody waiting is a well "
            "used one.",
            "percentunit",
            ask(f"max(vllm:kv_cache_usage_perc{{{VLLM}}})", instant=True),
            1,
            limits=above("VllmKVCacheSaturated", ORANGE),
        ),
        dial(
            6,
            "GPU utilisation now",
            "Share of time in which a GPU ran at least one kernel, mean of the GPUs. It says busy, not how busy.",
            "percent",
            ask(f"avg(DCGM_FI_DEV_GPU_UTIL{{{NODE}}})", instant=True),
            100,
        ),
        number(
            7,
            "HTTP server error share now",
            "Answers with a 5xx status of all answers in the last interval. Empty until the first such answer after a "
            "start: the series is made by it.",
            "percentunit",
            ask(http_errors(""), instant=True),
            limits=above("VllmHttp5xx"),
            none="no errors",
        ),
        number(
            8,
            "Tokens per second now",
            "Generated tokens a second over the last interval, all instances together.",
            "short",
            ask(f"sum(rate(vllm:generation_tokens_total{{{VLLM}}}[$__rate_interval]))", instant=True),
        ),
    )


def within_objective(by: str) -> str:
    """Share of first tokens within the objective of the alert; the bound has to be an edge of a bucket."""
    part = rate(f'vllm:time_to_first_token_seconds_bucket{{{VLLM},le="{OBJECTIVE}"}}', by)
    return ratio(part, rate(f"vllm:time_to_first_token_seconds_count{{{VLLM}}}", by))


def http_errors(by: str) -> str:
    """Share of 5xx answers. Both sides are summed first: one status would be divided by itself otherwise."""
    part = rate(f'http_requests_total{{{SERVER},status="5xx"}}', by)
    return ratio(part, rate(f"http_requests_total{{{SERVER}}}", by))


def _latency() -> Row:
    return row(
        6,
        lines(
            11,
            "Time to first token p95",
            "95 of 100 requests got their first token within this time, as the server sees it: quantile over the "
            "buckets of the interval. A gap means that there were no requests.",
            "s",
            [ask(quantile(0.95, "vllm:time_to_first_token_seconds"), "{{node}} {{instance}}")],
        ),
        lines(
            12,
            "Inter-token latency p95",
            "Time between two tokens of an answer, 95th percentile over the buckets of the interval. With speculative "
            "decoding several tokens come at once. A gap means that nothing was generated.",
            "s",
            [ask(quantile(0.95, "vllm:inter_token_latency_seconds"), "{{node}} {{instance}}")],
            limits=above("VllmITLHigh", ORANGE),
        ),
        lines(
            13,
            "Queue time p95",
            "Time from arrival to the first scheduling, 95th percentile over the buckets of the interval. Below the "
            "first bucket edge of 0.3 s the number is interpolated.",
            "s",
            [ask(quantile(0.95, "vllm:request_queue_time_seconds"), "{{node}} {{instance}}")],
            limits=above("VllmQueueTimeHigh", ORANGE),
        ),
    )


def _load() -> Row:
    return row(
        6,
        lines(
            14,
            "Requests running and waiting",
            "Running covers prefill and decode. Gauges of the last scrape, summed over the engines of an instance. "
            "They freeze when an engine hangs: compare with the tokens.",
            "none",
            [
                ask(f"sum by (node, instance) (vllm:num_requests_running{{{VLLM}}})", "{{node}} {{instance}} running"),
                ask(f"sum by (node, instance) (vllm:num_requests_waiting{{{VLLM}}})", "{{node}} {{instance}} waiting"),
            ],
            limits=above("VllmQueueBacklog", ORANGE),
        ),
        lines(
            15,
            "Tokens per second",
            "Tokens generated and prompt tokens taken in, per second. Prompt tokens include those found in the cache.",
            "short",
            [
                ask(
                    rate(f"vllm:generation_tokens_total{{{VLLM}}}", "node, instance"), "{{node}} {{instance}} generated"
                ),
                ask(rate(f"vllm:prompt_tokens_total{{{VLLM}}}", "node, instance"), "{{node}} {{instance}} prompt"),
            ],
        ),
        rows(
            16,
            "Firing alerts",
            "What fires now. The Watchdog always does: when even that is missing, no rule is being evaluated. "
            "Read from the series ALERTS.",
            [
                Column(
                    "firing",
                    # The Watchdog belongs to no node.
                    'sum by (alertname, severity, node, instance) (ALERTS{alertstate="firing",node=~"$node|"})',
                    "none",
                )
            ],
            [("severity", "severity"), ("alertname", "alert"), ("node", "node"), ("instance", "instance")],
        ),
    )


def _machine() -> Row:
    return row(
        6,
        lines(
            17,
            "GPU temperature",
            "Core temperature of each GPU. Limits differ between products: the distance to the slowdown is on the "
            "GPU dashboard.",
            "celsius",
            [ask(f"max by (node, gpu) (DCGM_FI_DEV_GPU_TEMP{{{NODE}}})", "{{node}} GPU {{gpu}}")],
        ),
        lines(
            18,
            "GPU power",
            "Draw of all GPUs of a node together, and the limit in force for them together.",
            "watt",
            [
                ask(f"sum by (node) (DCGM_FI_DEV_POWER_USAGE{{{NODE}}})", "{{node}} draw"),
                ask(f"sum by (node) (DCGM_FI_DEV_ENFORCED_POWER_LIMIT{{{NODE}}})", "{{node}} limit"),
            ],
        ),
        lines(
            19,
            "Node memory and disk",
            "Share of the main memory that is available, and of the fullest file system that is free.",
            "percentunit",
            [
                ask(
                    f"min by (node) (node_memory_MemAvailable_bytes{{{NODE}}} / node_memory_MemTotal_bytes{{{NODE}}})",
                    "{{node}} memory available",
                ),
                ask(
                    f"min by (node) (node_filesystem_avail_bytes{{{DISKS}}} / node_filesystem_size_bytes{{{DISKS}}})",
                    "{{node}} fullest disk, free",
                ),
            ],
            limits=Limits(RED, (("alert:NodeDiskSpaceCritical", ORANGE), ("alert:NodeDiskSpaceLow", GREEN))),
            top=1,
        ),
    )


def _monitoring() -> Row:
    return row(
        6,
        lines(
            21,
            "Prometheus health",
            "Failed rule evaluations, dropped notifications and failed compactions in each interval, and 1 while the "
            "last reload of the configuration failed. All of them at 0 is well.",
            "none",
            [
                ask(_failures("prometheus_rule_evaluation_failures_total"), "{{node}} rules"),
                ask(_failures("prometheus_notifications_dropped_total"), "{{node}} notifications"),
                ask(_failures("prometheus_tsdb_compactions_failed_total"), "{{node}} compactions"),
                ask(f"1 - min by (node) (prometheus_config_last_reload_successful{{{NODE}}})", "{{node}} reload"),
            ],
            limits=Limits(GREEN, ((1, RED),)),
        ),
        lines(
            22,
            "Metrics scraped",
            "Samples in the last scrape of each target. A target that is up and gives next to none is as blind as one "
            "that is down.",
            "none",
            [ask(f"sum by (node, job, instance) (scrape_samples_scraped{{{NODE}}})", "{{node}} {{job}} {{instance}}")],
        ),
        lines(
            24,
            "Scrape duration",
            "How long each target took to give its metrics, at its last scrape. At the timeout it counts as down.",
            "s",
            [ask(f"max by (node, job, instance) (scrape_duration_seconds{{{NODE}}})", "{{node}} {{job}} {{instance}}")],
            limits=above("TargetScrapeSlow", ORANGE),
        ),
        lines(
            23,
            "Time since start",
            "Age of each process that tells when it was started; a line that falls to zero is a restart. vLLM with "
            "several API servers does not tell.",
            "s",
            [
                ask(
                    f"time() - max by (node, job, instance) (process_start_time_seconds{{{NODE}}})",
                    "{{node}} {{job}} {{instance}}",
                )
            ],
        ),
    )


def _failures(counter: str) -> str:
    return f"sum by (node) (increase({counter}{{{NODE}}}[$__rate_interval]))"
