"""What a look at a lock has come to: a state for each image, told as a table or as one JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from vllm_node.exit_codes import ExitCode
from vllm_node.images.lockfile import Entry
from vllm_node.images.resolve import Outcome, is_placeholder
from vllm_node.summary import print_table, short_digest

State = Literal["locked", "new", "moved", "incomplete", "differs", "gone", "unknown"]
"""As locked; never locked before; the tag names another digest; fields are missing; fields tell something else than the
registry does of the same digest; the registry has it no more; it could not be looked at."""

_SCHEMA = 1
_FIELDS = ("digest", "platform_digest", "size_bytes")
_HEAD = ("image", "tag", "state", "locked", "seen", "size")
_COULD_NOT_LOOK = ("refused", "tls", "unreachable", "busy", "stopped", "no skopeo")


def state_of(outcome: Outcome) -> State:
    """What one image has come to, whether or not it is then written."""
    entry, seen = outcome.entry, outcome.seen
    if seen is None:
        return "gone" if outcome.problem is not None and outcome.problem.kind == "absent" else "unknown"
    if not entry.digest or is_placeholder(entry):
        return "new"
    if entry.digest != seen.digest:
        return "moved"
    told = {field: getattr(entry, field) for field in _FIELDS}
    if None in told.values():
        return "incomplete"
    return "locked" if told == seen.values() else "differs"


@dataclass(frozen=True)
class Report:
    """One run over a lock. check: nothing was to be written; written: something was."""

    path: Path
    outcomes: Sequence[Outcome]
    check: bool
    written: bool
    took_s: float

    @property
    def exit_code(self) -> ExitCode:
        """What is wrong wins over what could not be looked at, and that over a lock that cannot be read."""
        kinds = {outcome.problem.kind for outcome in self.outcomes if outcome.problem is not None}
        drift = self.check and any(state_of(one) != "locked" for one in self.outcomes if one.seen is not None)
        if drift or kinds - {*_COULD_NOT_LOOK, "entry"}:
            return ExitCode.TASK_FAILED
        if kinds - {"entry"}:
            return ExitCode.UNREACHABLE
        return ExitCode.VALIDATION if kinds else ExitCode.OK

    def document(self) -> dict[str, Any]:
        """The whole report for a machine. What is not known is null."""
        return {
            "schema": _SCHEMA,
            "verb": "images lock",
            "check": self.check,
            "exit_code": int(self.exit_code),
            "outcome": self.exit_code.word,
            "took_s": round(self.took_s, 3),
            "lock": str(self.path),
            "written": self.written,
            "images": {outcome.entry.name: _document(outcome) for outcome in self.outcomes},
        }

    def print(self, console: Console) -> None:
        """The whole report for a person: the table, every problem, and what to do."""
        print_table(console, _HEAD, [_row(outcome) for outcome in self.outcomes])
        for line in (*self._problems(), self._verdict()):
            console.print(line, markup=False, soft_wrap=True)

    def _problems(self) -> list[str]:
        return [
            f"{one.entry.name}: {one.problem.text}. {one.problem.next_step}."
            for one in self.outcomes
            if one.problem is not None
        ] + [
            f"{one.entry.name}: the locked {one.entry.digest} can no longer be had from {one.entry.origin}. "
            "Keep what the site's registry and old bundles have of it until nodes run the new one."
            for one in self.outcomes
            if one.seen is not None and one.seen.locked_gone
        ]

    def _verdict(self) -> str:
        counted = {state: [one for one in self.outcomes if state_of(one) == state] for state in _ORDER}
        told = ", ".join(f"{len(found)} {state}" for state, found in counted.items() if found)
        return f"{self.path}: {told}. {self._next_step()}"

    def _next_step(self) -> str:
        if any(outcome.problem for outcome in self.outcomes):
            return "Nothing was written." if not self.check else "Nothing is written by --check."
        if not self.check:
            return "Written; look at the difference before you commit it." if self.written else "Nothing to write."
        if self.exit_code is ExitCode.OK:
            return "The lock is what the registries have."
        return "Run it without --check to write what was seen; --update NAME takes only that image."


_ORDER: tuple[State, ...] = ("locked", "new", "moved", "incomplete", "differs", "gone", "unknown")


def size(count: int | None) -> str:
    """Bytes for people, such as `8.31 GiB`; `-` for what is not known."""
    if count is None:
        return "-"
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(max(count.bit_length() - 1, 0) // 10, len(units) - 1)
    return f"{count} B" if power == 0 else f"{count / 1024**power:.2f} {units[power]}"


def _row(outcome: Outcome) -> list[str]:
    entry, seen = outcome.entry, outcome.seen
    return [
        entry.name,
        entry.tag or "-",
        state_of(outcome),
        "-" if is_placeholder(entry) else short_digest(entry.digest),
        short_digest(seen.digest if seen else None),
        size(seen.size_bytes if seen else entry.size_bytes),
    ]


def _document(outcome: Outcome) -> Mapping[str, Any]:
    entry, seen, problem = outcome.entry, outcome.seen, outcome.problem
    return {
        "source": entry.origin,
        "tag": entry.tag,
        "architecture": entry.architecture,
        "state": state_of(outcome),
        "locked": _locked(entry),
        "seen": seen.values() if seen else None,
        "locked_gone": seen.locked_gone if seen else None,
        "problem": {"kind": problem.kind, "text": problem.text, "next": problem.next_step} if problem else None,
    }


def _locked(entry: Entry) -> Mapping[str, Any]:
    return {field: None if field == "digest" and is_placeholder(entry) else getattr(entry, field) for field in _FIELDS}
