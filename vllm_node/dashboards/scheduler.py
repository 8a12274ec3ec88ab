"""Scheduler and queue: what the engine does with the requests it has."""

from __future__ import annotations

from vllm_node.dashboards.vocabulary import (
    ORANGE,
    VLLM,
    Board,
    Row,
    above,
    ask,
    lines,
    quantile,
    quantiles,
    rate,
    ratio,
    row,
)

NAME = "{{node}} {{instance}}"


def build() -> Board:
    """The dashboard."""
    return Board(
        uid="vllm-node-scheduler",
        title="vLLM node: scheduler and queue",
        description="Who waits and why, how big a step of the engine is, and whether it has to take work back.",
        rows=(_queue(), _phases(), _preemption(), _state()),
    )


def _queue() -> Row:
    return row(
        8,
        lines(
            1,
            "Requests running and waiting",
            "Running covers prefill and decode. Gauges of the last scrape, summed over the engines of an instance. "
            "They freeze when an engine hangs: compare with the steps per second.",
            "none",
            [
                ask(f"sum by (node, instance) (vllm:num_requests_running{{{VLLM}}})", NAME + " running"),
                ask(f"sum by (node, instance) (vllm:num_requests_waiting{{{VLLM}}})", NAME + " waiting"),
            ],
            limits=above("VllmQueueBacklog", ORANGE),
            stacked=True,
        ),
        lines(
            2,
            "Waiting by reason",
            "Capacity: no room in the batch or the KV cache. Deferred: waiting for an adapter or a KV transfer, which "
            "more hardware does not cure. vLLM before 0.20 does not tell.",
            "none",
            [
                ask(
                    f"sum by (node, instance, reason) (vllm:num_requests_waiting_by_reason{{{VLLM}}})",
                    NAME + " {{reason}}",
                )
            ],
            stacked=True,
        ),
        lines(
            3,
            "Queue time",
            "Time from arrival to the first scheduling. Median, 95th and 99th percentile over the buckets of the "
            "interval; below the first edge of 0.3 s the number is interpolated. A gap without requests.",
            "s",
            quantiles("vllm:request_queue_time_seconds"),
            limits=above("VllmQueueTimeHigh", ORANGE),
        ),
    )


def _phases() -> Row:
    steps = rate(f"vllm:iteration_tokens_total_count{{{VLLM}}}", "node, instance")
    tokens = rate(f"vllm:iteration_tokens_total_sum{{{VLLM}}}", "node, instance")
    return row(
        8,
        lines(
            4,
            "Prefill, decode and inference time",
            "95th percentile over the buckets of the interval of the time a request spent in prefill, in decode and in "
            "both. A gap without requests.",
            "s",
            [
                ask(quantile(0.95, f"vllm:request_{phase}_time_seconds"), f"{NAME} {phase}")
                for phase in ("prefill", "decode", "inference")
            ],
        ),
        lines(
            5,
            "Tokens per step",
            "Mean number of tokens that one step of the engine works on: tokens over steps of the interval. Its upper "
            "end is max_num_batched_tokens. Empty while the engine does nothing.",
            "none",
            [ask(ratio(tokens, steps), NAME)],
        ),
        lines(
            6,
            "Steps per second",
            "Steps of the engine. None while requests run is an engine that hangs.",
            "ops",
            [ask(steps, NAME)],
        ),
    )


def _preemption() -> Row:
    preempted = rate(f"vllm:num_preemptions_total{{{VLLM}}}", "node, instance")
    finished = rate(f"vllm:request_success_total{{{VLLM}}}", "node, instance")
    return row(
        7,
        lines(
            7,
            "Preemptions per second",
            "Requests that lost their KV blocks and are computed again. One now and then is normal.",
            "ops",
            [ask(preempted, NAME)],
        ),
        lines(
            8,
            "Preemptions per finished request",
            "Preemptions over requests that ended, of the same interval. Empty while none ends.",
            "short",
            [ask(ratio(preempted, finished), NAME)],
            limits=above("VllmPreemptionStorm", ORANGE),
        ),
        lines(
            9,
            "Preemptions of a request",
            "How often one request was preempted, 95th percentile over the buckets of the interval. vLLM before 0.30 "
            "does not tell; a gap without requests.",
            "short",
            [ask(quantile(0.95, "vllm:request_num_preemptions"), NAME)],
        ),
    )


def _state() -> Row:
    return row(
        7,
        lines(
            10,
            "Admission rejections",
            "Requests per second that were refused because the queue had reached its limit. Counted from vLLM 0.32 on; "
            "stays at 0 unless --max-num-queued-reqs or --max-num-queued-tokens is given.",
            "reqps",
            [ask(rate(f"vllm:admission_rejections_total{{{VLLM}}}", "node, instance, reason"), NAME + " {{reason}}")],
        ),
        lines(
            11,
            "Sleep state",
            "1 for the state an engine is in: awake, or put to sleep with its weights moved away.",
            "none",
            [
                ask(
                    f"max by (node, instance, sleep_state) (vllm:engine_sleep_state{{{VLLM}}})",
                    NAME + " {{sleep_state}}",
                )
            ],
            top=1,
        ),
        lines(
            12,
            "Counter resets",
            "How often the counters of an instance began at zero again within the last hour: its restarts.",
            "none",
            [ask(f"max by (node, instance) (resets(vllm:prompt_tokens_total{{{VLLM}}}[1h]))", NAME)],
            limits=above("VllmFlapping", ORANGE),
        ),
    )
