"""What the pages say that the measuring engine kept while a stage ran: for a node without Prometheus."""

from __future__ import annotations

import gzip
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from vllm_node.bench.buckets import Histogram
from vllm_node.bench.evidence import COUNTERS, FULLEST, HISTOGRAMS, RESETTABLE, RESTARTED, SERIES, Evidence
from vllm_node.bench.window import Window
from vllm_node.metrics.dictionary import load

# Fewer pages than this between the two ends of the window are worth a word.
FEW_PAGES = 8
# A hole of this many intervals is one.
_HOLE = 3
_STARTED = "process_start_time_seconds"

Labels = tuple[tuple[str, str], ...]
Values = dict[tuple[str, Labels], float]


def read_pages(path: Path) -> Iterator[dict[str, Any]]:
    """Pages out of `metrics.jsonl.gz` in their order; what a killed run left unfinished at the end is left out.

    Raises:
        OSError: there is no such file, or it is no gzip file.
    """
    with gzip.open(path, "rt", encoding="utf-8") as file:
        try:
            for line in file:
                yield json.loads(line)
        except (EOFError, ValueError):
            return


def read(
    pages: Iterable[Mapping[str, Any]], window: Window, *, model: str | None = None, version: str | None = None
) -> Evidence:
    """What the pages come to; each has `at_s` (seconds since 1970) and `text`.

    Counts are the difference of the two pages that are nearest to the ends of the window.
    """
    names = {one.logical: name for one in load() if (name := load().name(one.logical, version)) is not None}
    light = [names[logical] for logical in (*SERIES.values(), *RESETTABLE) if logical in names] + [_STARTED]
    seen: list[tuple[float, Values]] = []
    first: tuple[float, str] | None = None
    last: tuple[float, str] | None = None
    for page in pages:
        at, text = float(page["at_s"]), str(page["text"])
        if first is None or abs(at - window.start) < abs(first[0] - window.start):
            first, seen = (at, text), []
        if last is None or abs(at - window.end) <= abs(last[0] - window.end):
            last = (at, text)
        elif at > window.end:
            continue
        seen.append((at, _values(text, light, model)))
    if first is None or last is None or last[0] <= first[0]:
        found = Evidence("scrapes", window.seconds, exact=True)
        why = "no page of metrics was kept in the window" if first is None else "only one page of metrics was kept"
        found.unseen = dict.fromkeys((*HISTOGRAMS, *COUNTERS, *SERIES), why)
        found.unseen["gpus"] = why
        found.notices.append(why)
        return found
    seen = [one for one in seen if first[0] <= one[0] <= last[0]]
    found = Evidence("scrapes", last[0] - first[0], exact=True)
    _counts(found, first[1], last[1], names, model)
    _series(found, seen, names, window)
    found.unseen["gpus"] = "the server's own page of metrics knows no GPU, and there is no Prometheus"
    if _was_reset([values for _, values in seen], window.start):
        found.refused = RESTARTED
    _notices(found, [at for at, _ in seen], window)
    return found


def _values(text: str, names: Iterable[str], model: str | None) -> Values:
    """Samples of these names, as a page has them; others are not even parsed, as a long run has many pages."""
    starts = tuple(start for name in names for start in (f"{name}{{", f"{name} "))
    lines = [line for line in text.split("\n") if line.startswith(starts)]
    families: Iterable[Metric] = text_string_to_metric_families("\n".join(lines) + "\n")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
        if model is None or sample.labels.get("model_name", model) == model
    }


def _counts(found: Evidence, before: str, after: str, names: Mapping[str, str], model: str | None) -> None:
    for name, (logical, label) in COUNTERS.items():
        increases = _increases(found, name, names.get(logical), "", (before, after), model)
        if increases:
            counts: defaultdict[str, float] = defaultdict(float)
            for labels, value in increases:
                counts[labels.get(label, "") if label else ""] += value
            found.counters[name] = dict(counts)
    for name, logical in HISTOGRAMS.items():
        buckets = _increases(found, name, names.get(logical), "_bucket", (before, after), model)
        if buckets:
            sums = _increases(found, name, names.get(logical), "_sum", (before, after), model)
            edges = [(float(labels["le"]), value) for labels, value in buckets]
            found.histograms[name] = Histogram(edges, sum(value for _, value in sums) if sums else None)


def _increases(
    found: Evidence, name: str, metric: str | None, suffix: str, texts: tuple[str, str], model: str | None
) -> list[tuple[dict[str, str], float]]:
    """(labels, increase) of each series. One that was born in between began at zero."""
    if metric is None:
        found.unseen[name] = "this version of vLLM has no such metric"
        return []
    before, after = (_values(text, [metric + suffix], model) for text in texts)
    if not after:
        found.unseen[name] = f"the page of metrics has no {metric}"
    return [(dict(labels), value - before.get((series, labels), 0.0)) for (series, labels), value in after.items()]


def _series(found: Evidence, seen: list[tuple[float, Values]], names: Mapping[str, str], window: Window) -> None:
    for name, logical in SERIES.items():
        points = []
        for at, values in seen:
            own = [value for (series, _), value in values.items() if series == names.get(logical)]
            # A page from just before the window serves as the starting point of counts, not as a sample of it.
            if own and window.start <= at <= window.end:
                points.append((at, max(own) if name in FULLEST else sum(own)))
        if points:
            found.series[name] = points
        elif logical not in names:
            found.unseen[name] = "this version of vLLM has no such metric"
        else:
            found.unseen.setdefault(name, f"no page in the window has {names[logical]}")


def _was_reset(pages: list[Values], start: float) -> bool:
    """Whether a counter fell, or the process began after `start`."""
    latest: Values = {}
    for values in pages:
        for key, value in values.items():
            name = key[0]
            if (name == _STARTED and value > start) or (name.endswith("_total") and value < latest.get(key, value)):
                return True
        latest.update(values)
    return False


def _notices(found: Evidence, times: list[float], window: Window) -> None:
    gaps = [after - before for before, after in pairwise(times)]
    usual = statistics.median(gaps)
    if len(times) < FEW_PAGES:
        found.notices.append(f"only {len(times)} pages of metrics were kept in {window.seconds:.0f} s")
    if max(gaps) > _HOLE * usual:
        found.notices.append(f"for {max(gaps):.0f} s the server gave no page of metrics")
    off = max(abs(times[0] - window.start), abs(times[-1] - window.end))
    if off > max(usual, 0.02 * window.seconds):
        found.notices.append(f"counts are of {found.seconds:.1f} s: the pages begin or end {off:.1f} s off the window")
