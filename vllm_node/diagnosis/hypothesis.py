"""A hypothesis with its signs, and the rule by which it is judged.

Two signs of one family are one observation. A hypothesis is supported only when all signs that it needs are there,
signs of at least two families agree, and none speaks against it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from vllm_node.diagnosis.look import Reading

Relation = Literal["above", "below"]
_HOLDS: dict[Relation, Callable[[float, float], bool]] = {"above": operator.gt, "below": operator.lt}
# One signal may be wrong, or have another cause: two that do not depend on each other are the least for a claim.
FAMILIES_NEEDED = 2


class Verdict(StrEnum):
    """What the signals say of a hypothesis, the strongest first."""

    SUPPORTED = "supported"
    WEAKENED = "weakened"
    HINTED = "hinted"
    UNOBSERVABLE = "unobservable"
    UNSUPPORTED = "unsupported"


MEANING = {
    Verdict.SUPPORTED: "signals that do not depend on each other agree, and none speaks against it",
    Verdict.WEAKENED: "signals agree, and another one speaks against it",
    Verdict.HINTED: "one observation points there, which is not enough for a claim",
    Verdict.UNOBSERVABLE: "what would show it, or rule it out, is missing",
    Verdict.UNSUPPORTED: "what it would show is not there",
}


@dataclass(frozen=True)
class Sign:
    """A signal above or below a threshold."""

    signal: str
    relation: Relation
    limit: str


def above(signal: str, limit: str) -> Sign:
    """The signal is greater than the threshold of that name."""
    return Sign(signal, "above", limit)


def below(signal: str, limit: str) -> Sign:
    """The signal is less than the threshold of that name."""
    return Sign(signal, "below", limit)


@dataclass(frozen=True)
class Next:
    """The measurement that would tell a hypothesis from its look-alikes, and how to read it.

    `command` and `query` may hold {node}, {instance}, {unit}, {port} and {window}; a query goes to Prometheus.
    """

    tells: str
    command: str = ""
    query: str = ""


@dataclass(frozen=True)
class Hypothesis:
    """One idea of what is going on. `scope`: whether it is about an instance or about the node.

    given: what must be so for it to be asked at all, and is no evidence. needs: without these it cannot be.
    helps: more of what it would show. against: what would not go with it. explains: hypotheses that are only its
    consequence where both are supported.
    """

    id: str
    claim: str
    scope: Literal["instance", "node"]
    next: Next
    given: tuple[Sign, ...] = ()
    needs: tuple[Sign, ...] = ()
    helps: tuple[Sign, ...] = ()
    against: tuple[Sign, ...] = ()
    explains: tuple[str, ...] = ()

    @property
    def signs(self) -> tuple[Sign, ...]:
        """All of them."""
        return (*self.given, *self.needs, *self.helps, *self.against)


@dataclass(frozen=True)
class Mark:
    """A sign that was looked at. `holds` None: the signal is unobservable."""

    sign: Sign
    reading: Reading
    limit: float
    holds: bool | None


@dataclass(frozen=True)
class Judgement:
    """A hypothesis and what was seen of it. `families`: observations for it that do not depend on each other."""

    hypothesis: Hypothesis
    verdict: Verdict
    given: list[Mark]
    needs: list[Mark]
    helps: list[Mark]
    against: list[Mark]

    @property
    def seen_for(self) -> list[Mark]:
        """Signs that hold and speak for it."""
        return [mark for mark in (*self.needs, *self.helps) if mark.holds]

    @property
    def seen_against(self) -> list[Mark]:
        """What speaks against it: a contrary sign, or an expected one that is not there."""
        contrary = [mark for mark in self.against if mark.holds]
        return contrary + [mark for mark in (*self.given, *self.needs, *self.helps) if mark.holds is False]

    @property
    def missing(self) -> list[Mark]:
        """Signs that could not be looked at."""
        marks = (*self.given, *self.needs, *self.helps, *self.against)
        return [mark for mark in marks if mark.holds is None]

    @property
    def families(self) -> list[str]:
        """Families of the signs that hold."""
        return sorted({mark.reading.signal.family for mark in self.seen_for})


def judge(hypothesis: Hypothesis, read: Callable[[str], Reading], limits: Mapping[str, float]) -> Judgement:
    """Look at all signs of a hypothesis, and say what they come to."""

    def mark(sign: Sign) -> Mark:
        reading, limit = read(sign.signal), limits[sign.limit]
        holds = None if reading.value is None else _HOLDS[sign.relation](reading.value, limit)
        return Mark(sign, reading, limit, holds)

    given, needs, helps, against = (
        [mark(sign) for sign in signs]
        for signs in (hypothesis.given, hypothesis.needs, hypothesis.helps, hypothesis.against)
    )
    return Judgement(hypothesis, _verdict([*given, *needs], [*needs, *helps], against), given, needs, helps, against)


def _verdict(wanted: list[Mark], evidence: list[Mark], against: list[Mark]) -> Verdict:
    if any(mark.holds is False for mark in wanted):
        return Verdict.UNSUPPORTED
    if any(mark.holds is None for mark in wanted):
        return Verdict.UNOBSERVABLE
    families = {
        state: {mark.reading.signal.family for mark in evidence if mark.holds is state} for state in (True, False, None)
    }
    contrary = any(mark.holds for mark in against)
    if len(families[True]) >= FAMILIES_NEEDED:
        return Verdict.WEAKENED if contrary else Verdict.SUPPORTED
    if families[True]:
        return Verdict.UNSUPPORTED if contrary else Verdict.HINTED
    # One observation is as little a proof of absence as of presence.
    return Verdict.UNSUPPORTED if len(families[False]) >= FAMILIES_NEEDED else Verdict.UNOBSERVABLE
