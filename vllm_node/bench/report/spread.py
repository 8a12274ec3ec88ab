"""Median and spread of a figure over the repeats of a step."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_node.bench.report.measures import Measure, of_step
from vllm_node.bench.report.numbers import UNOBSERVABLE, is_number
from vllm_node.bench.report.page import resolve
from vllm_node.load.distribution import INSUFFICIENT, TIMED_OUT

VOID = "void"


def summary(step: Mapping[str, Any]) -> dict[str, Any]:
    """The spread of every measure of a step, as it stands in a run document."""
    return {one.key: of_measure(one, step) for one in of_step(step)}


def of_measure(one: Measure, step: Mapping[str, Any]) -> dict[str, Any]:
    """The spread of one measure over the repeats that count."""
    repeats = [step["repeats"][number] for number in that_count(step)]
    return spread([resolve(each, one.path) for each in repeats], one.how_in(repeats[0]) if repeats else one.how)


def that_count(step: Mapping[str, Any]) -> list[int]:
    """Places of the repeats that say something about the server: where the generator itself kept up."""
    return [
        number
        for number, repeat in enumerate(step["repeats"])
        if resolve(repeat, ("client", "selfcheck", "valid")) is not False
    ]


def spread(values: Sequence[Any], how: str = "measured") -> dict[str, Any]:
    """`median`, `low`, `high` and the number `n` of values; words where there are no numbers.

    A value that lies among the time-outs counts as larger than every number: to leave it out would make a server
    that stops answering look fast. `how` is that of a single value; the median of several is derived.
    """
    ranked = sorted(math.inf if value == TIMED_OUT else value for value in values if _counts(value))
    if not ranked:
        word = VOID if not values else INSUFFICIENT if INSUFFICIENT in values else None
        return {"median": word, "low": word, "high": word, "n": 0, "how": UNOBSERVABLE if word is None else how}
    return {
        "median": _word(statistics.median(ranked)),
        "low": _word(ranked[0]),
        "high": _word(ranked[-1]),
        "n": len(ranked),
        "how": how if len(ranked) == 1 or how == "inferred" else "derived",
    }


def _counts(value: Any) -> bool:
    return value == TIMED_OUT or is_number(value)


def _word(value: float) -> float | str:
    return TIMED_OUT if math.isinf(value) else value
