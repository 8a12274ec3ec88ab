"""Every metric that may be asked for: its name by version, type, unit, labels, and when it is not there.

The data are the YAML files beside this module, one a source. A metric has a logical name, which stays when the name
on the wire changes; where the wire's name never changed, the two are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from packaging.version import InvalidVersion, Version

TYPES = ("counter", "gauge", "histogram", "summary", "untyped")
# What Prometheus adds to whatever a target says; see the jobs of roles/prometheus/vars.
TARGET_LABELS = frozenset({"job", "instance", "node"})
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}
_STEPS = re.compile(r"[125]0*\.0")


def version_of(text: str | None) -> Version | None:
    """A version without its local part; None for what is none, such as the name of a branch."""
    try:
        return None if text is None else Version(Version(text).base_version)
    except InvalidVersion:
        return None


@dataclass(frozen=True)
class Name:
    """A name on the wire: right from `since` to `until`, and still shown beside the newer one up to `lingers`."""

    name: str
    since: Version | None = None
    until: Version | None = None
    lingers: Version | None = None

    def holds(self, version: Version | None) -> bool:
        """Whether it is the right name in `version`; None is the newest of all."""
        if version is None:
            return self.until is None
        return (self.since is None or self.since <= version) and (self.until is None or version <= self.until)

    def span(self) -> str:
        """In which versions, for people."""
        parts = [f"since {self.since}"] if self.since else []
        parts += [f"until {self.until}"] if self.until else []
        return " ".join(parts) or "always"


@dataclass(frozen=True)
class Metric:
    """One metric. `labels` are always there, those of `labels_when` under a condition, `more_labels`: others may be.

    jobs: empty for what Prometheus makes itself. buckets: edges as they are written on the wire, without +Inf; None
    when they are not known; `steps`: they are 1, 2, 5, 10 … up to a length that differs. values: what a label can
    say, for labels whose values are few. wire: types that its TYPE line may give. when: the condition under which it
    exists, None for always. counts: untyped on the wire, and yet it only grows.
    """

    logical: str
    source: str
    jobs: tuple[str, ...]
    names: tuple[Name, ...]
    type: str
    unit: str
    means: str
    labels: frozenset[str] = frozenset()
    labels_when: Mapping[str, str] = field(default_factory=dict)
    more_labels: bool = False
    buckets: tuple[str, ...] | None = None
    steps: bool = False
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    wire: tuple[str, ...] = ()
    when: str | None = None
    counts: bool = False

    def name(self, version: Version | None) -> str | None:
        """Its name on the wire in a version, None: the newest; None where that version has none."""
        return next((each.name for each in self.names if each.holds(version)), None)

    def series(self, name: str) -> tuple[str, ...]:
        """Names of its samples, for one of its names."""
        return tuple(name + suffix for suffix in _SUFFIXES.get(self.type, ("",)))

    def named(self, series: str) -> Name:
        """Which of its names a series belongs to. Raises StopIteration for a stranger."""
        return next(each for each in self.names if series in self.series(each.name))

    def may_have(self, label: str) -> bool:
        """Whether the label can be on it, once Prometheus has scraped it."""
        known = self.more_labels or label in self.labels or label in self.labels_when or label in TARGET_LABELS
        return known or label == {"histogram": "le", "summary": "quantile"}.get(self.type)

    def has_edge(self, edge: str) -> bool:
        """Whether a bucket can have this upper edge, spelt like this."""
        if self.buckets is None or edge == "+Inf":
            return True
        return edge in self.buckets or (self.steps and _STEPS.fullmatch(edge) is not None)

    def grows(self) -> bool:
        """Whether rate() of its samples means something."""
        return self.type in ("counter", "histogram", "summary") or self.counts


@dataclass(frozen=True)
class Source:
    """What one file says about all of its metrics."""

    name: str
    job: str | None
    versioned: bool
    dropped_series: re.Pattern[str] | None
    dropped_labels: frozenset[str]


class Dictionary:
    """All metrics. Names on the wire are unique in it, logical names too."""

    def __init__(self, sources: Iterable[Source], metrics: Iterable[Metric], mistaken: Mapping[str, tuple[str, str]]):
        """Index the metrics. Raises ValueError for a name or a logical name that is there twice."""
        self.sources = {source.name: source for source in sources}
        self.mistaken = mistaken
        self._by_logical: dict[str, Metric] = {}
        self._by_series: dict[str, Metric] = {}
        for metric in metrics:
            if self._by_logical.setdefault(metric.logical, metric) is not metric:
                raise ValueError(f"two metrics are called {metric.logical}")
            for series in (one for name in metric.names for one in metric.series(name.name)):
                if self._by_series.setdefault(series, metric) is not metric:
                    raise ValueError(f"{series} belongs to {self._by_series[series].logical} and to {metric.logical}")

    def __iter__(self) -> Iterator[Metric]:
        """All metrics, in the order of their files."""
        return iter(self._by_logical.values())

    def known(self, series: str) -> Metric | None:
        """The metric of a series as PromQL names it; a bare histogram has no series of its own name."""
        return self._by_series.get(series)

    def metric(self, logical: str) -> Metric:
        """A metric by its logical name. Raises KeyError."""
        return self._by_logical[logical]

    def name(self, logical: str, version: str | None = None) -> str | None:
        """Name on the wire in a version of its program, None: the newest. Raises KeyError for an unknown metric."""
        return self.metric(logical).name(version_of(version))

    def series_names(self) -> list[str]:
        """Every name that PromQL may use."""
        return list(self._by_series)

    def jobs(self) -> list[str]:
        """Every job."""
        return [source.job for source in self.sources.values() if source.job]

    def source_of(self, job: str) -> Source:
        """The file of a job. Raises KeyError."""
        return next(source for source in self.sources.values() if source.job == job)

    def dropped(self, job: str, series: str) -> bool:
        """Whether the scrape of a job throws the series away."""
        pattern = self.source_of(job).dropped_series
        return pattern is not None and pattern.fullmatch(series) is not None


@cache
def load() -> Dictionary:
    """The dictionary of this release. Raises ValueError for an entry that is wrong in itself."""
    sources: list[Source] = []
    metrics: list[Metric] = []
    mistaken: dict[str, tuple[str, str]] = {}
    for path in sorted(Path(__file__).parent.glob("*.yml")):
        data = yaml.safe_load(path.read_text())
        drops = data.get("drops") or {}
        sources.append(
            Source(
                name=path.stem,
                job=data.get("job"),
                versioned=bool(data.get("version")),
                dropped_series=re.compile(drops["series"]) if "series" in drops else None,
                dropped_labels=frozenset(drops.get("labels") or ()),
            )
        )
        metrics += [_metric(path.stem, data, logical, entry) for logical, entry in data["metrics"].items()]
        mistaken |= {name: (one["for"], one["why"]) for name, one in (data.get("mistaken") or {}).items()}
    return Dictionary(sources, metrics, mistaken)


def _metric(source: str, data: Mapping[str, Any], logical: str, entry: Mapping[str, Any]) -> Metric:
    where = f"{source}.yml: {logical}"
    if entry["type"] not in TYPES:
        raise ValueError(f"{where}: {entry['type']} is no type of a metric")
    labels = entry.get("labels", data["labels"])
    labels = [*data["labels"], *labels["extra"]] if isinstance(labels, Mapping) else labels
    buckets, steps = _buckets(data.get("buckets") or {}, entry.get("buckets"))
    jobs = entry.get("jobs", data.get("jobs", [data.get("job")]))
    when = entry.get("when")
    return Metric(
        logical=logical,
        source=source,
        jobs=tuple(jobs),
        names=_names(where, logical, entry),
        type=entry["type"],
        unit=entry["unit"],
        means=entry["means"],
        labels=frozenset(labels),
        labels_when={**(data.get("labels_when") or {}), **(entry.get("labels_when") or {})},
        more_labels=entry.get("more_labels", False),
        buckets=buckets,
        steps=steps,
        values={label: tuple(map(str, values)) for label, values in (entry.get("values") or {}).items()},
        wire=tuple(entry.get("wire", [entry["type"]])),
        when=(data.get("conditions") or {}).get(when, when),
        counts=entry.get("counts", False),
    )


def _names(where: str, logical: str, entry: Mapping[str, Any]) -> tuple[Name, ...]:
    given = entry.get("names") or [{"name": entry.get("name", logical), **_span(entry)}]
    names = tuple(Name(one["name"], **{key: Version(str(one[key])) for key in _span(one)}) for one in given)
    for older, newer in pairwise(names):
        if older.until is None or newer.since is None or older.until >= newer.since:
            raise ValueError(f"{where}: {older.name} and {newer.name} are both right in some version")
    if any(one.since and one.until and one.since > one.until for one in names):
        raise ValueError(f"{where}: a name ends before it begins")
    return names


def _span(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: entry[key] for key in ("since", "until", "lingers") if key in entry}


def _buckets(named: Mapping[str, str], given: str | None) -> tuple[tuple[str, ...] | None, bool]:
    text = named.get(given, given) if given is not None else "any"
    if text == "1-2-5":
        return (), True
    return (None if text == "any" else tuple(text.split())), False
