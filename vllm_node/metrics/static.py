"""Whether an expression can be right at all: by the dictionary alone, without a node."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from packaging.version import Version

from vllm_node.metrics.dictionary import Dictionary, Metric
from vllm_node.metrics.problems import Problem
from vllm_node.metrics.promql import Matcher, PromqlError, Selector, selectors
from vllm_node.metrics.uses import Use

_FOR_COUNTERS = ("rate", "irate", "increase")
_FOR_GAUGES = ("delta", "idelta", "deriv")
_MEND = "mend the expression; docs/metrics.md lists what there is"


def read(use: Use) -> list[Selector]:
    """Selectors of an expression; a variable's label counts as asked for. Raises PromqlError."""
    found = selectors(use.expression)
    if use.label is None:
        return found
    return [replace(each, asked=each.asked | {use.label}) for each in found]


def problems(
    uses: Iterable[Use], dictionary: Dictionary, recorded: Collection[str], *, alone: bool = True
) -> Iterator[tuple[Use, Problem]]:
    """What is wrong with expressions, whatever a node offers.

    Which of a metric's names is right and which edges there are is judged by the newest version if we are `alone`; else
    a node's schema tells.
    """
    for use in uses:
        try:
            found = read(use)
        except PromqlError as error:
            yield use, Problem(use.place, f"is no PromQL: {error}", "mend the expression")
            continue
        for selector in found:
            for problem in _of_selector(selector, found, dictionary, recorded, alone):
                yield use, problem


def _of_selector(
    selector: Selector,
    beside: Sequence[Selector],
    dictionary: Dictionary,
    recorded: Collection[str],
    alone: bool,
) -> Iterator[Problem]:
    name = selector.name
    if name is None:
        return
    metric = dictionary.known(name)
    if metric is None:
        if name not in recorded:
            yield Problem(name, f"is no metric that is known{_instead(name, dictionary, recorded)}", _MEND)
        else:
            yield from _of_jobs(name, selector, dictionary.jobs(), dictionary)
        return
    if metric.jobs and all(dictionary.dropped(job, name) for job in metric.jobs):
        yield Problem(name, "is dropped at the scrape", "do without it, or keep it in prometheus.yml.j2")
    if alone:
        yield from _of_age(name, metric, beside)
        yield from _of_edges(name, metric, selector)
    yield from _of_jobs(name, selector, list(metric.jobs) or dictionary.jobs(), dictionary)
    for label in sorted(selector.labels | selector.asked):
        if not metric.may_have(label):
            dropped = any(label in dictionary.source_of(job).dropped_labels for job in metric.jobs)
            has = f"; it has {', '.join(sorted(metric.labels)) or 'none'}"
            yield Problem(name, f"has no label {label}{': it is dropped at the scrape' if dropped else has}", _MEND)
    for matcher in selector.matchers:
        yield from _of_matcher(name, metric, matcher)
    yield from _of_function(name, metric, selector.function)


def _of_age(name: str, metric: Metric, beside: Sequence[Selector]) -> Iterator[Problem]:
    own = metric.named(name)
    if own.until is None or asked_otherwise(metric, name, beside, None):
        return
    now = metric.name(None)
    seen = f"ended with {own.until}" + (f"; since then it is called {now}" if now else ", and nothing took its place")
    yield Problem(name, seen, "ask for the newer name, with the older one after `or` where both are needed")


def _of_edges(name: str, metric: Metric, selector: Selector) -> Iterator[Problem]:
    for matcher in selector.matchers:
        edge = matcher.value if (matcher.label, matcher.operator) == ("le", "=") else None
        if edge is not None and not metric.has_edge(edge):
            yield Problem(name, f'has no edge le="{edge}"{near_edge(edge, metric.buckets or ())}', _MEND)


def asked_otherwise(metric: Metric, name: str, beside: Iterable[Selector], version: Version | None) -> bool:
    """Whether the same expression asks for the metric by the name that is right in `version` as well."""
    right = metric.name(version)
    return right is not None and any(
        each.name in metric.series(right) and each.name != name for each in beside if each.name is not None
    )


def jobs_of(selector: Selector, jobs: Iterable[str]) -> list[str]:
    """Those of the jobs that the selector's own matchers leave."""
    return [job for job in jobs if all(passes(matcher, job) for matcher in selector.matchers if matcher.label == "job")]


def passes(matcher: Matcher, value: str) -> bool:
    """Whether a label with this value is selected; a value that nobody knows yet may be any."""
    if matcher.value is None:
        return True
    hit = value == matcher.value if matcher.operator in ("=", "!=") else _fits(matcher.value, value)
    return hit == (matcher.operator in ("=", "=~"))


def _fits(pattern: str, value: str) -> bool:
    try:
        return re.fullmatch(pattern, value) is not None
    except re.error:
        # Prometheus' patterns are of another family; what Python cannot read is not judged.
        return True


def _of_jobs(name: str, selector: Selector, jobs: list[str], dictionary: Dictionary) -> Iterator[Problem]:
    if not jobs_of(selector, jobs):
        asked = next(matcher for matcher in selector.matchers if matcher.label == "job")
        stranger = asked.operator == "=" and asked.value not in dictionary.jobs()
        seen = f'never has job{asked.operator}"{asked.value}"' + (", a job that does not exist" if stranger else "")
        yield Problem(name, f"{seen}; it comes from {', '.join(sorted(jobs))}", _MEND)


def _of_matcher(name: str, metric: Metric, matcher: Matcher) -> Iterator[Problem]:
    known = metric.values.get(matcher.label)
    if not matcher.value:
        return
    positive = Matcher(matcher.label, "=" if matcher.operator in ("=", "!=") else "=~", matcher.value)
    if known and not any(passes(positive, value) for value in known):
        seen = f"never says {matcher.label}{matcher.operator}{matcher.value!r}; it says {', '.join(known)}"
        yield Problem(name, seen, _MEND)


def near_edge(edge: str, edges: Sequence[str]) -> str:
    """The edge that is nearest, as a question; nothing for what is no number."""
    try:
        return f'; did you mean le="{min(edges, key=lambda one: abs(float(one) - float(edge)))}"?' if edges else ""
    except ValueError:
        return ""


def _of_function(name: str, metric: Metric, function: str | None) -> Iterator[Problem]:
    if function in _FOR_COUNTERS and not metric.grows():
        yield Problem(name, f"is a gauge, and {function}() of it means nothing", "use the gauge as it is, or delta()")
    if function in _FOR_GAUGES and metric.type == "counter":
        yield Problem(name, f"is a counter, and {function}() of it breaks at each restart", "use increase() or rate()")


def _instead(name: str, dictionary: Dictionary, recorded: Collection[str]) -> str:
    if name in dictionary.mistaken:
        right, why = dictionary.mistaken[name]
        return f" ({why}); did you mean {right}?"
    parts = [name + suffix for suffix in ("_bucket", "_total") if dictionary.known(name + suffix)]
    near = parts or difflib.get_close_matches(name, [*dictionary.series_names(), *recorded], n=3, cutoff=0.8)
    return f"; did you mean {' or '.join(near)}?" if near else ""
