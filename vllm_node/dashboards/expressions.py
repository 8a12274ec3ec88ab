"""How a PromQL expression uses its metrics: under which function, over which range, with which labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import promql_parser

from vllm_node.metrics.grafana import UNKNOWN, candidates

RATES = frozenset({"rate", "irate", "increase", "delta", "idelta", "deriv"})
"""Functions over a range that ask how much something grew."""


@dataclass(frozen=True)
class Use:
    """One selector: the metric, empty where it is not told by name.

    around: functions and aggregations, from the inside out;
    ranged: it is over a range; divided: it is above the line of a division.
    """

    metric: str
    labels: frozenset[str]
    around: tuple[str, ...]
    ranged: bool
    divided: bool = False


def uses(expr: str) -> list[Use]:
    """All selectors of an expression, Grafana's variables allowed.

    Raises:
        ValueError: it is not PromQL.
    """
    said = ""
    for text in candidates(expr):
        try:
            return list(_walk(promql_parser.parse(text), Use("", frozenset(), (), ranged=False)))
        except ValueError as error:
            said = said or str(error)
    raise ValueError(said)


def _walk(node: Any, above: Use) -> Iterator[Use]:
    if isinstance(node, promql_parser.VectorSelector):
        matchers = [each for group in [node.matchers.matchers, *node.matchers.or_matchers] for each in group]
        named = node.name or next((str(each.value) for each in matchers if each.name == "__name__"), "")
        labels = frozenset(each.name for each in matchers if UNKNOWN not in each.name) - {"__name__"}
        yield replace(above, metric="" if UNKNOWN in named else named, labels=labels)
    elif isinstance(node, promql_parser.MatrixSelector):
        yield from _walk(node.vector_selector, replace(above, ranged=True))
    elif isinstance(node, promql_parser.Call):
        for argument in node.args:
            yield from _walk(argument, replace(above, around=(node.func.name, *above.around)))
    elif isinstance(node, promql_parser.AggregateExpr):
        for part in (node.expr, node.param):
            yield from _walk(part, replace(above, around=(str(node.op), *above.around)))
    elif isinstance(node, promql_parser.BinaryExpr):
        yield from _walk(node.lhs, replace(above, divided=above.divided or str(node.op) == "/"))
        yield from _walk(node.rhs, above)
    elif isinstance(node, promql_parser.SubqueryExpr):
        yield from _walk(node.expr, replace(above, ranged=True))
    elif isinstance(node, promql_parser.ParenExpr | promql_parser.UnaryExpr):
        yield from _walk(node.expr, above)
