"""The report of one run: which sections it has, in which order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_node.bench.report import background, drawings, opening, second_opinion, steps
from vllm_node.bench.report.page import Chart, Mark, Page, Section


def page(document: Mapping[str, Any]) -> Page:
    """The report of a run document that `document.check` has accepted."""
    name = f"{document['workload']['name']} on {document['host']}, {document['instance']}"
    sections = (
        opening.verdict(document),
        opening.promises(document),
        _charted("distributions", "Latency distributions", drawings.distributions(document)),
        _charted("timeline", "Timeline", drawings.timeline(document)),
        steps.section(document),
        background.workflow(document),
        background.notices(document),
        background.correctness(document),
        background.generator(document),
        second_opinion.cross_check(document),
        background.workload(document),
        background.provenance(document),
        background.definitions(document),
        background.unmeasured(document),
    )
    kind = "Smoke benchmark" if document["kind"] == "smoke" else "Benchmark"
    return Page(
        f"{kind}: {name}",
        Mark(document["verdict"]["verdict"]),
        f"{document['model']}, {document['started_at']} to {document['ended_at']}.",
        [one for one in sections if one is not None],
    )


def _charted(name: str, title: str, chart: Chart | None) -> Section | None:
    return None if chart is None else Section(f"{name}-section", title, [chart])
