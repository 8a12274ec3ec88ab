"""What a report begins with: the verdict with its reasons, and each promise against what was seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm_node.bench.report.drawings import name_of
from vllm_node.bench.report.numbers import shown, unit_of
from vllm_node.bench.report.page import (
    Block,
    Bullets,
    Figure,
    Inline,
    Mark,
    Paragraph,
    Section,
    Table,
    Text,
    figure,
    pointer,
)

PROMISES = {
    "ttft_p95_s": ("TTFT p95, at most", "measured"),
    "tpot_p95_s": ("TPOT p95, at most", "derived"),
    "e2e_p95_s": ("E2E p95, at most", "measured"),
    "workflow_e2e_p95_s": ("E2E p95 of a workflow, at most", "measured"),
    "error_rate": ("Error rate, at most", "derived"),
    "goodput_share": ("Goodput, share of the offered, at least", "derived"),
    "goodput_per_s": ("Goodput, at least", "derived"),
}
_MEANING = {
    "pass": "every promise was kept",
    "fail": "a promise was broken, or a check failed",
    "insufficient": "what was seen does not allow a verdict",
}
_ALL_SHOWN = 2


def summary(document: Mapping[str, Any]) -> Text:
    """The verdict in a sentence."""
    verdict = document["verdict"]
    return (Mark(verdict["verdict"]), f": {_MEANING[verdict['verdict']]}.")


def verdict(document: Mapping[str, Any]) -> Section:
    """Reasons, the rate that can be sustained, and what a reader must know before any number."""
    found = document["verdict"]
    blocks: list[Block] = [Paragraph(summary(document))]
    if document["partial"]:
        blocks.append(Paragraph((f"This run is partial ({document['partial']}): it ended before its time.",)))
    if found["reasons"]:
        blocks.append(Bullets([str(reason) for reason in found["reasons"]]))
    blocks.append(Paragraph(_sustainable(document)))
    if document.get("contradictions"):
        blocks.append(Paragraph("The SLO contradicts itself or the workload:"))
        blocks.append(Bullets([str(one) for one in document["contradictions"]]))
    return Section("verdict", "Verdict", blocks)


def _sustainable(document: Mapping[str, Any]) -> Text:
    found = document["verdict"]
    if found.get("sustainable_rate_per_s") is None:
        return "Sustainable rate: none can be named from this run."
    seen = figure(document, ("verdict", "sustainable_rate_per_s"), "/s")
    return ("Sustainable rate: ", seen, f" ({found.get('how') or 'measured'}).")


def promises(document: Mapping[str, Any]) -> Section:
    """Limit, seen, samples and verdict of each promise in the steps that decide."""
    chosen = deciding(document)
    rows = [row for number in chosen for row in check_rows(document, number)]
    blocks: list[Block] = []
    if not any(limit is not None for limit in document["slo"].values()):
        blocks.append(Paragraph("The inventory promises nothing, so there is no SLO to judge by."))
    if len(chosen) < len(document["steps"]):
        blocks.append(
            Paragraph("Shown are the steps around the sustainable rate; all others stand under their own headings.")
        )
    if rows:
        blocks.append(Table("Each promise against what was seen", HEAD, rows))
    elif document["steps"]:
        blocks.append(Paragraph("No promise was judged."))
    else:
        blocks.append(Paragraph("No step was run, so nothing was judged."))
    return Section("slo", "Service level objectives", blocks)


HEAD = ("Promise", "Step", "Repeat", "Limit", "Seen", "Samples", "Verdict", "How")


def check_rows(document: Mapping[str, Any], number: int) -> Iterator[Sequence[Text]]:
    """A row for each promise and repeat of a step; a promise that was not judged says so."""
    step = document["steps"][number]
    for place, repeat in enumerate(step["repeats"]):
        keys = ("steps", number, "repeats", place, "client", "verdict", "checks")
        checks = repeat["client"]["verdict"].get("checks") or []
        for index, check in enumerate(checks):
            title, how = PROMISES.get(check["name"], (check["name"], "measured"))
            unit = "/s" if check["name"] == "goodput_per_s" else unit_of(check["name"])
            cells = (figure(document, (*keys, index, "limit"), unit), figure(document, (*keys, index, "seen"), unit))
            samples = figure(document, (*keys, index, "samples"))
            yield (title, name_of(step), str(repeat["repeat"]), *cells, samples, Mark(check["verdict"]), how)
        judged = {check["name"] for check in checks}
        for name, limit in document["slo"].items():
            if limit is not None and name not in judged:
                unit = unit_of(name)
                cell: Inline = Figure(limit, shown(limit, unit), (pointer("slo", name),))
                title, how = PROMISES.get(name, (name, "measured"))
                yield (title, name_of(step), str(repeat["repeat"]), cell, "not judged", "0", Mark("insufficient"), how)


def deciding(document: Mapping[str, Any]) -> list[int]:
    """Places of the steps that the verdict rests on: the highest that held, and the first above it."""
    steps = document["steps"]
    rate = document["verdict"].get("sustainable_rate_per_s")
    rates = [step.get("rate_per_s") for step in steps]
    if len(steps) <= _ALL_SHOWN or rate not in rates:
        return list(range(len(steps)))[:_ALL_SHOWN]
    place = rates.index(rate)
    return [place, *([place + 1] if place + 1 < len(steps) else [])]
