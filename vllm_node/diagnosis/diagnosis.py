"""Judges every hypothesis about a node, puts the strongest first, and says which ones cannot be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

from vllm_node.diagnosis.facts import Facts, Subject
from vllm_node.diagnosis.hypotheses import HYPOTHESES
from vllm_node.diagnosis.hypothesis import Hypothesis, Judgement, Sign, Verdict, judge
from vllm_node.diagnosis.look import Look, Reading
from vllm_node.diagnosis.signals import SIGNALS

_ORDER = list(Verdict)


@dataclass(frozen=True)
class Case:
    """All hypotheses about one subject, the strongest first; `readings` are all of its signals."""

    subject: Subject
    judgements: list[Judgement]
    readings: list[Reading]

    def of(self, *verdicts: Verdict) -> list[Judgement]:
        """Those with one of these verdicts."""
        return [one for one in self.judgements if one.verdict in verdicts]


@dataclass(frozen=True)
class Tie:
    """Supported hypotheses that rest on the same signs: ids, and the signals that they share."""

    subject: Subject
    hypotheses: tuple[str, ...]
    signals: tuple[str, ...]


@dataclass(frozen=True)
class Consequence:
    """A supported hypothesis that would follow from another supported one."""

    subject: Subject
    cause: str
    follows: str


@dataclass(frozen=True)
class Diagnosis:
    """What is thought about a node. `notes`: what to keep in mind about the measurements themselves."""

    facts: Facts
    cases: list[Case]
    ties: list[Tie] = field(default_factory=list)
    consequences: list[Consequence] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def diagnose(facts: Facts, hypotheses: Sequence[Hypothesis] = HYPOTHESES) -> Diagnosis:
    """Judge all hypotheses about each instance and about the node."""
    cases, looks = [], []
    for subject in facts.subjects():
        look = Look(facts, subject, SIGNALS)
        scope = "instance" if subject.instance else "node"
        judged = [judge(one, look.read, look.limits) for one in hypotheses if one.scope == scope]
        cases.append(Case(subject, sorted(judged, key=_rank), [look.read(name) for name in SIGNALS]))
        looks.append(look)
    *_, node = cases
    found = Diagnosis(facts, cases, notes=_notes(looks))
    for case in cases:
        # What is wrong with the node is a rival of what is wrong with an instance, and may be its cause.
        told = case.of(Verdict.SUPPORTED) + (node.of(Verdict.SUPPORTED) if case is not node else [])
        _relate(found, case.subject, told, own={id(one) for one in case.judgements})
    return found


def _rank(judgement: Judgement) -> tuple[int, int, int, str]:
    return (
        _ORDER.index(judgement.verdict),
        -len(judgement.families),
        len(judgement.seen_against),
        judgement.hypothesis.id,
    )


def _relate(found: Diagnosis, subject: Subject, told: list[Judgement], own: set[int]) -> None:
    for one, other in combinations(told, 2):
        if id(one) not in own and id(other) not in own:
            continue
        causes = [(one, other)] if other.hypothesis.id in one.hypothesis.explains else []
        causes += [(other, one)] if one.hypothesis.id in other.hypothesis.explains else []
        for cause, follows in causes:
            found.consequences.append(Consequence(subject, cause.hypothesis.id, follows.hypothesis.id))
        shared = _signs(one) & _signs(other)
        if shared and not causes:
            names = tuple(sorted({SIGNALS[sign.signal].words for sign in shared}))
            found.ties.append(Tie(subject, (one.hypothesis.id, other.hypothesis.id), names))


def _signs(judgement: Judgement) -> set[Sign]:
    return {mark.sign for mark in judgement.seen_for}


def _notes(looks: Sequence[Look]) -> list[str]:
    *instances, node = looks
    notes = []
    for look in instances:
        restarts, age = look.read("restarts").value, look.read("process_young").value
        if (restarts is not None and restarts > 0) or (age is not None and age < 1):
            notes.append(f"{look.subject.name} was restarted lately: rates and quantiles mix two lives of the server")
    history = node.read("history").value
    if history is not None and history < 1:
        notes.append("Prometheus is younger than the window: figures cover only what it has seen")
    facts = node.facts
    refused = sorted(name for name, answer in facts.answers.items() if answer.get("error"))
    if refused:
        notes.append(
            f"Prometheus refused {len(refused)} of {len(facts.answers)} questions: {facts.answers[refused[0]]['error']}"
        )
    unseen = facts.snapshot.get("unseen") or []
    if unseen:
        notes.append(f"the snapshot could not see everything: {', '.join(sorted(str(one['what']) for one in unseen))}")
    return notes
