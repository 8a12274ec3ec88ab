"""Whether a node offers everything that rules, dashboards and diagnosis ask for."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from vllm_node.metrics import static
from vllm_node.metrics.dictionary import TARGET_LABELS, Dictionary, Metric, load, version_of
from vllm_node.metrics.endpoints import unit
from vllm_node.metrics.problems import Gap, Problem, Report
from vllm_node.metrics.promql import PromqlError, Selector
from vllm_node.metrics.schema import Endpoint, Family
from vllm_node.metrics.uses import Use, recorded


def check(
    where: str, uses: Sequence[Use], endpoints: Sequence[Endpoint], dictionary: Dictionary | None = None
) -> Report:
    """Hold all expressions against what the endpoints of a node offer. `where`: the host, or the file of the schema."""
    known = dictionary or load()
    names = recorded()
    report = Report(where, expressions=len(uses))
    for use, problem in static.problems(uses, known, names, alone=False):
        report.problem(problem, use)
    asked = [(use, each, found) for use, found in _readable(uses) for each in found if each.name is not None]
    for endpoint in endpoints:
        _of_endpoint(endpoint, asked, known, report)
    for use, selector, beside in asked:
        metric = known.known(selector.name or "")
        if metric is not None:
            for finding in _of_metric(_Asked(selector, beside, metric), endpoints):
                if isinstance(finding, Gap):
                    report.gap(finding, use)
                else:
                    report.problem(finding, use)
    return report


def check_alone(where: str, uses: Sequence[Use], dictionary: Dictionary | None = None) -> Report:
    """Hold all expressions against the dictionary alone."""
    report = Report(where, expressions=len(uses))
    for use, problem in static.problems(uses, dictionary or load(), recorded()):
        report.problem(problem, use)
    return report


@dataclass(frozen=True)
class _Asked:
    """A selector, those beside it in the expression, and the metric that it means."""

    selector: Selector
    beside: Sequence[Selector]
    metric: Metric

    @property
    def name(self) -> str:
        assert self.selector.name is not None
        return self.selector.name


def _readable(uses: Iterable[Use]) -> Iterator[tuple[Use, list[Selector]]]:
    for use in uses:
        try:
            yield use, static.read(use)
        except PromqlError:
            continue  # told already


def _of_endpoint(
    endpoint: Endpoint,
    asked: Sequence[tuple[Use, Selector, Sequence[Selector]]],
    dictionary: Dictionary,
    report: Report,
) -> None:
    """What is wrong with an endpoint as a whole: told once, not for each metric that it does not have."""
    if endpoint.state == "off":
        report.off.append(f"{endpoint.name} is switched off here: what is asked of it has no data, and is not judged")
        return
    service = unit(endpoint.job, endpoint.instance)
    mend = f"`systemctl status {service}`, then {endpoint.place}"
    if endpoint.state == "gone":
        report.problem(Problem(endpoint.name, f"gives no metrics: {endpoint.error}", mend))
    elif not endpoint.families:
        report.problem(Problem(endpoint.name, "answers with an empty page", mend))
    elif endpoint.version is None and dictionary.source_of(endpoint.job).versioned:
        report.off.append(f"{endpoint.name} did not tell its version: names are judged by the newest one")
    for series, family in endpoint.series().items():
        metric = dictionary.known(series)
        if metric is not None and family.type not in (*metric.wire, "untyped"):
            seen = f"is a {family.type} on {endpoint.name}, and not a {metric.type}"
            for use in [use for use, selector, _ in asked if selector.name == series]:
                report.problem(Problem(series, seen, _release(endpoint)), use)


def _of_metric(asked: _Asked, endpoints: Sequence[Endpoint]) -> Iterator[Gap | Problem]:
    jobs = static.jobs_of(asked.selector, asked.metric.jobs)
    answering = [one for one in endpoints if one.job in jobs and one.state == "ok" and one.families]
    wanted = [one for one in answering if _selects_instance(asked.selector, one)]
    findings = [list(_on(asked, one)) for one in wanted]
    # What several programs have is there when one of those that are asked has it.
    if len(jobs) > 1 and any(not found for found in findings):
        return
    for found in findings:
        yield from found


def _selects_instance(selector: Selector, endpoint: Endpoint) -> bool:
    return all(
        static.passes(matcher, endpoint.instance) for matcher in selector.matchers if matcher.label == "instance"
    )


def _on(asked: _Asked, endpoint: Endpoint) -> Iterator[Gap | Problem]:
    series = endpoint.series()
    family = series.get(asked.name)
    if family is None:
        yield from _absent(asked, endpoint, series)
        return
    yield from _labels(asked, family, endpoint)
    yield from _edges(asked, family, endpoint)


def _absent(asked: _Asked, endpoint: Endpoint, series: Collection[str]) -> Iterator[Gap | Problem]:
    metric, version = asked.metric, version_of(endpoint.version)
    if static.asked_otherwise(metric, asked.name, asked.beside, version):
        return
    program = f"{endpoint.name} ({endpoint.version})" if endpoint.version else endpoint.name
    own = metric.named(asked.name)
    if version is not None and not own.holds(version):
        now = metric.name(version)
        if now is not None:
            yield Problem(asked.name, f"is called {now} by {program}", f"ask for {now} as well, after `or`")
            return
        if own.since is not None and version < own.since:
            yield Gap(asked.name, f"{own.span()}; {program} is older")
            return
        yield Problem(asked.name, f"ended with {own.until}; {program} has it no more", "take it out")
    elif metric.when is not None:
        yield Gap(asked.name, metric.when)
    else:
        near = difflib.get_close_matches(asked.name, series, n=3, cutoff=0.8)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        yield Problem(asked.name, f"is not offered by {program}{hint}", _release(endpoint))


def _labels(asked: _Asked, family: Family, endpoint: Endpoint) -> Iterator[Gap | Problem]:
    for label in sorted(asked.selector.labels | asked.selector.asked):
        if family.has_label(label) or label in TARGET_LABELS or not asked.metric.may_have(label):
            continue  # what can never be there was told by the dictionary
        if label in asked.metric.labels_when:
            yield Gap(f"{asked.name}, label {label}", asked.metric.labels_when[label])
        else:
            has = ", ".join(sorted(family.labels)) or "none"
            yield Problem(asked.name, f"has no label {label} on {endpoint.name}; it has {has}", _release(endpoint))


def _edges(asked: _Asked, family: Family, endpoint: Endpoint) -> Iterator[Problem]:
    edges = [edge for edge in family.edges if edge != "+Inf"]
    for matcher in asked.selector.matchers:
        if matcher.label != "le" or matcher.operator not in ("=", "=~") or matcher.value is None or not edges:
            continue
        if not any(static.passes(matcher, edge) for edge in family.edges):
            seen = f'has no edge le{matcher.operator}"{matcher.value}" on {endpoint.name}'
            mend = "choose an edge that is there; a vLLM with --custom-histogram-buckets has edges of its own"
            yield Problem(asked.name, seen + static.near_edge(matcher.value, edges), mend)


def _release(endpoint: Endpoint) -> str:
    service = unit(endpoint.job, endpoint.instance)
    return f"{endpoint.place} shows what {service} offers; another release may call it otherwise"
