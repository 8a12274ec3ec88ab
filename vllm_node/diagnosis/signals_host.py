"""Signals of the host and of the monitoring itself."""

from __future__ import annotations

from vllm_node.diagnosis.signal import Signal, query

# A file system that is mounted read-only, such as a model store, may be full.
_FILES = '{fstype=~"ext[234]|xfs|btrfs"}'


def _psi(what: str) -> str:
    return f"max by (node) (rate(node_pressure_{what}_waiting_seconds_total[$window]))"


HOST: tuple[Signal, ...] = (
    query(
        "cpu",
        "share of all cores' time at work",
        "ratio",
        "host cpu",
        "derived",
        '1 - avg by (node) (rate(node_cpu_seconds_total{mode="idle"}[$window]))',
    ),
    query(
        "cpu_pressure", "share of time that tasks waited for a core", "ratio", "host pressure", "derived", _psi("cpu")
    ),
    query(
        "memory_pressure",
        "share of time that tasks waited for memory",
        "ratio",
        "memory pressure",
        "derived",
        _psi("memory"),
    ),
    query(
        "memory_free",
        "memory available, least",
        "ratio",
        "host memory",
        "derived",
        "min by (node) (min_over_time(node_memory_MemAvailable_bytes[$window]) / node_memory_MemTotal_bytes)",
        fold="min",
    ),
    query(
        "swapping",
        "pages swapped a second",
        "per second",
        "host swap",
        "derived",
        "max by (node) (rate(node_vmstat_pswpin[$window]) + rate(node_vmstat_pswpout[$window]))",
    ),
    query(
        "oom_kills",
        "processes killed for lack of memory",
        "count",
        "oom",
        "measured",
        "max by (node) (increase(node_vmstat_oom_kill[$window]))",
    ),
    query(
        "disk_free",
        "free space of the fullest file system",
        "ratio",
        "host disk",
        "derived",
        f"min by (node) (node_filesystem_avail_bytes{_FILES} / node_filesystem_size_bytes and "
        f"node_filesystem_readonly == 0)",
        fold="min",
        window="now",
    ),
)

MONITORING: tuple[Signal, ...] = (
    query(
        "exporters_up",
        "share of scrapes that the worst exporter answered",
        "ratio",
        "scrape",
        "measured",
        'min by (node) (avg_over_time(up{job!="vllm"}[$window]))',
        fold="min",
    ),
    query(
        "scrape_time",
        "time of the slowest target's scrapes, mean",
        "seconds",
        "scrape time",
        "measured",
        "max by (node) (avg_over_time(scrape_duration_seconds[$window]))",
    ),
    query(
        "scrapes",
        "scrapes of the least scraped target",
        "count",
        "scrape count",
        "measured",
        "min by (node) (count_over_time(up[$window]))",
        fold="min",
    ),
    query(
        "prometheus_age",
        "age of Prometheus's process",
        "seconds",
        "prometheus",
        "derived",
        'time() - max by (node) (process_start_time_seconds{job="prometheus"})',
        fold="min",
        window="now",
    ),
)
