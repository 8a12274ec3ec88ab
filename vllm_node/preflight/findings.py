"""Findings: what is wrong on a node, why that matters and how to mend it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

Level = Literal["fail", "warn"]

_WIDTH = 116
_MARGIN = 11


@dataclass(frozen=True)
class Finding:
    """One finding. `id` is stable and may stand in `preflight_ignore`; the texts are short sentences."""

    id: str
    level: Level
    seen: str
    why: str
    mend: str
    host: str = ""

    def as_dict(self) -> dict[str, str]:
        """For JSON and for Ansible's result."""
        return asdict(self)


def fail(check: str, seen: str, why: str, mend: str) -> Finding:
    """A finding that stops the bring-up."""
    return Finding(check, "fail", seen, why, mend)


def warn(check: str, seen: str, why: str, mend: str) -> Finding:
    """A finding to know about."""
    return Finding(check, "warn", seen, why, mend)


def finding(level: Level, check: str, seen: str, why: str, mend: str) -> Finding:
    """A finding whose level depends on the case."""
    return Finding(check, level, seen, why, mend)


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """What stops comes first; otherwise the order of the checks is kept."""
    return sorted(findings, key=lambda each: each.level != "fail")


def softened(
    findings: Sequence[Finding], ignore: Sequence[str], remark: str = "would stop here, but preflight_ignore names it"
) -> list[Finding]:
    """Turn the fails whose id is in `ignore` into warnings that say so, in the words of `remark`."""
    return [
        replace(each, level="warn", seen=f"{each.seen} ({remark})")
        if each.level == "fail" and each.id in ignore
        else each
        for each in findings
    ]


def render(host: str, findings: Sequence[Finding], so_far: str = "nothing has been changed") -> str:
    """All findings of one node as text: a line that counts, then three lines a finding.

    `so_far` says what a failure has left undone.
    """
    fails = sum(each.level == "fail" for each in findings)
    warns = len(findings) - fails
    if not findings:
        return f"{host}: preflight found nothing to complain about."
    verdict = so_far if fails else "none of them stops the bring-up"
    lines = [f"{host}: {_count(fails, 'failure')}, {_count(warns, 'warning')}; {verdict}."]
    for each in ordered(findings):
        lines += ["", f"{each.level.upper()} {each.id}"]
        lines += [
            _row(name, text) for name, text in (("seen", each.seen), ("why", each.why), ("mend", each.mend))
        ]
    return "\n".join(lines)


def _count(number: int, word: str) -> str:
    return f"{number or 'no'} {word}{'' if number == 1 else 's'}"


def _row(name: str, text: str) -> str:
    first = f"     {name}:".ljust(_MARGIN)
    # Paths, digests and image names must stay whole: they are copied from here.
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=" " * _MARGIN,
        break_long_words=False,
        break_on_hyphens=False,
    )
