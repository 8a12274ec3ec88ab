"""A plan for people: a table of figures, the verdict, and what to change."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_node.fit.figures import Figure, size
from vllm_node.fit.held import Difference
from vllm_node.fit.plan import Plan

VERDICTS = {
    "fits": "FITS",
    "may_not_fit": "MAY NOT FIT",
    "does_not_fit": "DOES NOT FIT",
    "impossible": "IMPOSSIBLE",
    "unknown": "UNKNOWN",
}
_TITLES = {
    "weights_total": "weights in files",
    "gpu_memory": "memory of a GPU",
    "budget": "vLLM may use",
    "weights_gpu": "weights on a GPU",
    "overhead": "overhead on a GPU",
    "kv_memory": "left for the KV cache",
    "kv_token_bytes": "KV cache of a token",
    "block_size": "tokens in a block",
    "blocks": "blocks",
    "kv_tokens": "tokens that fit",
    "max_model_len": "longest request",
    "full_requests": "full-length requests",
}
_ON_A_CPU = {"gpu_memory": "memory of the node", "weights_gpu": "weights in memory", "overhead": "overhead"}


def text(plan: Plan, host: str = "", differences: Sequence[Difference] | None = None) -> str:
    """The plan as text. `differences`: what came of holding it against a vLLM that runs; None when none does."""
    name = f"{host}, {plan.instance}" if host else plan.instance
    lines = [f"{name}: {VERDICTS[plan.verdict]}: {plan.why}"]
    titles = {**_TITLES, **_ON_A_CPU} if plan.cpu else _TITLES
    rows = [(titles.get(one.name, one.name), _value(one), one.word, one.how) for one in plan.figures]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)]
        lines.append("  ".join(["", *cells, row[3]]))
    if plan.sizes:
        lines.append("  tensor-parallel sizes: " + _sizes(plan))
    for reason in plan.reasons:
        lines += [f"  {reason.level.upper()} {reason.seen}", f"    why:  {reason.why}", f"    mend: {reason.mend}"]
    if plan.changes:
        lines += ["  what to change, one of:", *(f"    - {change}" for change in plan.changes)]
    if plan.untold:
        lines += ["  this plan could not tell:", *(f"    - {one}" for one in plan.untold)]
    if differences is not None:
        lines += ["  held against vLLM itself:", *(f"    {one.words}{_both(one)}" for one in differences)]
    return "\n".join(lines)


def _sizes(plan: Plan) -> str:
    possible = [str(one.tp) for one in plan.sizes if one.why_not is None]
    return f"{', '.join(possible) or 'none'} of up to {len(plan.sizes)}"


def _value(figure: Figure) -> str:
    if figure.value is None:
        return "?"
    found = _amount(figure.value, figure.unit)
    if figure.low is None or figure.high is None:
        return found
    return f"{found} ({_amount(figure.low, figure.unit)} to {_amount(figure.high, figure.unit)})"


def _amount(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"-{size(-value)}" if value < 0 else size(value)
    return f"{value:,.1f}" if unit == "requests" else f"{value:,.0f}"


def _both(difference: Difference) -> str:
    if difference.planned is None or difference.seen is None:
        return ""
    planned, seen = (_amount(value, difference.unit) for value in (difference.planned, difference.seen))
    return f" ({planned}; vLLM: {seen})" if planned != seen else f" ({planned})"
