"""Which series an expression asks for, and what it expects of their labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import promql_parser as parser

from vllm_node.metrics.grafana import UNKNOWN, candidates

# Not a mapping: the library's enumerations cannot be keys.
_OPERATORS = (
    (parser.MatchOp.Equal, "="),
    (parser.MatchOp.NotEqual, "!="),
    (parser.MatchOp.Re, "=~"),
    (parser.MatchOp.NotRe, "!~"),
)
_LABELLESS = ("absent", "absent_over_time", "scalar", "vector", "time")
RATES = frozenset({"rate", "irate", "increase", "delta", "idelta", "deriv"})
"""Functions over a range that ask how much something grew."""
_SET_OPERATORS = ("and", "or", "unless")


class PromqlError(ValueError):
    """An expression that cannot be read; the text says what the parser said."""


@dataclass(frozen=True)
class Matcher:
    """label, operator (=, !=, =~, !~), value. The value is None where a dashboard's variable decides on it."""

    label: str
    operator: str
    value: str | None


@dataclass(frozen=True)
class _Around:
    """What stands around a node: what it asks for of labels, and what is done with the samples.

    asked: labels that the expression around it needs: `by`, `on`, the edges of a quantile.
    function: what is applied to its samples directly, such as `rate`.
    functions: functions and aggregations around it, from the inside out.
    ranged: it is over a range; divided: it is above the line of a division.
    """

    asked: frozenset[str] = frozenset()
    function: str | None = None
    functions: tuple[str, ...] = ()
    ranged: bool = False
    divided: bool = False


@dataclass(frozen=True)
class Selector(_Around):
    """One selector. `name` is None where it is not told by name, as in `{job="x"}`.

    pattern: the regular expression that stands for its name, where one does.
    """

    name: str | None = None
    matchers: tuple[Matcher, ...] = ()
    pattern: str | None = None

    @property
    def called(self) -> str:
        """The name, or what stands for it; empty where neither is told."""
        return self.name or self.pattern or ""

    @property
    def labels(self) -> frozenset[str]:
        """Names of the labels that it matches."""
        return frozenset(matcher.label for matcher in self.matchers)


def selectors(expression: str) -> list[Selector]:
    """Every selector of an expression, Grafana's variables allowed. Raises PromqlError."""
    said = ""
    for text in dict.fromkeys(candidates(expression)):
        try:
            return list(_walk(parser.parse(text), _Around()))
        except ValueError as error:
            said = said or str(error)
    raise PromqlError(said)


def _walk(node: object, around: _Around) -> Iterator[Selector]:
    if isinstance(node, parser.VectorSelector):
        yield _selector(node, around)
    elif isinstance(node, parser.MatrixSelector):
        yield _selector(node.vector_selector, replace(around, ranged=True))
    elif isinstance(node, parser.AggregateExpr):
        inside = replace(around, function=None, functions=(str(node.op), *around.functions))
        yield from _walk(node.param, replace(inside, asked=frozenset()))
        yield from _walk(node.expr, replace(inside, asked=_of_aggregate(node, around.asked)))
    elif isinstance(node, parser.BinaryExpr):
        left, right = _of_binary(node, around.asked)
        divided = around.divided or str(node.op) == "/"
        yield from _walk(node.lhs, replace(around, asked=left, function=None, divided=divided))
        yield from _walk(node.rhs, replace(around, asked=right, function=None))
    elif isinstance(node, parser.Call):
        name = node.func.name
        functions = (name, *around.functions)
        inside = replace(around, asked=_of_call(node, around.asked), function=name, functions=functions)
        for argument in node.args:
            yield from _walk(argument, inside)
    elif isinstance(node, (parser.ParenExpr, parser.UnaryExpr)):
        yield from _walk(node.expr, around)
    elif isinstance(node, parser.SubqueryExpr):
        # What is applied to a subquery is applied to what comes out of it.
        yield from _walk(node.expr, replace(around, function=None, ranged=True))


def _selector(node: parser.VectorSelector, around: _Around) -> Selector:
    listed = node.matchers.matchers + [each for group in node.matchers.or_matchers for each in group]
    names = [each for each in listed if each.name == "__name__"]
    exact = [each.value for each in names if each.op == parser.MatchOp.Equal]
    name = node.name or (exact[0] if exact else None)
    if name is not None and UNKNOWN in name:
        name = None
    pattern = names[0].value if names and name is None and UNKNOWN not in names[0].value else None
    matchers = tuple(
        Matcher(each.name, _operator(each), None if UNKNOWN in each.value else each.value)
        for each in listed
        if each.name != "__name__" and UNKNOWN not in each.name
    )
    asked = frozenset(label for label in around.asked if UNKNOWN not in label)
    return Selector(**{**vars(around), "asked": asked}, name=name, matchers=matchers, pattern=pattern)


def _operator(matcher: parser.Matcher) -> str:
    return next(text for operator, text in _OPERATORS if operator == matcher.op)


def _of_aggregate(node: parser.AggregateExpr, asked: frozenset[str]) -> frozenset[str]:
    by = node.modifier is not None and node.modifier.type == parser.AggModifierType.By
    labels = frozenset(node.modifier.labels) if node.modifier is not None and by else frozenset()
    if str(node.op) in ("topk", "bottomk", "limitk", "limit_ratio"):
        return asked | labels
    # What is outside can ask for nothing but the labels that are kept; without `by` none are.
    if node.modifier is not None and not by:
        return asked - frozenset(node.modifier.labels)
    return labels


def _of_binary(node: parser.BinaryExpr, asked: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    modifier = node.modifier
    if modifier is None:
        return asked, asked
    matching = modifier.matching
    shared: frozenset[str] = frozenset()
    if matching is not None and matching.type == parser.LabelModifierType.Include:
        shared = frozenset(matching.labels)
    taken = frozenset(modifier.group_labels or ())
    operator, cardinality = str(node.op), modifier.card
    if operator in _SET_OPERATORS:
        return asked | shared, (asked | shared if operator == "or" else shared)
    if cardinality == parser.VectorMatchCardinality.ManyToOne:
        return (asked - taken) | shared, taken | shared
    if cardinality == parser.VectorMatchCardinality.OneToMany:
        return taken | shared, (asked - taken) | shared
    if matching is not None:
        return shared, shared
    return asked, asked


def _of_call(node: parser.Call, asked: frozenset[str]) -> frozenset[str]:
    name = node.func.name
    if name in _LABELLESS:
        return frozenset()
    texts = [each.val for each in node.args if isinstance(each, parser.StringLiteral)]
    if name == "label_replace":
        return (asked - {texts[0]}) | _named(texts[2:3])
    if name == "label_join":
        return (asked - {texts[0]}) | _named(texts[2:])
    if name in ("histogram_quantile", "histogram_fraction"):
        return asked | {"le"}
    return asked


def _named(labels: Sequence[str]) -> frozenset[str]:
    return frozenset(label for label in labels if label)
