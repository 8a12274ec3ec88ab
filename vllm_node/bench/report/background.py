"""What stands behind the figures: workload, checks, the generator, provenance, definitions, what is not known."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm_node.bench.report import second_opinion
from vllm_node.bench.report.drawings import name_of
from vllm_node.bench.report.numbers import shown
from vllm_node.bench.report.page import Block, Bullets, Mark, Paragraph, Section, Table, Terms, Text, figure

_LONGEST = 300
_MOST_ROWS = 400
_SELFCHECK = (
    ("Lateness p99", ("lateness_s", "p99_nearest_rank"), "s", "measured"),
    ("Event-loop lag p99", ("lag_s", "p99_nearest_rank"), "s", "measured"),
    ("Use of one core", ("cpu_share",), "share", "measured"),
    ("Achieved of the offered rate", ("achieved_share",), "share", "derived"),
)


def workload(document: Mapping[str, Any]) -> Section:
    """What was asked of the server."""
    rows = [(name, text) for name, text in flat(document["workload"]) if not name.startswith("shared_prefix_share")]
    share: Text = "not said"
    found = document["workload"].get("shared_prefix_share")
    if found is not None:
        asked = figure(document, ("workload", "shared_prefix_share", "asked"), "share")
        share = (asked, " asked for, ", figure(document, ("workload", "shared_prefix_share", "measured"), "share"))
        share = (*share, " measured")
    return Section("workload", "Workload", [Table("Workload", ("What", "Is"), [*rows, ("shared prefix", share)])])


def workflow(document: Mapping[str, Any]) -> Section | None:
    """Whole runs of an agent; None where the workload has none."""
    found = document.get("workflow")
    if not found:
        return None
    rows: list[Sequence[Text]] = [("Runs", figure(document, ("workflow", "runs")), "measured")]
    for name in found["e2e_s"]:
        unit = "" if name in ("samples", "n", "timed_out") else "s"
        rows.append((f"E2E of a run, {name}", figure(document, ("workflow", "e2e_s", name), unit), _how(found)))
    rows += [
        (f"Calls per run, {name}", figure(document, ("workflow", "calls_per_run", name)), _how(found))
        for name in found.get("calls_per_run") or {}
    ]
    return Section(
        "workflow",
        "Whole agent runs",
        [
            Paragraph("A run is timed from its first call to the end of its last; percentiles of calls do not add up."),
            Table("Whole agent runs", ("Figure", "Value", "How"), rows),
        ],
    )


def _how(found: Mapping[str, Any]) -> str:
    return str(found.get("how") or "measured")


def correctness(document: Mapping[str, Any]) -> Section:
    """Whether the server answers rightly; speed means nothing without it."""
    checks = document.get("correctness") or []
    if not checks:
        return Section("correctness", "Correctness", [Paragraph("No check of correctness was made in this run.")])
    rows = [(one["check"], Mark(one["outcome"]), one["seen"]) for one in checks]
    return Section("correctness", "Correctness", [Table("Checks (measured)", ("Check", "Outcome", "Seen"), rows)])


def generator(document: Mapping[str, Any]) -> Section | None:
    """Whether the load generator itself kept up; None where nothing ran."""
    rows: list[Sequence[Text]] = []
    for number, step in enumerate(document["steps"]):
        for place, repeat in enumerate(step["repeats"]):
            found = repeat["client"].get("selfcheck")
            name = f"{name_of(step)}, repeat {repeat['repeat']}"
            if not found:
                rows.append((name, *[shown(None)] * (len(_SELFCHECK) + 1)))
                continue
            keys = ("steps", number, "repeats", place, "client", "selfcheck")
            cells = [figure(document, (*keys, *path), unit) for _, path, unit, _ in _SELFCHECK]
            rows.append((name, *cells, Mark(str(found.get("verdict") or shown(None)))))
    if not rows:
        return None
    head = ("Repeat", *(f"{title} ({how})" for title, _, _, how in _SELFCHECK), "Verdict")
    return Section("generator", "Did the load generator keep up?", [Table("Self-check", head, rows)])


def notices(document: Mapping[str, Any]) -> Section | None:
    """What the engine wants a reader to know, each once; None without any."""
    found: dict[str, list[str]] = {str(one): ["the workload"] for one in document["workload"].get("notices") or []}
    for step in document["steps"]:
        for repeat in step["repeats"]:
            for notice in _notices(repeat):
                found.setdefault(str(notice), []).append(f"{name_of(step)}, repeat {repeat['repeat']}")
    if not found:
        return None
    items = [f"{notice} ({_where(places)})" for notice, places in found.items()]
    return Section("notices", "To be known beside the numbers", [Bullets(items)])


def _notices(repeat: Mapping[str, Any]) -> Iterator[str]:
    yield from repeat["client"].get("notices") or []
    yield from (repeat.get("server") or {}).get("notices") or []
    yield from second_opinion.contradictions(repeat)


def _where(places: Sequence[str]) -> str:
    return "; ".join(places) if len(places) <= 3 else f"in {len(places)} repeats, the first: {places[0]}"


def provenance(document: Mapping[str, Any]) -> Section:
    """Where the figures come from, down to the digests."""
    own = [
        (name, str(document[name]))
        for name in ("id", "kind", "host", "instance", "model", "started_at", "ended_at", "schema")
    ]
    blocks: list[Block] = [Table("This run", ("What", "Is"), own)]
    for area, found in (document.get("provenance") or {}).items():
        rows = list(flat(found, str(area) if not isinstance(found, Mapping) else ""))
        cut = rows[:_MOST_ROWS]
        if len(rows) > len(cut):
            cut.append(("…", f"{len(rows) - len(cut)} more are in run.json"))
        blocks.append(Table(f"Provenance: {area}", ("What", "Is"), cut, folded=len(cut) > 12))
    if len(blocks) == 1:
        blocks.append(Paragraph("Nothing else is known of where these figures come from."))
    return Section("provenance", "Provenance", blocks)


def flat(found: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """A nested value as rows of a dotted name and text."""
    if isinstance(found, Mapping) and found:
        for key, value in found.items():
            yield from flat(value, f"{name}.{key}" if name else str(key))
        return
    text = found if isinstance(found, str) else shown(None) if found is None else json.dumps(found, ensure_ascii=False)
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}… ({len(text)} characters, all of them in run.json)"
    yield name or "value", text


def definitions(document: Mapping[str, Any]) -> Section:
    """What each figure means, in the words of the engine that measured it."""
    words = [
        ("measured", "read off a clock or counted"),
        ("derived", "computed from what was measured"),
        ("inferred", "a statement of statistics or an estimate, with its uncertainty where it has one"),
        ("illustrative", "an example; nothing was measured"),
        ("insufficient", "too few samples for an honest number: p50, p95 and p99 need 2, 20 and 100"),
        ("unobservable", "nobody could see it; it is not 0"),
        ("timed out", "the percentile lies among requests that ran into a time-out"),
        ("void", "no repeat counts: the generator did not keep up in any"),
    ]
    entries = [(str(name), str(text)) for name, text in (document.get("definitions") or {}).items()]
    return Section("definitions", "Definitions", [Terms([*entries, *words])])


def unmeasured(document: Mapping[str, Any]) -> Section:
    """What nobody saw, said aloud."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in document.get("unobservable") or []:
        found.setdefault((one["what"], one["why"]), [])
    for step in document["steps"]:
        for repeat in step["repeats"]:
            for what, why in _of_server(repeat.get("server")):
                found.setdefault((what, why), []).append(f"{name_of(step)}, repeat {repeat['repeat']}")
    share = document["workload"].get("shared_prefix_share") or {}
    if share.get("asked") is not None and share.get("measured") is None:
        found.setdefault(("real shared-prefix share", "it was not measured"), [])
    for check in document.get("correctness") or []:
        if check["outcome"] == "not applicable":
            found.setdefault((f"check: {check['check']}", check["seen"]), [])
    rows = [(what, why, _where(places) if places else "the whole run") for (what, why), places in found.items()]
    blocks: list[Block] = [
        Paragraph(
            "Only what was run was measured: other rates, lengths, models, hours and neighbours on the node may give "
            "other figures."
        )
    ]
    if rows:
        blocks.append(Table("What could not be observed", ("What", "Why", "Where"), rows))
    else:
        blocks.append(Paragraph("Nothing that was looked for was out of sight."))
    return Section("unmeasured", "What remains unmeasured", blocks)


def _of_server(server: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    if server is None:
        yield "all figures of the server", "nobody looked at the server"
        return
    if server.get("refused"):
        yield "all figures of the server", str(server["refused"])
    for one in server.get("unobservable") or []:
        yield one["what"], one["why"]
