"""Pass, fail, or insufficient, each with its reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from vllm_node.load.definitions import Figures
from vllm_node.load.distribution import INSUFFICIENT, TIMED_OUT, Distribution, samples_needed
from vllm_node.load.selfcheck import INVALID
from vllm_node.load.slo import Slo
from vllm_node.load.trend import MIN_SAMPLES, Trend, overloaded, trend

PASS, FAIL = "pass", "fail"
# Where the SLO says nothing about errors, this holds: a server that refuses most requests must not pass.
DEFAULT_ERROR_RATE = 0.01
# The SLO's percentiles are judged as the user sees them.
_JUDGED = {"ttft_p95_s": "ttft_scheduled_s", "tpot_p95_s": "tpot_s", "e2e_p95_s": "e2e_scheduled_s"}


@dataclass(frozen=True)
class Check:
    """One promise against what was seen. `seen` is a number, or a word where there is none."""

    name: str
    limit: float
    seen: float | str | None
    samples: int
    verdict: str
    reason: str


@dataclass(frozen=True)
class Verdict:
    """The verdict of a stage with all reasons for it."""

    verdict: str
    reasons: list[str]
    checks: list[Check] = field(default_factory=list)
    queue: Trend | None = None

    def document(self) -> dict[str, Any]:
        """As it stands in a result."""
        return asdict(self)


def judge(
    figures: Figures,
    *,
    void: Sequence[str] = (),
    stopped: str | None = None,
    waiting: Sequence[tuple[float, float]] | None = None,
    open_loop: bool = True,
    workflow_e2e: Distribution | None = None,
) -> Verdict:
    """The verdict of a stage.

    `void`: reasons for which its figures say nothing. `stopped`: why it ended before its time. `waiting`: the length
    of the server's queue as (seconds, requests) inside the window, None when nobody looked. In a closed loop the
    queue cannot outgrow the clients, so it proves nothing there. `workflow_e2e`: None when there are no workflows.
    """
    if void:
        return Verdict(INSUFFICIENT, [f"{INVALID}: {reason}" for reason in void])
    checks = _checks(figures, figures.slo, workflow_e2e)
    fails = [one.reason for one in checks if one.verdict == FAIL]
    lacks = [one.reason for one in checks if one.verdict == INSUFFICIENT]
    found = trend(waiting) if waiting is not None and open_loop else None
    if found is not None and overloaded(found, figures.per_s(figures.offered) or 0, figures.window.seconds):
        fails.append(
            f"overload: the queue grew by {found.slope:.3g} requests/s through the window "
            f"(95 % interval {found.low:.3g} to {found.high:.3g}, {found.samples} samples)"
        )
    if figures.groups["held_back"]:
        lacks.append(
            f"{figures.groups['held_back']} requests were held back by limits.in_flight, so the offered load was not "
            "reached"
        )
    if stopped:
        lacks.append(f"the stage ended early: {stopped}")
    if not checks:
        lacks.append("there is no SLO to judge by")
    if waiting is not None and open_loop and found is None:
        lacks.append(f"the queue was looked at {len(waiting)} times, at least {MIN_SAMPLES} are needed to see it grow")
    if fails:
        return Verdict(FAIL, fails + lacks, checks, found)
    return Verdict(INSUFFICIENT if lacks else PASS, lacks, checks, found)


def _checks(figures: Figures, wanted: Slo, workflow_e2e: Distribution | None) -> list[Check]:
    found = []
    for name, figure in _JUDGED.items():
        limit = getattr(wanted, name)
        if limit is not None:
            found.append(_percentile(name, limit, figures.latency[figure]))
    if wanted.workflow_e2e_p95_s is not None:
        found.append(_percentile("workflow_e2e_p95_s", wanted.workflow_e2e_p95_s, workflow_e2e or Distribution()))
    if found or wanted != Slo():
        found.append(_errors(figures, wanted))
    if wanted.goodput_share is not None:
        share = figures.good / figures.offered if figures.offered else None
        found.append(_least("goodput_share", wanted.goodput_share, share, figures.offered))
    if wanted.goodput_per_s is not None:
        found.append(_least("goodput_per_s", wanted.goodput_per_s, figures.per_s(figures.good), figures.offered))
    return found


def _percentile(name: str, limit: float, distribution: Distribution) -> Check:
    seen, count = distribution.quantile(0.95), distribution.n
    if seen == INSUFFICIENT:
        reason = f"{name}: {count} samples, at least {samples_needed(0.95)} are needed"
        return Check(name, limit, seen, count, INSUFFICIENT, reason)
    if seen == TIMED_OUT:
        return Check(name, limit, seen, count, FAIL, f"{name}: more than 5 % of {count} ran into a time-out")
    assert isinstance(seen, float)
    reason = f"{name}: {seen:.4g} s of at most {limit:g} s ({count} samples)"
    return Check(name, limit, seen, count, PASS if seen <= limit else FAIL, reason)


def _errors(figures: Figures, wanted: Slo) -> Check:
    limit = DEFAULT_ERROR_RATE if wanted.error_rate is None else wanted.error_rate
    seen, count = figures.error_rate, figures.offered
    if seen is None:
        return Check("error_rate", limit, None, 0, INSUFFICIENT, "error_rate: no request was offered")
    kinds = ", ".join(f"{times} {kind}" for kind, times in figures.kinds.most_common() if kind != "interrupted")
    reason = f"error_rate: {seen:.4g} of at most {limit:g} ({figures.failed} of {count} offered; {kinds or 'none'})"
    if wanted.error_rate is None:
        reason += "; the limit is a default, the SLO has none"
    return Check("error_rate", limit, seen, count, PASS if seen <= limit else FAIL, reason)


def _least(name: str, limit: float, seen: float | None, count: int) -> Check:
    if seen is None:
        return Check(name, limit, None, count, INSUFFICIENT, f"{name}: no request was offered")
    reason = f"{name}: {seen:.4g} of at least {limit:g} ({count} offered)"
    return Check(name, limit, seen, count, PASS if seen >= limit else FAIL, reason)
