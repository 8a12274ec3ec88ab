"""The table of hypotheses in `docs/diagnosis.md`, out of the code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from vllm_node.diagnosis.hypotheses import HYPOTHESES
from vllm_node.diagnosis.hypothesis import Hypothesis, Sign
from vllm_node.diagnosis.report import limit_text
from vllm_node.diagnosis.signals import SIGNALS
from vllm_node.diagnosis.thresholds import THRESHOLDS


def page(path: Path, between: Callable[[Path, str], str], table: Callable[..., str]) -> dict[Path, str]:
    """The page as it should be; nothing where there is none. `between` and `table` are those of `vllm_node.docs`."""
    if not path.exists():
        return {}
    head = ("hypothesis", "claim", "signs for it (bold: needed)", "signs against it")
    return {path: between(path, table(head, map(_row, HYPOTHESES)))}


def _row(one: Hypothesis) -> tuple[str, ...]:
    needs = [f"**{_sign(sign)}**" for sign in (*one.given, *one.needs)]
    helps = map(_sign, one.helps)
    return f"`{one.id}`", one.claim, _listed([*needs, *helps]), _listed(map(_sign, one.against)) or "-"


def _listed(signs: Iterable[str]) -> str:
    return "; ".join(signs)


def _sign(sign: Sign) -> str:
    signal, limit = SIGNALS[sign.signal], THRESHOLDS[sign.limit]
    if signal.unit == "yes or no":
        return signal.words if sign.relation == "above" else f"not: {signal.words}"
    return f"{signal.words}, {sign.relation} {limit_text(limit.value, signal.unit)}"
