"""Which layers of a model keep all tokens, the last ones, a chunk, or a state: read from its config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Names of layer_types → what they keep for each token.
_FULL, _SLIDING, _CHUNKED, _STATE = "full", "sliding", "chunked", "state"
_KINDS = (
    (re.compile(r"sliding|local_attention|window"), _SLIDING),
    (re.compile(r"chunk"), _CHUNKED),
    (re.compile(r"linear|mamba|recurrent|conv|state|rwkv|ssm"), _STATE),
    (re.compile(r"attention|full|global"), _FULL),
)
# Whose window is not in layer_types: every n-th layer is full, the others have the window.
_EVERY = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2, "cohere2": 4}


def first(config: Mapping[str, Any], *names: str) -> int | None:
    """The first of these that is a number above 0."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return int(value)
    return None


def kinds_of(config: Mapping[str, Any], model_type: str, layers: int) -> tuple[dict[str, int], list[str]]:
    """Layers by what they keep (full, sliding, chunked, state), and in words what could not be told."""
    untold: list[str] = []
    types = config.get("layer_types")
    if isinstance(types, list):
        types = {kind: types.count(kind) for kind in dict.fromkeys(map(str, types))}
    if isinstance(types, Mapping) and types:
        found: dict[str, int] = {}
        for name, count in types.items():
            kind = next((kind for pattern, kind in _KINDS if pattern.search(str(name))), None)
            if kind is None:
                untold.append(f"what layers of the kind {name} keep; they are taken for full attention")
            found[kind or _FULL] = found.get(kind or _FULL, 0) + int(count)
        return _with_windows(found, config), untold
    interval = first(config, "full_attention_interval")
    if interval and first(config, "linear_num_value_heads"):
        return {_FULL: layers // interval, _STATE: layers - layers // interval}, untold
    if config.get("mamba_config") or config.get("ssm_cfg"):
        untold.append("which layers keep a state instead of tokens; all are taken for full attention")
        return {_FULL: layers}, untold
    window = first(config, "sliding_window", "sliding_window_size")
    if not window or config.get("use_sliding_window") is False:
        return {_FULL: layers}, untold
    every = first(config, "sliding_window_pattern", "_sliding_window_pattern") or _EVERY.get(model_type)
    if every:
        full = layers // every
        return _with_windows({_FULL: full, _SLIDING: layers - full}, config), untold
    if config.get("use_sliding_window") is True and first(config, "max_window_layers"):
        # Qwen2: the layers from max_window_layers on have the window.
        full = min(first(config, "max_window_layers") or 0, layers)
        return {_FULL: full, _SLIDING: layers - full} if full < layers else {_FULL: layers}, untold
    return {_SLIDING: layers}, untold


def _with_windows(kinds: dict[str, int], config: Mapping[str, Any]) -> dict[str, int]:
    """A window of no size is none: such layers keep all tokens."""
    sizes = {_SLIDING: ("sliding_window", "sliding_window_size"), _CHUNKED: ("attention_chunk_size",)}
    for kind, names in sizes.items():
        if kinds.get(kind) and not first(config, *names):
            kinds[_FULL] = kinds.get(_FULL, 0) + kinds.pop(kind)
    return {kind: count for kind, count in kinds.items() if count > 0}


def without(kinds: Mapping[str, int], shared: int, layers: int) -> dict[str, int]:
    """The kinds less so many layers that use what others keep; none goes away altogether."""
    left = {kind: max(1, round(count * (layers - shared) / layers)) for kind, count in kinds.items()}
    return {kind: count for kind, count in left.items() if count}
