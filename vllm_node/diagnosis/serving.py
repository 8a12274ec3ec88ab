"""Hypotheses about how an instance serves: cache, queue, steps, lengths."""

from __future__ import annotations

from vllm_node.diagnosis.hypothesis import Hypothesis, Next, above, below

_BY = '{{instance="{instance}"}}'

SERVING: tuple[Hypothesis, ...] = (
    Hypothesis(
        "kv_pressure",
        "The KV cache is too small for this load: requests wait for blocks, or lose theirs",
        "instance",
        Next(
            "memory for the cache settles it when preemptions end with fewer requests at a time; if the queue stays as "
            "long with --max-num-seqs halved and the cache half empty, it was not the cache",
            query="max_over_time(vllm:kv_cache_usage_perc" + _BY + "[{window}]) and on (node, instance) "
            "increase(vllm:num_preemptions_total" + _BY + "[{window}]) > 0",
        ),
        needs=(above("kv_use", "kv_full"),),
        helps=(
            above("waiting", "waiting"),
            above("queue_p95", "queue_high_s"),
            above("preemptions", "preemptions"),
        ),
        against=(above("deferred_share", "deferred_share"), below("waiting", "waiting_none")),
        explains=("queueing",),
    ),
    Hypothesis(
        "queueing",
        "Requests are late because they wait for their turn, not because they are computed slowly",
        "instance",
        Next(
            "reasons of the queue say whether capacity or something else (adapters, KV transfer) holds requests back; "
            "compare the number running with --max-num-seqs",
            query="sum by (reason) (avg_over_time(vllm:num_requests_waiting_by_reason" + _BY + "[{window}]))",
        ),
        needs=(above("queue_share", "queue_share"), above("ttft_p95", "ttft_high_s")),
        helps=(above("waiting", "waiting"), below("itl_p95", "itl_high_s")),
        against=(below("queue_p95", "queue_low_s"), below("waiting", "waiting_none")),
    ),
    Hypothesis(
        "prefill_bound",
        "The first token is late because prompts are long to compute",
        "instance",
        Next(
            "send one short and one long prompt while nothing else runs: if only the long one is late, it is the "
            "prompt; "
            "if both are, it is the front end or the network",
            query="sum by (le) (increase(vllm:request_prompt_tokens_bucket" + _BY + "[{window}]))",
        ),
        needs=(above("ttft_p95", "ttft_high_s"), above("prefill_share", "prefill_share")),
        helps=(
            above("prompt_p95", "long_prompt"),
            above("prompt_weight", "prompt_heavy"),
            below("itl_p95", "itl_high_s"),
        ),
        against=(above("queue_share", "queue_share"), above("preemptions", "preemptions")),
    ),
    Hypothesis(
        "prefill_interference",
        "Answers stutter because the same steps also compute long prompts",
        "instance",
        Next(
            "halve --max-num-batched-tokens for a test: inter-token latency falls and time to first token rises if "
            "it is "
            "this; if neither moves, the decode itself is slow",
            query="rate(vllm:iteration_tokens_total_sum" + _BY + "[{window}]) / "
            "rate(vllm:iteration_tokens_total_count" + _BY + "[{window}])",
        ),
        needs=(above("itl_p95", "itl_high_s"), above("step_load", "big_step")),
        helps=(above("prompt_p95", "long_prompt"), above("prompt_weight", "prompt_heavy")),
        against=(
            above("preemptions", "preemptions"),
            above("bit_heat", "bit_often"),
            above("bit_slowdown", "bit_often"),
        ),
    ),
    Hypothesis(
        "decode_bound",
        "Answers come slowly because too many are written in one batch for this GPU",
        "instance",
        Next(
            "lower --max-num-seqs, or the client's concurrency, by half for a few minutes: inter-token latency "
            "falls with "
            "it if it is the batch, and stays if clocks, links or one slow GPU hold it up",
            query="vllm:num_requests_running" + _BY,
        ),
        needs=(above("itl_p95", "itl_high_s"), above("running", "big_batch")),
        helps=(above("gpu_util", "gpu_busy"), above("dram", "dram_busy"), below("step_load", "small_step")),
        against=(
            above("step_load", "big_step"),
            above("preemptions", "preemptions"),
            above("bit_heat", "bit_often"),
            above("bit_slowdown", "bit_often"),
            above("power_spread", "spread_share"),
            below("gpu_util", "gpu_low"),
        ),
    ),
    Hypothesis(
        "admission_limit",
        "Requests wait although there is room: the limit of requests at a time is reached",
        "instance",
        Next(
            "raise --max-num-seqs for a test: the queue shrinks and GPU use rises if it is the limit; if the number "
            "running does not follow, the front end or the cache holds it back",
            query="max_over_time(vllm:num_requests_running" + _BY + "[{window}])",
        ),
        needs=(above("waiting", "waiting"),),
        helps=(above("batch_share", "batch_limit"), below("running_band", "plateau"), below("gpu_util", "gpu_low")),
        against=(
            above("kv_use", "kv_full"),
            above("deferred_share", "deferred_share"),
            below("batch_share", "batch_room"),
            below("steps", "half"),
        ),
        explains=("queueing",),
    ),
    Hypothesis(
        "frontend_bound",
        "The API server's own process is the limit: it takes in requests and hands out tokens too slowly",
        "instance",
        Next(
            "the profile of the API server's process says whether it tokenises, renders templates or writes streams; "
            "--api-server-count 2 halves the share of time outside of the engine if it is this",
            command="podman exec {container} top -H -b -n 1",
        ),
        needs=(above("api_cpu", "busy_core"),),
        helps=(
            above("frontend_share", "frontend_share"),
            below("gpu_util", "gpu_low"),
            above("client_ttft", "client_gap"),
        ),
        against=(above("queue_share", "queue_share"), above("gpu_util", "gpu_busy")),
    ),
    Hypothesis(
        "deferred",
        "Requests wait for something else than the GPU: an adapter or a KV transfer",
        "instance",
        Next(
            "the log names the adapter or the connector that is waited for; capacity would not help",
            command="journalctl -u {unit} --since -30min --grep 'lora|adapter|connector|transfer'",
        ),
        needs=(above("deferred_share", "deferred_share"), above("waiting", "waiting")),
        helps=(below("kv_use", "kv_room"), below("gpu_util", "gpu_low")),
        against=(above("kv_use", "kv_full"),),
        explains=("queueing", "admission_limit"),
    ),
    Hypothesis(
        "prefix_cold",
        "The prefix cache finds less than it used to: prompts changed, or the cache was emptied by a restart",
        "instance",
        Next(
            "compare the first lines of two requests of the same kind: a date or an id in front of the common part "
            "makes "
            "every prompt new; if they are the same, look for the restart or for a cache that is too small",
            query="rate(vllm:prefix_cache_hits_total" + _BY + "[{window}]) / "
            "rate(vllm:prefix_cache_queries_total" + _BY + "[{window}])",
        ),
        needs=(below("prefix_change", "prefix_drop"),),
        helps=(above("ttft_growth", "grown"), below("process_young", "one_window"), above("kv_use", "kv_full")),
        against=(below("prefix_hits_before", "prefix_used"), below("ttft_growth", "unchanged")),
    ),
    Hypothesis(
        "long_outputs",
        "Requests take long because their answers are long; each token comes in time",
        "instance",
        Next(
            "the lengths that clients allow, beside those that are used: a limit that is always reached is a missing "
            "max_tokens; if answers are no longer than last week, look at the latencies again",
            query="sum by (le) (increase(vllm:request_params_max_tokens_bucket" + _BY + "[{window}]))",
        ),
        needs=(above("e2e_p95", "e2e_high_s"), above("output_p95", "long_output")),
        helps=(
            below("itl_p95", "itl_high_s"),
            above("decode_share", "decode_share"),
            below("ttft_p95", "ttft_high_s"),
        ),
        against=(
            above("itl_p95", "itl_high_s"),
            above("queue_share", "queue_share"),
            below("decode_share", "half"),
        ),
    ),
    Hypothesis(
        "context_limit",
        "Requests run into the model's context limit and are cut off or refused",
        "instance",
        Next(
            "requests refused for their length are answered with status 4xx, and the log says so; answers that end at "
            "max_tokens of the client are cut off just the same and are no matter of the context",
            command="journalctl -u {unit} --since -30min --grep 'maximum (context|model) length'",
        ),
        needs=(above("length_share", "near_limit"),),
        helps=(above("cut_share", "cut_share"), above("kv_use", "kv_full"), above("preemptions", "preemptions")),
        against=(below("cut_share", "cut_none"),),
    ),
    Hypothesis(
        "overload",
        "More requests come than an hour ago, more than this instance can serve",
        "instance",
        Next(
            "requests a second by path at the gateway or in the clients' own logs: vLLM counts a request when it "
            "starts "
            "on it, so an overloaded server hides a part of the growth",
            query='sum by (handler) (rate(http_requests_total{{instance="{instance}"}}[{window}]))',
        ),
        needs=(above("traffic_growth", "traffic_growth"), above("waiting", "waiting")),
        helps=(above("queue_growth", "queue_growth"), above("gpu_util", "gpu_busy"), above("kv_use", "kv_full")),
        against=(below("gpu_util", "gpu_low"), above("deferred_share", "deferred_share")),
        explains=("queueing", "kv_pressure"),
    ),
    Hypothesis(
        "client_slow",
        "The server answers in time: what is slow lies in the client or on the way to it",
        "instance",
        Next(
            "run the same client on the node itself against the loopback port: if the difference is gone it is the way "
            "(network, proxy), if it stays it is the client",
            command="curl -s -o /dev/null -w '%{{time_starttransfer}}\\n' http://127.0.0.1:{port}/v1/models",
        ),
        needs=(above("client_ttft", "client_gap"),),
        helps=(
            above("client_late", "client_late_s"),
            above("client_cpu", "client_cpu"),
            below("ttft_p95", "ttft_high_s"),
        ),
        against=(below("client_e2e", "client_same"), above("queue_share", "queue_share")),
    ),
    Hypothesis(
        "client_timeouts",
        "Clients give up before the answer is complete",
        "instance",
        Next(
            "the clients' (and proxies') time limits against the end-to-end latency: aborts pile up just above a "
            "limit; "
            "aborts of short requests are clients that stopped, such as the end of a benchmark",
            query="histogram_quantile(0.99, sum by (le) (rate(vllm:e2e_request_latency_seconds_bucket"
            + _BY
            + "[{window}])))",
        ),
        needs=(above("abort_share", "aborts"),),
        helps=(above("e2e_p95", "e2e_high_s"), above("ttft_p95", "ttft_high_s"), above("queue_p95", "queue_high_s")),
        against=(below("e2e_p95", "e2e_quick_s"),),
    ),
)
