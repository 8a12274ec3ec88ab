"""The queries of a dashboard as Prometheus can be asked: variables filled in, over a range or for now."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_node.dashboards import store

_VARIABLE = re.compile(r"\$\{(\w+)(?::\w+)?\}|\$(\w+)")
_SOURCE = re.compile(r"https?://")


@dataclass(frozen=True)
class Series:
    """One answer: labels and (Unix time in seconds, value); a value may be NaN."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Question:
    """A query of a panel. `expr` has no variables any more."""

    panel: str
    ref: str
    expr: str
    legend: str
    instant: bool


Answerer = Callable[[Question], list[Series]]
"""Answers a question; an instant one with one point a series."""


def questions(
    model: Mapping[str, Any], *, rate_interval: str = "1m", values: Mapping[str, str] | None = None
) -> list[Question]:
    """All queries of a dashboard, in the order of its panels; variables stand for everything unless in `values`."""
    return [question for panel in store.panels(dict(model)) for question in of_panel(panel, rate_interval, values)]


def of_panel(
    panel: Mapping[str, Any], rate_interval: str = "1m", values: Mapping[str, str] | None = None
) -> Iterator[Question]:
    """The queries of one panel."""
    for target in panel.get("targets") or []:
        yield Question(
            panel=str(panel.get("title")),
            ref=str(target.get("refId")),
            expr=expand(str(target["expr"]), rate_interval, values or {}),
            legend=str(target.get("legendFormat") or ""),
            instant=bool(target.get("instant")),
        )


def expand(expr: str, rate_interval: str, values: Mapping[str, str]) -> str:
    """The expression with its variables filled in: Grafana's own are intervals, any other matches all."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return values.get(name, rate_interval if name.startswith("__") else ".*")

    return _VARIABLE.sub(value, expr)


class Prometheus:
    """Answers from a Prometheus at `url`. Times in seconds; a question takes at most 10 s."""

    def __init__(self, url: str, end: float, span_s: float, step_s: float) -> None:
        """Ask about the `span_s` before the Unix time `end`. Raises ValueError for what is no address."""
        if not _SOURCE.match(url):
            raise ValueError(f"{url}: an address begins with http:// or https://")
        self._url = url.rstrip("/")
        self._range = {"start": end - span_s, "end": end, "step": step_s}
        self._end = end

    def __call__(self, question: Question) -> list[Series]:
        """Ask. Raises OSError when nobody answers, ValueError when Prometheus refuses the query."""
        wanted = {"time": self._end} if question.instant else self._range
        words = urllib.parse.urlencode({"query": question.expr, **wanted})
        path = "query" if question.instant else "query_range"
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{words}", timeout=10) as reply:  # noqa: S310 - checked above
                answer = json.load(reply)
        except urllib.error.HTTPError as error:
            raise ValueError(f"{question.panel}: {error.read().decode(errors='replace')[:300]}") from None
        return [_series(entry) for entry in answer["data"]["result"]]


def _series(entry: Mapping[str, Any]) -> Series:
    points = entry.get("values") or [entry["value"]]
    return Series(entry["metric"], tuple((float(time), float(value)) for time, value in points))
