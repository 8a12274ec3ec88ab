"""Two runs beside each other: what differs by more than their repeats differ among themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_node.bench.report import background, document, spread
from vllm_node.bench.report.drawings import name_of
from vllm_node.bench.report.measures import MEASURES, Measure, of_step
from vllm_node.bench.report.numbers import is_number

SCHEMA = 1
NO_DIFFERENCE = "no difference can be seen"
TOO_FEW = "too few repeats"
_OWN = ("kind", "id", "host", "instance", "model", "started_at", "ended_at", "partial")
_MOST_DIFFERENCES = 60
# Numbers of samples and what was asked for say nothing on how well a service did.
_COMPARED = tuple(one for one in MEASURES if not one.key.endswith("_samples") and not one.key.startswith("asked_"))


class NotComparableError(ValueError):
    """Two runs that must not stand beside each other; `reasons` has one line for each difference."""

    def __init__(self, reasons: list[str]) -> None:
        """`reasons` name both values."""
        super().__init__("these runs cannot be compared: " + "; ".join(reasons))
        self.reasons = reasons


def compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """The comparison of two run documents, as a document of its own.

    Of each figure: median and spread of the repeats in both runs, the ratio of B to A with the lowest and highest that
    these repeats allow, and a finding. Steps are matched by rate or number of clients.

    Raises:
        NotComparableError: workload, SLO or kind differ, or no step is in both runs.
        document.RunDocumentError: one of them is no run document.
    """
    document.check(a, "run A")
    document.check(b, "run B")
    reasons = list(_reasons(a, b))
    if reasons:
        raise NotComparableError(reasons)
    ours, theirs = _by_load(a), _by_load(b)
    return {
        "schema": SCHEMA,
        "kind": "comparison",
        "a": _run(a),
        "b": _run(b),
        "workload": a["workload"],
        "slo": a["slo"],
        "steps": [_step(ours[load], theirs[load]) for load in ours if load in theirs],
        "only_a": [name_of(step) for load, step in ours.items() if load not in theirs],
        "only_b": [name_of(step) for load, step in theirs.items() if load not in ours],
        "differences": list(_differences(a.get("provenance") or {}, b.get("provenance") or {})),
        "definitions": a.get("definitions") or {},
    }


def _reasons(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    if a["kind"] != b["kind"]:
        yield f"A is a {a['kind']} run and B a {b['kind']} run"
    ours, theirs = _asked(a["workload"]), _asked(b["workload"])
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            yield f"workload {name}: A has {_said(ours.get(name))}, B {_said(theirs.get(name))}"
    slos = [{name: limit for name, limit in one["slo"].items() if limit is not None} for one in (a, b)]
    for name in sorted(slos[0].keys() | slos[1].keys()):
        if slos[0].get(name) != slos[1].get(name):
            yield f"SLO {name}: A has {_said(slos[0].get(name))}, B {_said(slos[1].get(name))}"
    if not _by_load(a).keys() & _by_load(b).keys():
        loads = [", ".join(map(name_of, one["steps"])) or "none" for one in (a, b)]
        yield f"no step is in both: A has {loads[0]}, B {loads[1]}; run the same --rate again"


def _asked(workload: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for; what came of it may differ, and words about it do not matter."""
    found = {name: value for name, value in workload.items() if name != "description"}
    share = found.get("shared_prefix_share")
    if isinstance(share, Mapping):
        found["shared_prefix_share"] = share.get("asked")
    return found


def _said(value: Any) -> str:
    return "none" if value is None else str(value)


def _by_load(one: Mapping[str, Any]) -> dict[tuple[Any, Any], Mapping[str, Any]]:
    return {(step.get("rate_per_s"), step.get("clients")): step for step in one["steps"]}


def _run(one: Mapping[str, Any]) -> dict[str, Any]:
    verdict = one["verdict"]
    return {
        **{name: one[name] for name in _OWN},
        "verdict": verdict["verdict"],
        "sustainable_rate_per_s": verdict.get("sustainable_rate_per_s"),
    }


# --- figures ------------------------------------------------------------------------------------------------


def _step(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    counts = [len(spread.that_count(step)) for step in (a, b)]
    return {
        "name": name_of(a),
        "rate_per_s": a.get("rate_per_s"),
        "clients": a.get("clients"),
        "repeats": {"a": counts[0], "b": counts[1]},
        "by_chance": {"value": by_chance(*counts), "how": "inferred"},
        "figures": {one.key: _figure(one, a, b) for one in _COMPARED if _there(one, a) or _there(one, b)},
    }


def _there(one: Measure, step: Mapping[str, Any]) -> bool:
    return one in of_step(step)


def by_chance(a: int, b: int) -> float | None:
    """How often the repeats of two runs that do not differ lie apart all the same: 2 / (a + b over a).

    Of all orders in which the values can fall, equally likely then, two have one run wholly below the other. None
    with fewer than two repeats in one of them.
    """
    return None if min(a, b) < 2 else 2 / math.comb(a + b, a)


def _figure(one: Measure, a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    ours, theirs = _spread(one, a), _spread(one, b)
    return {
        "a": ours,
        "b": theirs,
        "ratio": ratio(ours, theirs),
        "finding": finding(one, ours, theirs),
    }


def _spread(one: Measure, step: Mapping[str, Any]) -> Mapping[str, Any]:
    return step.get("summary", {}).get(one.key) or spread.of_measure(one, step)


def ratio(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """B by A: of the medians, and between the borders that the spreads allow. None where it is no number."""
    return {
        "value": _by(b["median"], a["median"]),
        "low": _by(b["low"], a["high"]),
        "high": _by(b["high"], a["low"]),
        "how": "derived",
    }


def _by(above: Any, below: Any) -> float | None:
    # Below 0, as a slope may be, an interval of ratios has no meaning.
    if not (is_number(above) and is_number(below)) or below <= 0 or above < 0:
        return None
    return float(above / below)


def finding(one: Measure, a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """What the two spreads allow to say."""
    values = [side[mark] for side in (a, b) for mark in ("low", "high")]
    if not all(is_number(value) for value in values):
        return "unobservable" if a["median"] is None or b["median"] is None else "insufficient"
    if min(a["n"], b["n"]) < 2:
        return TOO_FEW
    if a["low"] <= b["high"] and b["low"] <= a["high"]:
        return NO_DIFFERENCE
    word = "lower" if b["high"] < a["low"] else "higher"
    if one.better is None:
        return f"B is {word}"
    return f"B is {word}: {'better' if word == one.better else 'worse'}"


# --- provenance ---------------------------------------------------------------------------------------------


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    ours, theirs = dict(background.flat(a)), dict(background.flat(b))
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    for name in names[:_MOST_DIFFERENCES]:
        yield {"what": name, "a": ours.get(name, "not there"), "b": theirs.get(name, "not there")}
    if len(names) > _MOST_DIFFERENCES:
        more = str(len(names) - _MOST_DIFFERENCES)
        yield {"what": "…", "a": f"{more} more", "b": f"{more} more"}
