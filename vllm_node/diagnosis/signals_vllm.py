"""Signals of vLLM: queue, cache, steps, latency, outcome, the process."""

from __future__ import annotations

from vllm_node.diagnosis.signal import Signal, query

BY = "(node, instance)"
_STALL = "3m"  # gauges of a hung engine freeze: only what should move tells, and over a short time
_RESTARTS = "1h"


def _rate(metric: str, matchers: str = "", window: str = "$window", offset: str = "") -> str:
    return f"sum by {BY} (rate({metric}{matchers}[{window}]{offset}))"


def _increase(metric: str, matchers: str = "") -> str:
    return f"sum by {BY} (increase({metric}{matchers}[$window]))"


def _mean(metric: str, offset: str = "") -> str:
    return f"({_rate(metric + '_sum', offset=offset)} / {_rate(metric + '_count', offset=offset)})"


def _p95(metric: str) -> str:
    return f"histogram_quantile(0.95, sum by (le, node, instance) (rate({metric}_bucket[$window])))"


def _gauge(function: str, metric: str, matchers: str = "", window: str = "$window", over: str = "sum") -> str:
    return f"{over} by {BY} ({function}_over_time({metric}{matchers}[{window}]))"


_WAITING, _RUNNING = "vllm:num_requests_waiting", "vllm:num_requests_running"
_BY_REASON = "vllm:num_requests_waiting_by_reason"
_KV = "vllm:kv_cache_usage_perc"
_TTFT, _ITL, _E2E = (
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
)
_QUEUE, _PREFILL, _DECODE = (
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
)
_PROMPT, _OUTPUT = "vllm:request_prompt_tokens", "vllm:request_generation_tokens"
_STEP = "vllm:iteration_tokens_total"
_FINISHED = "vllm:request_success_total"
_COMPUTED = '{source="local_compute"}'
_HITS, _LOOKED_UP = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
_HTTP = "http_requests_total"
_API = '{handler=~"/(v1|v2|inference)/.*"}'
_API_5XX = '{handler=~"/(v1|v2|inference)/.*", status="5xx"}'
_UP = 'up{job="vllm"}'

VLLM: tuple[Signal, ...] = (
    # queue
    query("waiting", "requests waiting, mean", "requests", "queue", "measured", _gauge("avg", _WAITING), fold="sum"),
    query("queue_p95", "queue time, p95", "seconds", "queue", "derived", _p95(_QUEUE), counted_by="finished"),
    query(
        "queue_share",
        "share of the time to first token spent in the queue",
        "ratio",
        "queue",
        "derived",
        f"{_mean(_QUEUE)} / {_mean(_TTFT)}",
        counted_by="finished",
    ),
    query(
        "queue_growth",
        "growth of the queue in requests a second",
        "per second",
        "queue",
        "derived",
        f"sum by {BY} (deriv({_WAITING}[$window]))",
    ),
    query(
        "deferred_share",
        "share of waiting requests that something else than capacity holds back",
        "ratio",
        "queue",
        "derived",
        "{} / {}".format(_gauge("avg", _BY_REASON, '{reason="deferred"}'), _gauge("avg", _BY_REASON)),
    ),
    # cache
    query("kv_use", "KV cache in use, mean", "ratio", "kv", "measured", _gauge("avg", _KV, over="max")),
    query(
        "preemptions",
        "preemptions for each finished request",
        "ratio",
        "preemption",
        "derived",
        f"{_increase('vllm:num_preemptions_total')} / {_increase(_FINISHED)}",
        counted_by="finished",
    ),
    query(
        "prefix_hits",
        "share of prompt tokens found in the prefix cache",
        "ratio",
        "prefix",
        "derived",
        f"{_rate(_HITS)} / {_rate(_LOOKED_UP)}",
        counted_by="finished",
    ),
    query(
        "prefix_hits_before",
        "share of prompt tokens found in the prefix cache in the six hours before",
        "ratio",
        "prefix",
        "derived",
        " / ".join(_rate(metric, window="6h", offset=" offset $window") for metric in (_HITS, _LOOKED_UP)),
        window="6h before",
    ),
    # shape of the load
    query("running", "requests running, mean", "requests", "batch", "measured", _gauge("avg", _RUNNING)),
    query(
        "running_band",
        "most minus least requests running",
        "requests",
        "batch",
        "derived",
        f"{_gauge('max', _RUNNING)} - {_gauge('min', _RUNNING)}",
    ),
    query(
        "step_load",
        "tokens a step for each running request",
        "tokens",
        "steps",
        "derived",
        f"{_mean(_STEP)} / {_gauge('avg', _RUNNING)}",
        counted_by="finished",
    ),
    query("prompt_p95", "prompt length, p95", "tokens", "lengths", "derived", _p95(_PROMPT), counted_by="finished"),
    query("output_p95", "output length, p95", "tokens", "lengths", "derived", _p95(_OUTPUT), counted_by="finished"),
    query(
        "prompt_weight",
        "prompt tokens computed for each token generated",
        "ratio",
        "token mix",
        "derived",
        f"{_rate('vllm:prompt_tokens_by_source_total', _COMPUTED)} / {_rate('vllm:generation_tokens_total')}",
        counted_by="finished",
    ),
    query(
        "first_tokens",
        "requests that got their first token",
        "count",
        "traffic",
        "measured",
        _increase(f"{_TTFT}_count"),
    ),
    query("finished", "requests finished", "count", "traffic", "measured", _increase(_FINISHED)),
    query(
        "traffic_growth",
        "first tokens a second against an hour ago",
        "ratio",
        "traffic",
        "derived",
        f"{_rate(f'{_TTFT}_count')} / {_rate(f'{_TTFT}_count', offset=' offset 1h')}",
        counted_by="first_tokens",
    ),
    # latency
    query(
        "ttft_p95",
        "time to first token, p95",
        "seconds",
        "first token",
        "derived",
        _p95(_TTFT),
        counted_by="first_tokens",
    ),
    query(
        "ttft_mean",
        "time to first token, mean",
        "seconds",
        "first token",
        "derived",
        _mean(_TTFT),
        counted_by="first_tokens",
    ),
    query(
        "ttft_growth",
        "mean time to first token against the window before",
        "ratio",
        "first token",
        "derived",
        f"{_mean(_TTFT)} / {_mean(_TTFT, ' offset $window')}",
        counted_by="first_tokens",
    ),
    query(
        "prefill_share",
        "share of the time to first token spent computing the prompt",
        "ratio",
        "prefill",
        "derived",
        f"{_mean(_PREFILL)} / {_mean(_TTFT)}",
        counted_by="finished",
    ),
    query(
        "frontend_share",
        "share of the time to first token outside of the engine",
        "ratio",
        "front end time",
        "derived",
        f"clamp_min(1 - ({_mean(_QUEUE)} + {_mean(_PREFILL)}) / {_mean(_TTFT)}, 0)",
        counted_by="finished",
    ),
    query("itl_p95", "inter-token latency, p95", "seconds", "decode", "derived", _p95(_ITL), counted_by="first_tokens"),
    query("e2e_p95", "end-to-end latency, p95", "seconds", "end to end", "derived", _p95(_E2E), counted_by="finished"),
    query(
        "e2e_mean", "end-to-end latency, mean", "seconds", "end to end", "derived", _mean(_E2E), counted_by="finished"
    ),
    query(
        "decode_share",
        "share of the end-to-end latency spent writing the answer",
        "ratio",
        "phases",
        "derived",
        f"{_mean(_DECODE)} / {_mean(_E2E)}",
        counted_by="finished",
    ),
    # outcome
    query(
        "abort_share",
        "share of requests given up by their clients",
        "ratio",
        "outcome",
        "derived",
        "{} / {}".format(_increase(_FINISHED, '{finished_reason="abort"}'), _increase(_FINISHED)),
        counted_by="finished",
    ),
    query(
        "cut_share",
        "share of answers that ended at a limit of their length",
        "ratio",
        "outcome",
        "derived",
        "{} / {}".format(_increase(_FINISHED, '{finished_reason="length"}'), _increase(_FINISHED)),
        counted_by="finished",
    ),
    query(
        "engine_errors",
        "requests that failed in the engine",
        "count",
        "outcome",
        "measured",
        _increase(_FINISHED, '{finished_reason="error"}'),
    ),
    query(
        "http_errors",
        "share of HTTP answers with a server error",
        "ratio",
        "http",
        "derived",
        # The series of errors is born with the first of them.
        f"({_increase(_HTTP, _API_5XX)} or 0 * {_increase(_HTTP, _API)}) / {_increase(_HTTP, _API)}",
    ),
    query(
        "rejections",
        "requests turned away at a limit of the queue",
        "count",
        "admission",
        "measured",
        _increase("vllm:admission_rejections_total"),
        fold="sum",
    ),
    # progress and the process
    query(
        "running_least",
        "requests running, least",
        "requests",
        "batch",
        "measured",
        _gauge("min", _RUNNING, window=_STALL),
        window=_STALL,
    ),
    query(
        "waiting_least",
        "requests waiting, least",
        "requests",
        "queue",
        "measured",
        _gauge("min", _WAITING, window=_STALL),
        window=_STALL,
    ),
    query(
        "steps",
        "steps of the engine a second",
        "per second",
        "progress",
        "derived",
        _rate(f"{_STEP}_count", window=_STALL),
        fold="min",
        window=_STALL,
    ),
    query(
        "awake",
        "engine is awake",
        "yes or no",
        "sleep",
        "measured",
        f'min by {BY} (vllm:engine_sleep_state{{sleep_state="awake"}})',
        fold="min",
        window="now",
    ),
    query(
        "restarts",
        "restarts of the server",
        "count",
        "process",
        "derived",
        # The process tells nothing where there are several API servers.
        f'max by {BY} (changes(process_start_time_seconds{{job="vllm"}}[{_RESTARTS}])) or '
        f"max by {BY} (resets(vllm:prompt_tokens_total[{_RESTARTS}]))",
        window=_RESTARTS,
    ),
    query(
        "process_age",
        "age of the server process",
        "seconds",
        "process",
        "derived",
        f'time() - max by {BY} (process_start_time_seconds{{job="vllm"}})',
        fold="min",
        window="now",
    ),
    query(
        "api_cpu",
        "processor time of the API server's process",
        "cores",
        "front end cpu",
        "derived",
        f'max by {BY} (rate(process_cpu_seconds_total{{job="vllm"}}[$window]))',
    ),
    query(
        "vllm_up",
        "share of scrapes that vLLM answered",
        "ratio",
        "scrape",
        "measured",
        f"min by {BY} (avg_over_time({_UP}[$window]))",
        fold="min",
    ),
    query(
        "vllm_up_now",
        "vLLM answers its scrapes",
        "yes or no",
        "scrape",
        "measured",
        f"min by {BY} ({_UP})",
        fold="min",
        window="now",
    ),
    query(
        "engine_metrics",
        "vLLM's answer holds the engine's metrics",
        "yes or no",
        "engine metrics",
        "inferred",
        f"(count by {BY} ({_RUNNING}) > bool 0) or (0 * max by {BY} ({_UP} == 1))",
        fold="min",
        window="now",
    ),
)
