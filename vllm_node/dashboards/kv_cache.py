"""KV and prefix cache: whether it is full, and whether it helps."""

from __future__ import annotations

from vllm_node.dashboards.vocabulary import (
    GREEN,
    ORANGE,
    RED,
    SERVER,
    VLLM,
    Board,
    Column,
    Limits,
    Row,
    ask,
    lines,
    quantile,
    rate,
    ratio,
    row,
    rows,
)

NAME = "{{node}} {{instance}}"


def build() -> Board:
    """The dashboard."""
    return Board(
        uid="vllm-node-kv-cache",
        title="vLLM node: KV and prefix cache",
        description="Whether the KV cache is full, how big it is, and how much work the prefix cache saves.",
        rows=(_use(), _prefix(), _more()),
    )


def _hits(kind: str) -> str:
    part = rate(f"vllm:{kind}_hits_total{{{VLLM}}}", "node, instance")
    return ratio(part, rate(f"vllm:{kind}_queries_total{{{VLLM}}}", "node, instance"))


def _use() -> Row:
    return row(
        8,
        lines(
            1,
            "KV cache in use",
            "Share of the KV cache blocks that running requests hold, of the fullest engine of an instance. From 0.8 "
            "on "
            "it is well used; it is a fault only when requests wait at the same time.",
            "percentunit",
            [
                ask(
                    f"max by (node, instance, model_name) (vllm:kv_cache_usage_perc{{{VLLM}}})",
                    NAME + " {{model_name}}",
                )
            ],
            limits=Limits(GREEN, ((0.8, ORANGE), ("alert:VllmKVCacheSaturated", RED))),
            top=1,
        ),
        rows(
            2,
            "KV cache capacity",
            "What the engine set up at its start, from the labels of vllm:cache_config_info: blocks, tokens that fit, "
            "and how many requests of full length fit at once.",
            [
                Column(
                    "engines",
                    "count by (node, instance, num_gpu_blocks, block_size, kv_cache_size_tokens, "
                    "kv_cache_max_concurrency,"
                    f" cache_dtype, enable_prefix_caching) (vllm:cache_config_info{{{SERVER}}})",
                    "none",
                )
            ],
            [
                ("node", "node"),
                ("instance", "instance"),
                ("num_gpu_blocks", "blocks"),
                ("block_size", "tokens a block"),
                ("kv_cache_size_tokens", "tokens"),
                ("kv_cache_max_concurrency", "full-length requests"),
                ("cache_dtype", "type"),
                ("enable_prefix_caching", "prefix caching"),
            ],
        ),
        widths=(12, 12),
    )


def _prefix() -> Row:
    return row(
        8,
        lines(
            3,
            "Prefix cache hit ratio",
            "Prompt tokens found in the cache, of those looked up in the interval. Empty while nothing is looked up, "
            "and with prefix caching off.",
            "percentunit",
            [ask(_hits("prefix_cache"), NAME)],
            top=1,
        ),
        lines(
            4,
            "Prefix cache tokens",
            "Prompt tokens looked up and found, per second.",
            "short",
            [
                ask(rate(f"vllm:prefix_cache_queries_total{{{VLLM}}}", "node, instance"), NAME + " looked up"),
                ask(rate(f"vllm:prefix_cache_hits_total{{{VLLM}}}", "node, instance"), NAME + " found"),
            ],
        ),
        lines(
            5,
            "Cached prompt tokens by tier",
            "Prompt tokens per second that came from a cache, by where they lay. Counted from vLLM 0.32 on.",
            "short",
            [
                ask(
                    rate(f"vllm:prompt_tokens_cached_by_source_total{{{VLLM}}}", "node, instance, source"),
                    NAME + " {{source}}",
                )
            ],
            stacked=True,
        ),
    )


def _more() -> Row:
    return row(
        7,
        lines(
            6,
            "Prompt tokens computed per request",
            "Prompt tokens of a request that were not in the cache, 95th percentile over the buckets of the interval. "
            "vLLM before 0.13 does not tell; a gap without requests.",
            "none",
            [ask(quantile(0.95, "vllm:request_prefill_kv_computed_tokens"), NAME)],
        ),
        lines(
            7,
            "External cache hit ratio",
            "Tokens found in a cache outside the engine, of those looked up there. Empty without a KV connector.",
            "percentunit",
            [ask(_hits("external_prefix_cache"), NAME)],
            top=1,
        ),
        lines(
            8,
            "Multimodal cache hit ratio",
            "Items such as pictures found in the cache, of those looked up. Empty for models that take text only.",
            "percentunit",
            [ask(_hits("mm_cache"), NAME)],
            top=1,
        ),
        lines(
            9,
            "KV block lifetime",
            "How long a block lives until it is given up, and how long it has lain idle by then; 95th percentile "
            "over the "
            "buckets of the interval. Only with --kv-cache-metrics.",
            "s",
            [
                ask(quantile(0.95, "vllm:kv_block_lifetime_seconds"), NAME + " lifetime"),
                ask(quantile(0.95, "vllm:kv_block_idle_before_evict_seconds"), NAME + " idle"),
            ],
        ),
    )
