"""A diagnosis as text for a person and as a document for a program. Every number says how it was obtained."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from vllm_node.diagnosis.diagnosis import Case, Diagnosis
from vllm_node.diagnosis.facts import Subject
from vllm_node.diagnosis.hypotheses import BY_ID, fill
from vllm_node.diagnosis.hypothesis import MEANING, Judgement, Mark, Verdict
from vllm_node.diagnosis.look import Reading, expression
from vllm_node.diagnosis.signal import Unit
from vllm_node.diagnosis.thresholds import THRESHOLDS
from vllm_node.diagnosis.window import clock, duration

SCHEMA = 1
_UNITS: dict[Unit, str] = {
    "seconds": " s",
    "percent": " %",
    "degrees": " °C",
    "cores": " cores",
    "tokens": " tokens",
    "per second": "/s",
}
_TOLD = (Verdict.SUPPORTED, Verdict.WEAKENED, Verdict.HINTED)


def text(found: Diagnosis) -> str:
    """The whole diagnosis, the strongest hypotheses first."""
    return "\n".join(_lines(found))


def _lines(found: Diagnosis) -> Iterator[str]:
    facts = found.facts
    start = clock(facts.at - facts.window_s)
    yield f"{facts.host}: diagnosis of {duration(facts.window_s)}, from {start} to {clock(facts.at)}"
    for note in found.notes:
        yield f"  note: {note}"
    for case in found.cases:
        yield ""
        yield f"{facts.host}, {case.subject.name}"
        yield from _case(found, case)


def _case(found: Diagnosis, case: Case) -> Iterator[str]:
    told = case.of(*_TOLD)
    if not case.of(Verdict.SUPPORTED):
        yield "  No hypothesis is supported: what was measured does not agree on any of them."
    for judgement in told:
        yield from _judgement(found, case.subject, judgement)
    for tie in found.ties:
        if tie.subject == case.subject:
            one, other = (f"{BY_ID[name].id}" for name in tie.hypotheses)
            yield f"  {one} and {other} both rest on: {'; '.join(tie.signals)}."
            yield "    The signals do not tell them apart, and both may be true: take the next measurement of each."
    for link in found.consequences:
        if link.subject == case.subject:
            yield f"  {link.follows} would follow from {link.cause}: look at {link.cause} first."
    yield from _briefly("unobservable", case, Verdict.UNOBSERVABLE)
    yield from _briefly("no sign of", case, Verdict.UNSUPPORTED)


def _briefly(words: str, case: Case, verdict: Verdict) -> Iterator[str]:
    several = case.of(verdict)
    if not several:
        return
    if verdict is Verdict.UNSUPPORTED:
        yield f"  {words}: {', '.join(sorted(one.hypothesis.id for one in several))}"
        return
    for one in several:
        yield f"  {words}: {one.hypothesis.id}: {_missing(one)}"


def _missing(judgement: Judgement) -> str:
    """Signals without which nothing can be said, by the reason; all of them where it needs none in particular."""
    wanted = [mark for mark in (*judgement.given, *judgement.needs) if mark.holds is None]
    by_reason: dict[str, dict[str, None]] = {}
    for mark in wanted or judgement.missing:
        by_reason.setdefault(mark.reading.missing, {})[f"'{mark.reading.signal.words}'"] = None
    return "; ".join(f"{', '.join(words)} ({reason})" for reason, words in by_reason.items())


def _judgement(found: Diagnosis, subject: Subject, judgement: Judgement) -> Iterator[str]:
    hypothesis = judgement.hypothesis
    families = len(judgement.families)
    agree = f"{families} independent observation{'s' if families > 1 else ''}"
    yield f"  {judgement.verdict.upper()}  {hypothesis.id}: {hypothesis.claim} ({agree})"
    for mark in judgement.seen_for:
        yield f"    for      {_sign(mark)}"
    for mark in judgement.seen_against:
        yield f"    against  {_sign(mark)}"
    for mark in judgement.missing:
        yield f"    unseen   {mark.reading.signal.words}: {mark.reading.missing}"
    yield f"    next     {hypothesis.next.tells}"
    yield f"             {_command(found, subject, judgement)}"


def _command(found: Diagnosis, subject: Subject, judgement: Judgement) -> str:
    """What to type; a query is asked of the node's own Prometheus."""
    following = judgement.hypothesis.next
    facts = found.facts
    filled = fill(following.command or following.query, subject, duration(facts.window_s), facts.prometheus_url)
    if following.command:
        return f"{facts.host}$ {filled}" if not filled.startswith("vllm-node ") else f"$ {filled}"
    asked = shlex.quote(f"query={filled}")
    return f"{facts.host}$ curl -sG {facts.prometheus_url}/api/v1/query --data-urlencode {asked}"


def _sign(mark: Mark) -> str:
    signal = mark.reading.signal
    told = f"{signal.words}: {number(mark.reading)} ({signal.obtained}, {mark.reading.window})"
    if signal.unit == "yes or no":
        return told
    assert mark.reading.value is not None
    relation = "above" if mark.reading.value > mark.limit else "not above"
    if mark.reading.value < mark.limit:
        relation = "below"
    return f"{told}, {relation} {limit_text(mark.limit, signal.unit)}"


def number(reading: Reading) -> str:
    """A reading with its unit; the reason when there is none."""
    if reading.value is None:
        return f"unobservable: {reading.missing}"
    return limit_text(reading.value, reading.signal.unit)


def limit_text(value: float, unit: Unit) -> str:
    """A number with its unit, for people."""
    if unit == "yes or no":
        return "yes" if value else "no"
    # Small figures need their digits, large ones none behind the point.
    shown = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return shown + _UNITS.get(unit, "")


def document(found: Diagnosis) -> dict[str, Any]:
    """The whole diagnosis, with every reading of every subject; a missing value is null and says why."""
    facts = found.facts
    return {
        "schema": SCHEMA,
        "host": facts.host,
        "at": facts.at,
        "window_s": facts.window_s,
        "prometheus": facts.prometheus_url,
        "notes": found.notes,
        "subjects": [_case_document(found, case) for case in found.cases],
    }


def _case_document(found: Diagnosis, case: Case) -> dict[str, Any]:
    instance = case.subject.instance
    return {
        "instance": instance.name if instance else None,
        "hypotheses": [_judgement_document(found, case.subject, one) for one in case.judgements],
        "not_told_apart": [
            {"hypotheses": list(tie.hypotheses), "signals": list(tie.signals)}
            for tie in found.ties
            if tie.subject == case.subject
        ],
        "consequences": [
            {"cause": link.cause, "follows": link.follows}
            for link in found.consequences
            if link.subject == case.subject
        ],
        "signals": {reading.signal.id: _reading_document(found, reading) for reading in case.readings},
    }


def _judgement_document(found: Diagnosis, subject: Subject, judgement: Judgement) -> dict[str, Any]:
    hypothesis = judgement.hypothesis
    return {
        "id": hypothesis.id,
        "claim": hypothesis.claim,
        "verdict": str(judgement.verdict),
        "meaning": MEANING[judgement.verdict],
        "independent": judgement.families,
        "for": [_mark_document(mark) for mark in judgement.seen_for],
        "against": [_mark_document(mark) for mark in judgement.seen_against],
        "unobservable": [{"signal": mark.sign.signal, "why": mark.reading.missing} for mark in judgement.missing],
        "next": {"tells": hypothesis.next.tells, "command": _command(found, subject, judgement).partition("$ ")[2]},
    }


def _mark_document(mark: Mark) -> dict[str, Any]:
    return {
        "signal": mark.sign.signal,
        "value": mark.reading.value,
        "expected": mark.sign.relation,
        "threshold": mark.limit,
        "threshold_name": mark.sign.limit,
        "threshold_follows": THRESHOLDS[mark.sign.limit].alert,
    }


def _reading_document(found: Diagnosis, reading: Reading) -> dict[str, Any]:
    signal = reading.signal
    return {
        "means": signal.words,
        "value": reading.value,
        "why_missing": reading.missing or None,
        "unit": signal.unit,
        "obtained": signal.obtained,
        "window": reading.window,
        "query": expression(signal, found.facts.window_s) if signal.expr else None,
    }
