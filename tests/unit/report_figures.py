"""Figures of an HTML report against the JSON that they say they come from."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote

VOID = frozenset({"meta", "link", "br", "hr", "img", "input", "base"})


class Reader(HTMLParser):
    """All elements as (tag, attributes, text), in order; `problems` are tags that do not nest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, Mapping[str, str | None], list[str]]] = []
        self.problems: list[str] = []
        self._open: list[tuple[str, list[str]]] = []
        self.feed(page)
        self.close()
        self.problems += [f"{tag} is not closed" for tag, _ in self._open]

    def of(self, *tags: str) -> list[tuple[str, Mapping[str, str | None], list[str]]]:
        return [one for one in self.elements if one[0] in tags]

    def texts(self, *tags: str) -> list[str]:
        return ["".join(text).strip() for _, _, text in self.of(*tags)]

    def figures(self) -> list[dict[str, str]]:
        return [{**{key: value or "" for key, value in attributes.items()}, "text": "".join(text)} for _, attributes, text in self.of("data")]

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        text: list[str] = []
        self.elements.append((tag, dict(attrs), text))
        if tag not in VOID:
            self._open.append((tag, text))

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1][0] != tag:
            self.problems.append(f"</{tag}> closes {self._open[-1][0] if self._open else 'nothing'}")
        if self._open:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        for _, text in self._open:
            text.append(data)


def at(document: Any, pointer: str) -> Any:
    """What stands at a JSON pointer; None where nothing does."""
    for key in pointer.split("/")[1:]:
        key = unquote(key, errors="surrogatepass").replace("~1", "/").replace("~0", "~")
        if isinstance(document, list):
            document = document[int(key)]
        elif isinstance(document, dict):
            document = document.get(key)
        else:
            return None
    return document


def mismatches(figures: Sequence[Mapping[str, str]], document: Any) -> list[str]:
    """Each figure whose value is not what the document holds."""
    found = []
    for one in figures:
        wanted, value = expected(one, document), one["value"]
        seen = value if isinstance(wanted, str) else json.loads(value) if _is_json(value) else value
        if not _same(seen, wanted):
            found.append(f"{one['data-path']} ({one.get('data-by', 'value')}): page {value!r}, JSON {wanted!r}")
    return found


def expected(one: Mapping[str, str], document: Any) -> Any:
    """The value that a figure should have, computed anew from the document."""
    values = [at(document, path) for path in one["data-path"].split()]
    by = one.get("data-by", "value")
    if "data-from" in one:
        values = [value for value in values[0][int(one["data-from"]) : int(one["data-to"])] if value is not None]
    if by == "value":
        return values[0]
    if by == "passes":
        return values.count("pass")
    if by == "histogram":
        counts: Counter[float] = Counter()
        for histogram in values:
            counts.update(dict(histogram or []))
        return [[bound, count] for bound, count in sorted(counts.items())]
    if by in ("median", "low", "high"):
        ranked = sorted(math.inf if value == "timed out" else value for value in values if value is not None and value != "insufficient")
        if not ranked:
            return "void" if not values else "insufficient" if "insufficient" in values else None
        found = statistics.median(ranked) if by == "median" else ranked[0 if by == "low" else -1]
        return "timed out" if math.isinf(found) else found
    ways: Mapping[str, Callable[[Any], Any]] = {"mean": statistics.fmean, "max": max, "sum": sum}
    return ways[by](values)


def _same(seen: Any, wanted: Any) -> bool:
    if isinstance(wanted, float | int) and isinstance(seen, float | int):
        return math.isclose(seen, wanted, rel_tol=1e-12)
    return bool(seen == wanted)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
