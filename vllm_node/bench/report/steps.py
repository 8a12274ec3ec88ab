"""The tables of the steps: all of them in one overview, then each with its repeats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm_node.bench.report import second_opinion, spread
from vllm_node.bench.report.drawings import name_of
from vllm_node.bench.report.measures import BY_KEY, OVERVIEW, Measure, of_step
from vllm_node.bench.report.numbers import shown
from vllm_node.bench.report.opening import HEAD, check_rows, deciding
from vllm_node.bench.report.page import (
    Block,
    Bullets,
    Figure,
    Inline,
    Paragraph,
    Section,
    Table,
    Text,
    figure,
    pointer,
    resolve,
)

_MARKS = {"median": "median", "low": "low", "high": "high"}


def section(document: Mapping[str, Any]) -> Section:
    """All steps."""
    steps = document["steps"]
    if not steps:
        return Section("steps", "Steps", [Paragraph("No step was run.")])
    measures = [BY_KEY[key] for key in OVERVIEW]
    head = ("Step", "Repeats that passed", *(f"{one.title} ({one.how})" for one in measures))
    rows = [
        (name_of(step), _passed(number, step), *(_spread(document, number, one, "median") for one in measures))
        for number, step in enumerate(steps)
    ]
    blocks: list[Block] = [
        Paragraph(
            "Of several repeats the median is shown, which is derived; void repeats, whose generator did not keep up, "
            "are in none. The word in brackets says how a single value was obtained."
        ),
        Table("All steps", head, rows),
    ]
    if any(step.get("clients") is not None for step in steps):
        blocks.append(
            Paragraph(
                "Steps of a number of clients are closed loops: a slow server slows its clients down, so overload does "
                "not show in them, and they say nothing about capacity."
            )
        )
    return Section("steps", "Steps", blocks, [_step(document, number) for number in range(len(steps))])


def _step(document: Mapping[str, Any], number: int) -> Section:
    step = document["steps"][number]
    repeats = step["repeats"]
    blocks: list[Block] = []
    if not repeats:
        blocks.append(Paragraph("No repeat of this step was run."))
    void = [str(repeats[one]["repeat"]) for one in range(len(repeats)) if one not in spread.that_count(step)]
    if void:
        blocks.append(Paragraph(f"Void, and in no median: repeat {', '.join(void)}; the generator did not keep up."))
    reasons = [
        f"Repeat {one['repeat']}: {one['client']['verdict']['verdict']}: {reason}"
        for one in repeats
        for reason in one["client"]["verdict"]["reasons"]
    ]
    if reasons:
        blocks.append(Bullets(reasons))
    story = second_opinion.agreement(step)
    if story:
        blocks.append(story)
    if repeats:
        checks = [] if number in deciding(document) else list(check_rows(document, number))
        if checks:
            blocks.append(Table(f"{name_of(step)}: each promise against what was seen", HEAD, checks))
        blocks += _tables(document, number)
    return Section(f"step-{number + 1}", name_of(step), blocks)


def _tables(document: Mapping[str, Any], number: int) -> Iterator[Table]:
    step = document["steps"][number]
    several = len(step["repeats"]) > 1
    head = [
        "Figure",
        *(f"Repeat {one['repeat']}" for one in step["repeats"]),
        *(["Median", "Lowest", "Highest"] if several else []),
        "How",
    ]
    for of_server, caption in ((False, "seen by the client"), (True, "said by the server over the same window")):
        rows = [_row(document, number, one, several) for one in of_step(step) if one.of_server == of_server]
        if not of_server:
            rows.append(_kinds(document, number, several))
        yield Table(f"{name_of(step)}: {caption}", head, rows)
    gpus = list(_gpus(document, number))
    if gpus:
        yield Table(f"{name_of(step)}: GPUs (measured)", ("GPU", "Repeat", "Use, mean", "Power, mean", "Energy"), gpus)


def _gpus(document: Mapping[str, Any], number: int) -> Iterator[Sequence[Text]]:
    for at, repeat in enumerate(document["steps"][number]["repeats"]):
        for place, gpu in enumerate((repeat.get("server") or {}).get("gpus") or []):
            keys = ("steps", number, "repeats", at, "server", "gpus", place)
            cells = [
                figure(document, (*keys, name), unit)
                for name, unit in (("util_mean", "%"), ("power_mean_w", "W"), ("energy_j", "J"))
            ]
            yield (str(gpu.get("uuid") or gpu.get("gpu")), str(repeat["repeat"]), *cells)


def _row(document: Mapping[str, Any], number: int, one: Measure, several: bool) -> Sequence[Text]:
    repeats = document["steps"][number]["repeats"]
    seen = [_seen(document, ("steps", number, "repeats", at), one) for at in range(len(repeats))]
    spreads = [_spread(document, number, one, mark) for mark in _MARKS] if several else []
    hows = list(dict.fromkeys(one.how_in(repeat) for repeat in repeats))
    return (one.title, *seen, *spreads, " or ".join(hows))


def _seen(document: Mapping[str, Any], repeat: tuple[str | int, ...], one: Measure) -> Text:
    """A figure of a repeat, with what says how sure it is: interval, number of samples, bucket that it lies in."""
    seen = figure(document, (*repeat, *one.path), one.unit)
    if seen.value is None:
        return seen
    if one.key == "queue_slope":
        low, high = (figure(document, (*repeat, *one.path[:-1], end), one.unit) for end in ("low", "high"))
        return (seen, " (95 % interval ", low, " to ", high, ")")
    if not one.of_server:
        return seen
    parts: list[Inline] = [seen]
    beside = (*repeat, *one.beside)
    if resolve(document, (*beside, "samples")) is not None:
        parts += [" (n ", figure(document, (*beside, "samples")), ")"]
    if resolve(document, (*beside, "bucket")):
        low, high = (figure(document, (*beside, "bucket", end), one.unit) for end in (0, 1))
        parts += [", bucket ", low, " to ", high if high.value is not None else "∞"]
    return parts


def _spread(document: Mapping[str, Any], number: int, one: Measure, mark: str) -> Figure:
    """Median, low or high: from the document, or of the repeats where its summary lacks the measure."""
    step = document["steps"][number]
    if one.key in step.get("summary", {}):
        return figure(document, ("steps", number, "summary", one.key, mark), one.unit)
    value = spread.of_measure(one, step)[mark]
    paths = tuple(pointer("steps", number, "repeats", at, *one.path) for at in spread.that_count(step))
    return Figure(value, shown(value, one.unit), paths, mark)


def _kinds(document: Mapping[str, Any], number: int, several: bool) -> Sequence[Text]:
    repeats = document["steps"][number]["repeats"]
    cells: list[Text] = []
    for at, repeat in enumerate(repeats):
        keys = ("steps", number, "repeats", at, "client", "counts", "by_kind")
        kinds = resolve(repeat, keys[4:])
        if kinds is None:
            cells.append(shown(None))
            continue
        cell: list[Inline] = []
        for kind in kinds:
            cell += [", " if cell else "", figure(document, (*keys, kind)), f" {kind}"]
        cells.append(cell or "none")
    return ("What did not complete, by kind", *cells, *([""] * len(_MARKS) if several else []), "measured")


def _passed(number: int, step: Mapping[str, Any]) -> Text:
    paths = tuple(
        pointer("steps", number, "repeats", at, "client", "verdict", "verdict") for at in range(len(step["repeats"]))
    )
    passed = sum(one["client"]["verdict"]["verdict"] == "pass" for one in step["repeats"])
    return (Figure(passed, str(passed), paths, "passes"), f" of {len(paths)}")
