"""Models against the GPUs that their instances are given: memory, and how a model is cut over several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vllm_node.preflight.findings import Finding, finding
from vllm_node.preflight.reading import Snapshot
from vllm_node.preflight.wanted import Instance, Wanted

if TYPE_CHECKING:
    from vllm_node.fit.figures import Figure
    from vllm_node.fit.plan import Plan


def _plans(snapshot: Snapshot, wanted: Wanted) -> Iterator[tuple[Instance, Plan]]:
    # Not above: what a plan is made of reads snapshots with the help of this package, which begins with its checks.
    from vllm_node.fit import site

    for instance in wanted.instances:
        plan = site.plan_of(snapshot, wanted, instance)
        # What a plan could not see is no finding: it is neither good news nor bad.
        if plan.figures:
            yield instance, plan


def memory(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Weights and one request of full length fit, by more than the figures may be off."""
    for instance, plan in _plans(snapshot, wanted):
        if plan.verdict not in ("does_not_fit", "may_not_fit"):
            continue
        yield finding(
            "fail" if plan.verdict == "does_not_fit" else "warn",
            "model.fit",
            f"instance {instance.name}: {plan.why}: {_figures(plan)}",
            "vLLM finds that out itself, but only after it has loaded the model for minutes.",
            f"One of: {'; '.join(plan.changes)}. `vllm-node plan {wanted.host} {instance.name}` shows each figure.",
        )


def parallel(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """The model can be cut over the GPUs, and those reach each other."""
    for instance, plan in _plans(snapshot, wanted):
        for reason in plan.reasons:
            if reason.kind in ("count", "share"):
                continue  # told by the checks of flags and of shared GPUs
            yield finding(
                "fail" if reason.level == "stop" else "warn",
                "model.parallel",
                f"instance {instance.name}: {reason.seen}",
                f"A model is cut over whole GPUs that reach each other, as many as the settings say. {reason.why}",
                reason.mend,
            )


def _figures(plan: Plan) -> str:
    told = [
        f"{title} {_range(figure)}"
        for title, figure in (
            ("vLLM may use", plan.figure("budget")),
            ("weights", plan.figure("weights_gpu")),
            ("overhead", plan.figure("overhead")),
            ("left for the KV cache", plan.figure("kv_memory")),
        )
        if figure.value is not None
    ]
    return ", ".join(told)


def _range(figure: Figure) -> str:
    from vllm_node.fit.figures import size

    value = f"{size(figure.value or 0)}"
    if figure.low is None or figure.high is None:
        return value
    return f"{value} ({size(figure.low)} to {size(figure.high)})"


CHECKS = (memory, parallel)
