"""What another load generator measured beside ours, and whether client and server tell the same story."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm_node.bench.cross_figures import title
from vllm_node.bench.report.numbers import shown, unit_of
from vllm_node.bench.report.page import Block, Bullets, Mark, Paragraph, Section, Table, Terms, Text, figure

_WORDS = {True: "agrees", False: "disagrees", None: "insufficient"}
_HEAD = ("Ours by the peer's", "May differ by", "Within", "Ours, each run", "The peer's, each run")
_WITHIN = {True: "yes", False: "no", None: "not judged"}


def cross_check(document: Mapping[str, Any]) -> Section | None:
    """Our figures beside the peer's; None where nobody asked for that."""
    found = document.get("cross_check")
    if not found:
        return None
    peer, load = found["peer"], found["load"]
    version = f" {found['peer_version']}" if found.get("peer_version") else ""
    blocks: list[Block] = [
        Paragraph((Mark(_WORDS[found["agrees"]]), f": {found['why']}.")),
        Paragraph(
            f"{peer}{version} and our own generator sent the same requests to this instance by turns "
            f"({', '.join(found['order'])}): {load['requests']} a run at {load['rate_per_s']:g} a second, "
            f"{load['prompt_tokens']} tokens in and {load['output_tokens']} out, on /v1/completions. Each run had "
            "prompts of its own, so that none met the prefix cache of another. Shown are medians of the runs."
        ),
    ]
    rows = list(_rows(document, found["figures"]))
    if rows:
        caption = f"Ours and {peer}: medians of the runs (derived); bound {shown(found['bound'], 'share')}"
        blocks.append(Table(caption, ("Figure", "Ours", peer, *_HEAD), rows))
        blocks.append(Terms(_meanings(found["figures"])))
    blocks.append(Paragraph(f"The peer's command: {found['command']}"))
    return Section("cross-check", "Does another load generator see the same?", blocks)


def _rows(document: Mapping[str, Any], figures: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[Text]]:
    for place, one in enumerate(figures):
        keys, unit = ("cross_check", "figures", place), unit_of(one["name"])
        cells = [figure(document, (*keys, name), unit) for name in ("ours", "peer")]
        cells += [figure(document, (*keys, "ratio")), figure(document, (*keys, "allowed"), unit)]
        runs = [_runs(document, (*keys, side), one[side], unit) for side in ("ours_runs", "peer_runs")]
        yield (title(one["name"]), *cells, _WITHIN[one["within"]], *runs)


def _runs(document: Mapping[str, Any], keys: tuple[str | int, ...], values: Sequence[Any], unit: str) -> Text:
    parts: list[Any] = []
    for place in range(len(values)):
        parts += [", " if parts else "", figure(document, (*keys, place), unit)]
    return parts or shown(None)


def _meanings(figures: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What is compared with what, once for all statistics of a latency."""
    found: dict[str, list[str]] = {}
    for one in figures:
        found.setdefault(one["how"], []).append(title(one["name"]))
    return [(", ".join(titles), how) for how, titles in found.items()]


def agreement(step: Mapping[str, Any]) -> Bullets | None:
    """A line for each repeat of a step: whether client and server tell the same story; None where nobody looked."""
    lines = [
        (Mark(_WORDS[found["agrees"]]), f": repeat {repeat['repeat']}: {found['says']}")
        for repeat in step["repeats"]
        if (found := repeat.get("agreement"))
    ]
    return Bullets(lines) if lines else None


def contradictions(repeat: Mapping[str, Any]) -> Iterator[str]:
    """What client and server say against each other in a repeat."""
    for one in (repeat.get("agreement") or {}).get("figures") or []:
        if one["agrees"] is False:
            yield one["says"]
