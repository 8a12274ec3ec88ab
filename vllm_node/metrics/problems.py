"""What a check finds: problems, each told once with everything that asks for the metric, and gaps with their reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from vllm_node.metrics.uses import Use


@dataclass(frozen=True)
class Problem:
    """metric: the name that was asked for; seen: what is wrong with it; mend: the next step."""

    metric: str
    seen: str
    mend: str


@dataclass(frozen=True)
class Gap:
    """A metric, or one of its labels, that is not there and need not be."""

    metric: str
    reason: str


@dataclass
class Report:
    """Outcome of a check. `where` is the host or the file; `off` and `unread` are sentences."""

    where: str
    expressions: int = 0
    problems: dict[Problem, list[Use]] = field(default_factory=dict)
    gaps: dict[Gap, list[Use]] = field(default_factory=dict)
    off: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything that is asked for is there."""
        return not self.problems

    def problem(self, problem: Problem, use: Use | None = None) -> None:
        """Note a problem; the same one of another expression adds the expression only."""
        _add(self.problems.setdefault(problem, []), use)

    def gap(self, gap: Gap, use: Use) -> None:
        """Note a gap."""
        _add(self.gaps.setdefault(gap, []), use)

    def as_dict(self) -> dict[str, Any]:
        """For a program."""
        return {
            "where": self.where,
            "ok": self.ok,
            "expressions": self.expressions,
            "problems": [
                {"metric": one.metric, "seen": one.seen, "mend": one.mend, "asked_by": [str(use) for use in uses]}
                for one, uses in self.problems.items()
            ],
            "may_be_absent": [
                {"metric": one.metric, "reason": one.reason, "asked_by": [str(use) for use in uses]}
                for one, uses in self.gaps.items()
            ],
            "off": self.off,
        }

    def text(self) -> str:
        """For people: problems first, then what may be absent, then one line with the outcome."""
        lines = [line for problem, uses in self.problems.items() for line in self._problem_lines(problem, uses)]
        if self.gaps:
            lines.append(f"{self.where}: not there now, and need not be:")
            lines += [f"  {gap.metric}: {gap.reason}" for gap in sorted(self.gaps, key=lambda one: one.metric)]
        lines += [f"{self.where}: {sentence}" for sentence in self.off]
        count = len(self.problems)
        outcome = "every metric that they ask for is there" if self.ok else f"{count} problem{'s' if count > 1 else ''}"
        return "\n".join([*lines, f"{self.where}: {self.expressions} expressions, {outcome}"])

    def _problem_lines(self, problem: Problem, uses: Iterable[Use]) -> list[str]:
        asked = [f"  asked by {use}" for use in uses]
        return [f"{self.where}: {problem.metric} {problem.seen}", *asked, f"  next: {problem.mend}"]


def _add(uses: list[Use], use: Use | None) -> None:
    if use is not None and use not in uses:
        uses.append(use)
