"""A fit plan: every figure with its origin, the verdict, the sizes that are possible, and what to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from vllm_node.fit import advice, parallel, told
from vllm_node.fit.cutting import Reason, reasons_of
from vllm_node.fit.figures import Figure, unobservable
from vllm_node.fit.parallel import Size
from vllm_node.fit.reckoning import Case, reckon

Verdict = Literal["fits", "may_not_fit", "does_not_fit", "impossible", "unknown"]


@dataclass(frozen=True)
class Plan:
    """A plan for one instance."""

    instance: str
    verdict: Verdict
    why: str
    figures: tuple[Figure, ...]
    sizes: tuple[Size, ...]
    reasons: tuple[Reason, ...]
    changes: tuple[str, ...]
    untold: tuple[str, ...]
    cpu: bool = False

    def figure(self, name: str) -> Figure:
        """A figure by name. Raises KeyError for a name that no plan has."""
        return next((one for one in self.figures if one.name == name), None) or _missing(name)

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "instance": self.instance,
            "verdict": self.verdict,
            "why": self.why,
            "figures": [figure.as_dict() for figure in self.figures],
            "tensor_parallel_sizes": [{"size": one.tp, "why_not": one.why_not} for one in self.sizes],
            "reasons": [vars(reason) for reason in self.reasons],
            "changes": list(self.changes),
            "untold": list(self.untold),
        }


def _missing(name: str) -> Figure:
    if name not in told.NAMES:
        raise KeyError(name)
    return unobservable(name, "", "there is no plan to take it from")


def make(instance: str, case: Case) -> Plan:
    """The plan of one instance."""
    found = reckon(case)
    reasons = tuple(reasons_of(case))
    stopped = [reason.seen for reason in reasons if reason.level == "stop"]
    return Plan(
        instance,
        "impossible" if stopped else found.verdict,
        "; ".join(stopped) if stopped else found.why,
        tuple(told.figures_of(case, found)),
        tuple(parallel.sizes(case.shape, min(max(case.machine.present or 1, case.settings.tp), 64), case.settings)),
        reasons,
        tuple(advice.changes(case, found)),
        tuple(told.untold_of(case, found)),
        case.machine.cpu,
    )


def without_shape(instance: str, why: str) -> Plan:
    """A plan that could not be made; `why` in words."""
    return Plan(instance, "unknown", why, (), (), (), (), (why,))
