"""Small faults that somebody could put into a rule: each has to be noticed by one of the rule's cases.

The text is changed, not a tree of it, so a mutant is what a careless edit would be. A parser looks afterwards whether
Prometheus would take it: one that no Prometheus loads is noticed by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import promql_parser

from vllm_node.alerts import seconds

_TOKEN = re.compile(
    r"""
    (?P<string>"(?:[^"\\]|\\.)*")
    |(?P<range>\[[^\]]*\])
    |(?P<matchers>\{[^}]*\})
    |(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    |(?P<duration>\d+(?:ms|[smhdwy])(?:\d+(?:ms|[smhdwy]))*)
    |(?P<number>\d+(?:\.\d+)?)
    |(?P<compare>==|!=|>=|<=|>|<)
    |(?P<open>\()
    |(?P<close>\))
    |(?P<other>[-+*/%^,])
    |(?P<space>\s+)
    """,
    re.VERBOSE,
)
_MATCHER = re.compile(r'([a-zA-Z_]\w*)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"')
_FLIPPED = {">": "<", "<": ">", ">=": "<", "<=": ">", "==": "!=", "!=": "=="}
_SET = ("and", "or", "unless")
_GROUPINGS = ("by", "on", "without", "ignoring", "group_left", "group_right")
_WORDS = (*_SET, *_GROUPINGS, "offset", "bool")


@dataclass(frozen=True)
class Mutant:
    """An expression with one fault; `kind` and `what` say which."""

    kind: str
    what: str
    expr: str


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def of(expr: str) -> list[Mutant]:
    """All mutants of an expression, without repetitions."""
    tokens = list(_tokens(expr))
    found = {
        mutant.expr: mutant
        for part in (_numbers, _windows, _comparisons, _matchers, _metrics, _labels, _operands)
        for mutant in part(expr, tokens)
        if mutant.expr != expr
    }
    for mutant in found.values():
        promql_parser.parse(mutant.expr)
    return list(found.values())


def durations(for_: str) -> list[str]:
    """Other waiting times in place of `for_`."""
    return ["5m"] if seconds(for_) == 0 else [_scaled(for_, 2), _scaled(for_, 0.5)]


def _tokens(expr: str) -> Iterator[_Token]:
    at = 0
    while at < len(expr):
        found = _TOKEN.match(expr, at)
        if found is None:
            raise ValueError(f"cannot read {expr[at : at + 20]!r}")
        assert found.lastgroup is not None
        if found.lastgroup != "space":
            yield _Token(found.lastgroup, found[0], at)
        at = found.end()


def _with(expr: str, token: _Token, text: str) -> str:
    return expr[: token.start] + text + expr[token.end :]


def _numbers(expr: str, tokens: list[_Token]) -> Iterator[Mutant]:
    places = [token for token in tokens if token.kind == "number"]
    for place, token in enumerate(places, 1):
        for other in _near(token.text):
            yield Mutant("number", f"#{place}, {token.text}, is {other}", _with(expr, token, other))


def _near(text: str) -> tuple[str, str]:
    """A number that is a fifth larger, and one that is smaller."""
    value = float(text)
    if 0.5 < value < 1:
        # A share or a quantile: its distance to 1 is what counts.
        return f"{value + (1 - value) / 2:g}", f"{value - (1 - value) / 2:g}"
    if value != int(value):
        return f"{value * 1.25:g}", f"{value * 0.8:g}"
    step = max(1, round(value * 0.2))
    return f"{value + step:.0f}", f"{value - step:.0f}"


def _windows(expr: str, tokens: list[_Token]) -> Iterator[Mutant]:
    """A length of time at every place where it stands: it is one setting."""
    places = [token for token in tokens if token.kind in ("range", "duration")]
    for length in dict.fromkeys(token.text.strip("[]") for token in places):
        for factor in (2, 0.5):
            other, changed = _scaled(length, factor), expr
            for token in reversed(places):
                if token.text.strip("[]") == length:
                    changed = _with(changed, token, token.text.replace(length, other))
            yield Mutant("window", f"{length} is {other}", changed)


def _scaled(duration: str, factor: float) -> str:
    return f"{seconds(duration) * factor:.0f}s"


def _comparisons(expr: str, tokens: list[_Token]) -> Iterator[Mutant]:
    for token in tokens:
        if token.kind == "compare":
            other = _FLIPPED[token.text]
            yield Mutant("comparison", f"{token.text} is {other}", _with(expr, token, other))


def _matchers(expr: str, tokens: list[_Token]) -> Iterator[Mutant]:
    for token in tokens:
        if token.kind != "matchers":
            continue
        for found in _MATCHER.finditer(token.text):
            label, operator, value = found.groups()
            others = [f'{label}{operator}"{value}x"'] if operator in ("=", "!=") and value else []
            if operator in ("=~", "!~"):
                parts = value.split("|")
                others += [f'{label}{operator}"{"|".join(parts[:n] + parts[n + 1 :])}"' for n in range(len(parts))]
            for other in others:
                text = token.text.replace(found[0], other, 1)
                yield Mutant("label", f"{found[0]} is {other}", _with(expr, token, text))
            kept = [each[0] for each in _MATCHER.finditer(token.text) if each[0] != found[0]]
            yield Mutant("label", f"{found[0]} is gone", _with(expr, token, "{" + ",".join(kept) + "}" if kept else ""))


def _metrics(expr: str, tokens: list[_Token]) -> Iterator[Mutant]:
    for number, token in enumerate(tokens):
        following = tokens[number + 1].text if number + 1 < len(tokens) else ""
        called = following == "(" or following in ("by", "without")
        if token.kind == "name" and not called and token.text not in _WORDS and not _in_grouping(tokens, number):
            yield Mutant("metric", f"{token.text} is renamed", _with(expr, token, f"{token.text}_renamed"))


def _in_grouping(tokens: list[_Token], number: int) -> bool:
    """Whether a name stands in the brackets of `by`, `on` and the like."""
    while number > 0 and (tokens[number].kind == "name" or tokens[number].text == ","):
        number -= 1
    return tokens[number].text == "(" and number > 0 and tokens[number - 1].text in _GROUPINGS


def _labels(expr: str, tokens: list[_Token]) -> Iterator[Mutant]:
    """One label less in the brackets of `by` and `on`."""
    for number, token in enumerate(tokens):
        if token.kind == "name" and token.text not in _WORDS and _in_grouping(tokens, number):
            before, after = tokens[number - 1], tokens[number + 1]
            if before.text == ",":
                yield Mutant("grouping", f"without {token.text}", expr[: before.start] + expr[token.end :])
            elif after.text == ",":
                yield Mutant("grouping", f"without {token.text}", expr[: token.start] + expr[after.end :].lstrip())
            else:
                yield Mutant("grouping", f"without {token.text}", _with(expr, token, ""))


def _operands(expr: str, tokens: list[_Token]) -> Iterator[Mutant]:
    """One operand of `and`, `or` and `unless` less."""
    depth = 0
    depths = []
    for token in tokens:
        depth -= token.kind == "close"
        depths.append(depth)
        depth += token.kind == "open"
    for number, token in enumerate(tokens):
        if token.text not in _SET:
            continue
        yield Mutant("operand", f"{token.text} … is gone", expr[: token.start] + expr[_end(tokens, depths, number) :])
        if token.text == "or":
            start = _start(tokens, depths, number)
            yield Mutant("operand", f"… {token.text} is gone", expr[:start] + expr[token.end :])


def _end(tokens: list[_Token], depths: list[int], number: int) -> int:
    """Where the right side of an operator ends: at the next one of the same level that binds no tighter."""
    own = tokens[number].text
    for other in range(number + 1, len(tokens)):
        ends = (*(_SET if own != "or" else ("or",)), ",")
        if depths[other] < depths[number] or (depths[other] == depths[number] and tokens[other].text in ends):
            return tokens[other].start
    return tokens[-1].end


def _start(tokens: list[_Token], depths: list[int], number: int) -> int:
    """Where the left side of an `or` begins."""
    for other in range(number - 1, -1, -1):
        if depths[other] < depths[number] or (depths[other] == depths[number] and tokens[other].text in ("or", ",")):
            return tokens[other].end
    return 0
