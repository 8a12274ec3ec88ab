"""All nodes beside each other. On a node's own Prometheus that is this node; on a site's central store, every one."""

from __future__ import annotations

from vllm_node.dashboards.overview import DISKS
from vllm_node.dashboards.vocabulary import (
    GREEN,
    NODE,
    ORANGE,
    RED,
    Board,
    Column,
    Limits,
    Row,
    above,
    ask,
    below,
    lines,
    row,
    rows,
)

LEGEND = "{{node}}"
FIRING = f'count by (node) (ALERTS{{alertstate="firing",severity!="none",{NODE}}})'
UP = f"sum by (node) (up{{{NODE}}}) / count by (node) (up{{{NODE}}})"
# Recorded by every node's Prometheus: a store of many nodes can afford to ask for these, and needs nothing else.
WAITING = f"node:vllm_requests_waiting:sum{{{NODE}}}"
RUNNING = f"node:vllm_requests_running:sum{{{NODE}}}"
TOKENS = f"node:vllm_generation_tokens:rate5m{{{NODE}}}"
KV = f"node:vllm_kv_cache_usage:max{{{NODE}}}"
TTFT = f"node:vllm_time_to_first_token_seconds:p95_rate5m{{{NODE}}}"
BUSY = f"node:dcgm_gpu_util:avg{{{NODE}}}"
GPUS = f"node:dcgm_gpus:count{{{NODE}}}"
POWER = f"node:dcgm_power_usage_watts:sum{{{NODE}}}"
MEMORY = f"max by (node) (gpu:dcgm_fb_used:ratio{{{NODE}}})"
FREE = f"min by (node) (node_filesystem_avail_bytes{{{DISKS}}} / node_filesystem_size_bytes{{{DISKS}}})"


def build() -> Board:
    """The dashboard."""
    return Board(
        uid="vllm-node-fleet",
        title="vLLM node: fleet",
        description="All nodes beside each other: in Grafana of a node this is the node itself, and over a store that "
        "collects many nodes every one of them.",
        rows=(_table(), _well(), _load(), _machines(), _host()),
        variables=("node",),
        refresh="1m",
    )


def _table() -> Row:
    return row(
        9,
        rows(
            1,
            "Nodes",
            "A line a node, values of now: numbers that are missing could not be observed, such as a quantile without "
            "requests. Each column is the panel below of the same name.",
            [
                Column("targets up", UP, "percentunit", Limits(RED, ((0.999, GREEN),))),
                Column("alerts", FIRING, "none", Limits(GREEN, ((1, RED),))),
                Column("running", RUNNING, "none"),
                Column("waiting", WAITING, "none", above("VllmQueueBacklog", ORANGE)),
                Column("tokens/s", TOKENS, "short"),
                Column("TTFT p95", TTFT, "s"),
                Column("KV cache", KV, "percentunit", above("VllmKVCacheSaturated", ORANGE)),
                Column("GPUs", GPUS, "none"),
                Column("GPU utilisation", BUSY, "percent"),
                Column("disk free", FREE, "percentunit"),
            ],
            [("node", "node")],
        ),
    )


def _well() -> Row:
    return row(
        7,
        lines(
            2,
            "Targets up by node",
            "Share of the scraped targets of a node that answered.",
            "percentunit",
            [ask(UP, LEGEND)],
            top=1,
        ),
        lines(
            3,
            "Firing alerts by node",
            "Alerts that fire, without those of severity none. A node without any has no line.",
            "none",
            [ask(FIRING, LEGEND)],
        ),
        lines(
            4,
            "Time to first token p95 by node",
            "95th percentile of the last five minutes, all instances of a node together, as recorded. A gap without "
            "requests.",
            "s",
            [ask(TTFT, LEGEND)],
        ),
    )


def _load() -> Row:
    return row(
        7,
        lines(
            5,
            "Tokens per second by node",
            "Generated tokens per second over five minutes, all instances of a node, as recorded.",
            "short",
            [ask(TOKENS, LEGEND)],
            stacked=True,
        ),
        lines(
            6,
            "Requests waiting by node",
            "Requests in the queues of a node, at the last scrape.",
            "none",
            [ask(WAITING, LEGEND)],
            limits=above("VllmQueueBacklog", ORANGE),
        ),
        lines(
            7,
            "KV cache in use by node",
            "Share of the KV cache blocks in use, of the fullest engine of a node.",
            "percentunit",
            [ask(KV, LEGEND)],
            limits=above("VllmKVCacheSaturated", ORANGE),
            top=1,
        ),
    )


def _machines() -> Row:
    return row(
        7,
        lines(
            8,
            "GPU utilisation by node",
            "Share of time with at least one kernel running, mean of the GPUs of a node.",
            "percent",
            [ask(BUSY, LEGEND)],
            top=100,
        ),
        lines(
            9,
            "GPU power by node",
            "Draw of all GPUs of a node.",
            "watt",
            [ask(POWER, LEGEND)],
            stacked=True,
        ),
        lines(
            10,
            "GPU memory in use by node",
            "Used over used and free, of the fullest GPU of a node. vLLM reserves its share at the start.",
            "percentunit",
            [ask(MEMORY, LEGEND)],
            top=1,
        ),
        lines(
            11,
            "Free disk by node",
            "Share that is free of the fullest file system of a node.",
            "percentunit",
            [ask(FREE, LEGEND)],
            limits=below("NodeDiskSpaceLow", ORANGE),
            top=1,
        ),
    )


def _host() -> Row:
    return row(
        6,
        lines(
            12,
            "Available memory by node",
            "Share of the main memory that programs can still get.",
            "percentunit",
            [
                ask(
                    f"min by (node) (node_memory_MemAvailable_bytes{{{NODE}}} / node_memory_MemTotal_bytes{{{NODE}}})",
                    LEGEND,
                )
            ],
            limits=below("NodeMemoryLow", ORANGE),
            top=1,
        ),
        lines(
            13,
            "Processor use by node",
            "Share of the processors' time that was not idle. One busy core of many is enough to slow a scheduler "
            "down.",
            "percentunit",
            [ask(f'1 - avg by (node) (rate(node_cpu_seconds_total{{mode="idle",{NODE}}}[$__rate_interval]))', LEGEND)],
            top=1,
        ),
        lines(
            14,
            "Clock error by node",
            "How far the clock is off its source, as the kernel sees it. Times of two nodes cannot be compared "
            "beyond it.",
            "s",
            [ask(f"max by (node) (abs(node_timex_offset_seconds{{{NODE}}}))", LEGEND)],
            limits=above("NodeClockSkew", ORANGE),
        ),
    )
