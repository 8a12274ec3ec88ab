"""What the charts show, out of a run document, with the way back from each point to the document."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm_node.bench.report import charts
from vllm_node.bench.report.numbers import shown
from vllm_node.bench.report.page import Chart, Figure, Table, Text, clean, pointer, resolve
from vllm_node.bench.report.spread import that_count

_MOST_POINTS = 240
_LATENCIES = (
    ("ttft_scheduled_s", "TTFT from the scheduled arrival (measured)", "ttft_p95_s"),
    ("e2e_scheduled_s", "E2E from the scheduled arrival (measured)", "e2e_p95_s"),
    ("tpot_s", "TPOT (derived)", "tpot_p95_s"),
    ("itl_s", "ITL (measured)", None),
)
# Of several samples in one point the largest is kept where a short peak is what matters.
_COLUMNS = (
    ("Offered", "/s", ("client", "timeline", "scheduled"), "mean"),
    ("Completed", "/s", ("client", "timeline", "completed"), "mean"),
    ("Running", "", ("server", "timeline", "running"), "max"),
    ("Waiting", "", ("server", "timeline", "waiting"), "max"),
    ("KV cache use", "share", ("server", "timeline", "kv_usage"), "max"),
    ("Preemptions", "", ("server", "timeline", "preemptions"), "sum"),
)
_TIMES = {("client", "timeline"): "second", ("server", "timeline"): "t_s", ("client", "server"): "second"}


def name_of(step: Mapping[str, Any]) -> str:
    """A step for people."""
    if step.get("rate_per_s") is not None:
        # With workflows, arrivals are those of whole workflows.
        what = "workflows" if any(repeat["client"].get("workflow") for repeat in step["repeats"]) else "requests"
        return f"{step['rate_per_s']:g} {what}/s"
    return f"{step['clients']} clients" if step.get("clients") is not None else "recorded arrivals"


# --- distributions ------------------------------------------------------------------------------------------


def distributions(document: Mapping[str, Any]) -> Chart | None:
    """The share of answers within a time, a line for each step; None where no answer came."""
    figures: list[Figure] = []
    panels: list[charts.Distribution] = []
    for name, title, promise in _LATENCIES:
        lines = {}
        for number, step in enumerate(document["steps"]):
            merged = _merged(number, step, name)
            counted = [step["repeats"][one] for one in that_count(step)]
            total = sum(resolve(one, ("client", "latency", name, "n")) or 0 for one in counted)
            if merged.value and total:
                figures.append(merged)
                lines[clean(name_of(step))] = _shares(merged.value, total)
        if lines:
            limit = document["slo"].get(promise) if promise else None
            panels.append(charts.Distribution(title, lines, limit))
    if not panels:
        return None
    title = "Latency distributions"
    description = (
        "Share of the samples at or below a time, on a logarithmic time axis, a line for each step over its repeats; "
        "times are rounded up, by 6 % at most. "
        "Requests that timed out keep a line below 100 %. Straight lines show the SLO: 95 % within its limit. "
        "The percentiles stand in the tables of the steps."
    )
    return Chart(
        "distributions",
        title,
        description,
        lambda: charts.distributions("distributions", title, description, panels),
        figures,
    )


def _merged(number: int, step: Mapping[str, Any], name: str) -> Figure:
    counts: Counter[float] = Counter()
    keys = [("steps", number, "repeats", one, "client", "histograms", name) for one in that_count(step)]
    for key in keys:
        for bound, count in resolve(step, key[2:]) or []:
            counts[bound] += count
    histogram = [list(pair) for pair in sorted(counts.items())]
    return Figure(histogram, "", tuple(pointer(*key) for key in keys), "histogram")


def _shares(histogram: Sequence[Sequence[float]], total: float) -> list[tuple[float, float]]:
    found, below = [(histogram[0][0], 0.0)], 0.0
    for bound, count in histogram:
        below += count
        found.append((bound, below / total))
    return found


# --- timeline -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Window:
    """The scored time of a repeat; `start` and `end` in seconds since the first one began."""

    keys: tuple[str | int, ...]
    name: str
    short: str
    repeat: Mapping[str, Any]
    start: float
    end: float


def timeline(document: Mapping[str, Any]) -> Chart | None:
    """Rate, queue, KV cache and preemptions of all windows on one time axis; None without a window."""
    windows = _windows(document)
    length = sum(one.end - one.start for one in windows)
    if not windows or length <= 0:
        return None
    width = max(1, math.ceil(length / _MOST_POINTS))
    times: list[float | None] = []
    points: list[list[Figure | None]] = []
    rows: list[list[Text]] = []
    for window in windows:
        for begin in range(0, max(1, math.floor(window.end - window.start)), width):
            # A last second that was cut short would look like a drop of the rate.
            end = min(begin + width, max(1, math.floor(window.end - window.start)))
            cells = [_point(window, column, begin, end) for column in _COLUMNS]
            if not any(cells):
                continue
            times.append(window.start + begin + width / 2)
            points.append(cells)
            rows.append([f"{window.start + begin:.0f} s, {window.name}", *(cell or shown(None) for cell in cells)])
        times.append(None)
        points.append([None] * len(_COLUMNS))
    columns = [[_number(row[place]) for row in points] for place in range(len(_COLUMNS))]
    lanes = [
        charts.Lane("Requests per second (measured)", {"offered": columns[0], "completed": columns[1]}),
        charts.Lane("Requests in the server (measured)", {"running": columns[2], "waiting": columns[3]}),
        charts.Lane("KV cache use (measured)", {"KV cache": columns[4]}, share=True),
        charts.Lane("Preemptions (measured)", {"preemptions": columns[5]}),
    ]
    stretches = [charts.Stretch(one.start, one.end, one.short) for one in windows]
    title = "Timeline"
    each = "second" if width == 1 else f"{width} seconds"
    description = (
        f"Rate, queue, KV cache use and preemptions on one time axis, a point for each {each} of the scored windows: "
        "of rates the mean, of requests in the server and KV cache use the maximum, of preemptions the sum. "
        "The table below holds every point."
    )
    head = ("From", *(title for title, _, _, _ in _COLUMNS))
    return Chart(
        "timeline",
        title,
        description,
        lambda: charts.timeline("timeline", title, description, times, lanes, stretches),
        table=Table("Every point of the timeline (measured)", head, rows, folded=True),
    )


def _windows(document: Mapping[str, Any]) -> list[_Window]:
    found = []
    for number, step in enumerate(document["steps"]):
        for place, repeat in enumerate(step["repeats"]):
            window = repeat["client"]["window"]
            start = window["start_unix_s"]
            name = clean(f"{name_of(step)}, repeat {repeat['repeat']}")
            keys = ("steps", number, "repeats", place)
            short = f"{_short(step)} #{repeat['repeat']}"
            found.append(_Window(keys, name, short, repeat, start, start + window["seconds"]))
    found.sort(key=lambda each: each.start)
    first = found[0].start if found else 0
    return [replace(one, start=one.start - first, end=one.end - first) for one in found]


def _short(step: Mapping[str, Any]) -> str:
    return f"{step['rate_per_s']:g}/s" if step.get("rate_per_s") is not None else clean(name_of(step))


def _point(window: _Window, column: tuple[str, str, tuple[str, ...], str], begin: float, end: float) -> Figure | None:
    """What a column shows from `begin` to before `end`, in seconds of the window; None where nobody looked."""
    _, unit, path, by = column
    for source in _sources(path):
        seconds = _seconds(window, source[:-1])
        values = resolve(window.repeat, source) or []
        inside = [place for place, at in enumerate(seconds[: len(values)]) if begin <= at < end]
        seen = [values[place] for place in inside if values[place] is not None]
        if seen:
            value = {"mean": sum(seen) / len(seen), "max": max(seen), "sum": sum(seen)}[by]
            part = (inside[0], inside[-1] + 1)
            return Figure(value, shown(value, unit), (pointer(*window.keys, *source),), by, part)
    return None


def _sources(path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    if path[-1] in ("running", "waiting"):
        # Without figures of the server there is what the client itself saw of it.
        yield ("client", "server", path[-1])


def _seconds(window: _Window, path: tuple[str, ...]) -> list[float]:
    """The times of a timeline, in seconds after the window began."""
    return list(resolve(window.repeat, (*path, _TIMES[path[0], path[1]])) or [])


def _number(point: Figure | None) -> float | None:
    return None if point is None else point.value
