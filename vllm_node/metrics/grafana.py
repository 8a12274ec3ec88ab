"""What Grafana puts into an expression before it asks, and what it asks besides PromQL."""

from __future__ import annotations

import re

# A name that stands for what is known only once a dashboard is open.
UNKNOWN = "__grafana_"
_VARIABLE = re.compile(r"\$\{(?P<braced>\w+)(?:\.\w+)?(?::[^}]*)?\}|\$(?P<plain>\w+)|\[\[(?P<old>\w+)(?::[^\]]*)?\]\]")
_LABELS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\($")
_OFFSET = re.compile(r"\boffset\s+-?$")
_QUERY = re.compile(r"(?P<kind>label_values|query_result|metrics|label_names)\((?P<inside>.*)\)\s*", re.DOTALL)


def candidates(expression: str) -> tuple[str, str]:
    """The expression with something PromQL can read in the place of each variable, likeliest first.

    A variable that stands alone may be a number or the name of a metric; only the parser can tell which.
    """
    return _filled(expression, "1"), _filled(expression, None)


def _filled(expression: str, number: str | None) -> str:
    parts: list[str] = []
    end = 0
    for match in _VARIABLE.finditer(expression):
        before = expression[:match.start()]
        parts += [expression[end : match.start()], _value(before, match, expression[match.end() :], number)]
        end = match.end()
    return "".join([*parts, expression[end:]])


def _value(before: str, match: re.Match[str], after: str, number: str | None) -> str:
    name = UNKNOWN + (match["braced"] or match["plain"] or match["old"])
    quoted = before.count('"') % 2 == 1
    if not quoted and (before.rfind("[") > before.rfind("]") or _OFFSET.search(before)):
        return "1m"
    names_something = quoted or bool(re.search(r"\w$", before)) or after[:1] in ("{", "[") or after[:1].isidentifier()
    if names_something or number is None or _in_labels(before):
        return name
    return number


def _in_labels(before: str) -> bool:
    """Whether the text ends within the brackets of `by (` and the like."""
    opened = before.rfind("(")
    return opened > before.rfind(")") and _LABELS.search(before[: opened + 1]) is not None


def variable_query(text: str) -> tuple[str | None, str | None]:
    """What a variable's query asks for: an expression, and the label whose values it wants.

    None for a part that it does not have: `label_values(job)` asks of no metric, a plain list of metrics of no label.
    """
    match = _QUERY.fullmatch(text.strip())
    if match is None:
        return text, None
    if match["kind"] == "query_result":
        return match["inside"], None
    if match["kind"] != "label_values":
        return None, None
    expression, comma, label = match["inside"].rpartition(",")
    if not comma:
        return None, label.strip()
    return expression.strip(), label.strip()
