"""Requests and latency: what the users of the models get."""

from __future__ import annotations

from vllm_node.dashboards.overview import OBJECTIVE, http_errors, within_objective
from vllm_node.dashboards.vocabulary import (
    ORANGE,
    SERVER,
    VLLM,
    Board,
    Row,
    above,
    ask,
    below,
    heat,
    lines,
    quantile,
    quantiles,
    rate,
    ratio,
    row,
)

NAME = "{{node}} {{instance}}"
QUANTILES = (
    "Median, 95th and 99th percentile over the buckets of the interval; a gap means that there was nothing to measure."
)


def build() -> Board:
    """The dashboard."""
    return Board(
        uid="vllm-node-requests",
        title="vLLM node: requests and latency",
        description="What the users of the models get: how many requests, how fast, how long, how many fail.",
        rows=(_counts(), _first_token(), _tokens(), _volume(), _lengths(), _failures()),
    )


def _counts() -> Row:
    return row(
        7,
        lines(
            1,
            "Requests finished by reason",
            "Requests that ended, per second and reason: stop and length are normal ends, abort is a client that went "
            "away, error is the engine. The name of the metric says success and holds all of them.",
            "reqps",
            [
                ask(
                    rate(f"vllm:request_success_total{{{VLLM}}}", "node, instance, finished_reason"),
                    NAME + " {{finished_reason}}",
                )
            ],
            stacked=True,
        ),
        lines(
            2,
            "HTTP requests by status",
            "Answers of the HTTP server per second, grouped by status as it groups them (2xx, 4xx, 5xx). A status "
            "shows up with its first answer.",
            "reqps",
            [
                ask(
                    rate(f'http_requests_total{{{SERVER},handler=~"/v1/.*"}}', "node, instance, handler, status"),
                    NAME + " {{handler}} {{status}}",
                )
            ],
            stacked=True,
        ),
        lines(
            3,
            "HTTP server error share",
            "Answers with a 5xx status of all answers, both summed before they are divided. Empty until the first such "
            "answer after a start: the series is made by it.",
            "percentunit",
            [ask(http_errors("node, instance"), NAME)],
            limits=above("VllmHttp5xx"),
        ),
    )


def _first_token() -> Row:
    return row(
        8,
        lines(
            4,
            "Time to first token",
            "From the arrival at the server to the first token of the answer. " + QUANTILES,
            "s",
            quantiles("vllm:time_to_first_token_seconds"),
        ),
        heat(
            5,
            "Time to first token, distribution",
            "How many requests of each interval fell into which bucket: two bands are two kinds of requests, which "
            "one quantile hides. Counted from the increase of the buckets; empty cells without requests.",
            "s",
            ask(
                f"sum by (le) (increase(vllm:time_to_first_token_seconds_bucket{{{VLLM}}}[$__rate_interval]))", "{{le}}"
            ),
        ),
        lines(
            6,
            "First tokens within the objective",
            f"Share of the first tokens that came within {OBJECTIVE} s: that bucket over all. Sharper than a "
            "quantile, as no "
            "interpolation is in it. Empty without requests, and with custom buckets that have no such edge.",
            "percentunit",
            [ask(within_objective("node, instance"), NAME)],
            limits=below("VllmTTFTHigh", ORANGE),
            top=1,
        ),
    )


def _tokens() -> Row:
    return row(
        8,
        lines(
            7,
            "Inter-token latency",
            "Time between two tokens of an answer. With speculative decoding several tokens come at once. " + QUANTILES,
            "s",
            quantiles("vllm:inter_token_latency_seconds"),
            limits=above("VllmITLHigh", ORANGE),
        ),
        lines(
            8,
            "Time per output token",
            "Mean time per token of each request. Requests with at most one token are recorded as 0 and pull the "
            "quantiles down: with many of them read the inter-token latency instead. " + QUANTILES,
            "s",
            quantiles("vllm:request_time_per_output_token_seconds"),
        ),
        lines(
            9,
            "End-to-end latency",
            "From the arrival to the last token. Grows with the length of the answers, so the alert whose "
            "line is drawn is off unless the site turns it on. " + QUANTILES,
            "s",
            quantiles("vllm:e2e_request_latency_seconds"),
            limits=above("VllmE2EHigh", ORANGE),
        ),
    )


def _volume() -> Row:
    return row(
        7,
        lines(
            10,
            "Generated tokens per second",
            "Increase of the generated tokens, per second.",
            "short",
            [
                ask(
                    rate(f"vllm:generation_tokens_total{{{VLLM}}}", "node, instance, model_name"),
                    NAME + " {{model_name}}",
                )
            ],
        ),
        lines(
            11,
            "Prompt tokens per second by source",
            "Prompt tokens per second that were computed here, found in the cache, or fetched from elsewhere.",
            "short",
            [
                ask(
                    rate(f"vllm:prompt_tokens_by_source_total{{{VLLM}}}", "node, instance, source"),
                    NAME + " {{source}}",
                )
            ],
            stacked=True,
        ),
    )


def _lengths() -> Row:
    return row(
        7,
        lines(
            12,
            "Prompt length",
            "Tokens of a prompt. " + QUANTILES,
            "none",
            quantiles("vllm:request_prompt_tokens", (0.5, 0.95)),
        ),
        lines(
            13,
            "Output length",
            "Tokens of an answer. " + QUANTILES,
            "none",
            quantiles("vllm:request_generation_tokens", (0.5, 0.95)),
        ),
        lines(
            14,
            "Output tokens allowed and used",
            "95th percentile of max_tokens as requests ask for it, and of what was generated. Far apart: clients "
            "reserve more than they need. Empty for requests without max_tokens.",
            "none",
            [
                ask(quantile(0.95, "vllm:request_params_max_tokens"), NAME + " allowed"),
                ask(quantile(0.95, "vllm:request_generation_tokens"), NAME + " used"),
            ],
        ),
    )


def _failures() -> Row:
    finished = rate(f"vllm:request_success_total{{{VLLM}}}", "node, instance")
    aborted = rate(f'vllm:request_success_total{{{VLLM},finished_reason="abort"}}', "node, instance")
    return row(
        7,
        lines(
            15,
            "Share of aborted requests",
            "Requests whose client went away, of all that ended. Client timeouts look like this. Empty without "
            "requests.",
            "percentunit",
            [ask(ratio(aborted, finished), NAME)],
            limits=above("VllmHighAborts", ORANGE),
        ),
        lines(
            16,
            "Requests that failed in the engine",
            "Requests that ended with the reason error, in each interval. vLLM before 0.13 does not tell.",
            "none",
            [
                ask(
                    f'sum by (node, instance) (increase(vllm:request_success_total{{{VLLM},finished_reason="error"}}'
                    "[$__rate_interval]))",
                    NAME,
                )
            ],
        ),
    )
