"""The history of a node, and what a rollback came to, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

_REASON_CHARS = 600
# Outcomes as people read them. A run that ended leaves nothing unfinished, unless it was interrupted.
_OUTCOMES = {
    "installing": "interrupted, or still at work",
    "applied": "interrupted, or still at work",
    "found": "found",
    "rolled_back": "failed, rolled back",
}


def reason_of(host: str, said: str) -> str:
    """What a failure says in short: its first line, and the likely cause where one is known."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    cause = [line for line in lines[1:] if line.startswith("likely cause:") and "not one that is known" not in line]
    return "; ".join([*lines[:1], *cause]).removeprefix(f"{host}: ")[:_REASON_CHARS]


def outcome(generation: Mapping[str, Any]) -> str:
    """What has become of a generation. Whatever nobody saw ready is not called so."""
    return _OUTCOMES.get(generation["outcome"], str(generation["outcome"]))


def when(seconds: float | None) -> str:
    """A time by the clock of the node, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if seconds else "-"


def rows(generations: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A row for each generation, the newest first: number, when, verb, who, outcome, what changed."""
    found = []
    for one in reversed(generations):
        changes = "; ".join(one.get("changes") or [])
        told = f"{changes} ({one['reason']})" if one.get("reason") else changes
        verb = str(one.get("verb") or "-")
        if one.get("back_to"):
            verb = f"rollback to {one['back_to']}" + (" by itself" if one.get("instead_of") else "")
        found.append([str(one["number"]), when(one.get("begun_at")), verb, one.get("who") or "-", outcome(one), told])
    return found


HEAD = ("generation", "since", "verb", "who", "outcome", "changed")


def history(host: str, told: Mapping[str, Any]) -> str:
    """The history of a node as text, the newest generation first."""
    if not told["generations"]:
        return f"{host}: no generation is on record: the first change by `up` or `upgrade` makes one"
    lines = [f"{host}: " + "  ".join(cell for cell in row) for row in rows(told["generations"])]
    return "\n".join([*lines, *drift(host, told)])


def drift(host: str, told: Mapping[str, Any]) -> list[str]:
    """A line about files that are not what the newest generation has, if there are any."""
    differs = told["differs"]
    if not differs:
        return []
    more = f" and {len(differs) - 3} more" if len(differs) > 3 else ""
    return [f"{host}: changed by hand since: {', '.join(differs[:3])}{more}"]


@dataclass(frozen=True)
class Returned:
    """What a rollback came to.

    reason: what an upgrade failed with, None for a rollback on request; problem: why the node is not back; why: why
    there was nothing to go back to; advice: what the inventory has to say for the node to stay as it is.
    """

    host: str
    reason: str | None
    problem: str | None
    why: str | None
    number: int | None
    since: str
    images: dict[str, str] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    dry: bool = False

    @classmethod
    def of(cls, host: str, chosen: Mapping[str, Any], problem: str | None = None, *, dry: bool = False) -> Returned:
        """Out of an answer of `node_generation`; the time is now."""
        target = chosen.get("target")
        known = target or {"number": None, "images": {}, "units": []}
        current = chosen["generations"][-1] if chosen["generations"] else {}
        return cls(
            host=host,
            reason=_without_steps(host, said) if (said := chosen.get("said")) is not None else None,
            problem=problem,
            why=chosen.get("why"),
            number=known["number"],
            since=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            images=dict(known["images"]),
            changes=list(chosen.get("changes") or []),
            secrets=list(chosen.get("secrets") or []),
            advice=advice(current, target) if target else [],
            dry=dry,
        )

    @property
    def back(self) -> bool:
        """Whether the node is what it was, and was seen to be so."""
        return self.number is not None and self.problem is None and not self.dry

    def as_dict(self) -> dict[str, Any]:
        """For a program."""
        return {**asdict(self), "back": self.back}

    def text(self) -> str:
        """For a person: what failed, what the node is now, and what to do."""
        lines = [] if self.reason is None else ["the upgrade failed:", *_indented(self.reason)]
        return "\n".join(f"{self.host}: {line}" for line in [*lines, *self._state(), *self._next()])

    def _state(self) -> list[str]:
        if self.number is None:
            return [f"nothing was rolled back: {self.why}"]
        if self.problem is not None:
            return [f"it could NOT go back to generation {self.number}:", *_indented(self.problem)]
        if self.dry:
            return [f"it would go back to generation {self.number}", *_indented("\n".join(self.changes))]
        lines = [f"it is back on generation {self.number} since {self.since}: every unit is ready"]
        lines += _indented("\n".join(f"{unit}: {image}" for unit, image in sorted(self.images.items())))
        if self.secrets:
            lines.append(f"secrets are not rolled back; these are not what they were then: {', '.join(self.secrets)}")
        return lines

    def _next(self) -> list[str]:
        if self.number is None:
            return ["next: mend the cause and run the same again, or `vllm-node down`"]
        if self.problem is not None:
            return [
                "next: mend that and run `vllm-node rollback`, which goes on with it; "
                "`vllm-node history` tells what is there"
            ]
        if self.dry:
            return []
        lines = ["the inventory asks for something else now, and `vllm-node verify` says so until it does not:"]
        lines += _indented("\n".join([*self.advice, *(one for one in self.changes if ": image " not in one)]))
        if self.reason is not None:
            step = "next: do so, or give it what works, and run `vllm-node upgrade` again; `up` would not go back"
            return [*lines, step]
        return [*lines, "next: do so; `up` would bring back what was there before"]


def advice(current: Mapping[str, Any], target: Mapping[str, Any]) -> list[str]:
    """What an inventory that has brought up `current` has to say to get `target`."""
    before, names = current.get("images") or {}, _names(current) | _names(target)
    found = []
    for unit, reference in sorted(target["images"].items()):
        if reference != before.get(unit):
            repository, _, digest = reference.rpartition("@")
            name = names.get(unit)
            entry = f"images_lock.{name}" if name else f"the entry of images_lock for {unit}"
            found.append(f"{entry}: repository {repository}, digest {digest}")
    return found


def _without_steps(host: str, said: str) -> str:
    """What failed, without whose node it is and what to do about it: both are said of all of it together."""
    lines = [line.removeprefix(f"{host}: ") for line in said.splitlines()]
    return "\n".join(line for line in lines if not line.startswith("next: "))


def _names(generation: Mapping[str, Any]) -> dict[str, str]:
    """Names in the image lock by unit, without `.service`."""
    units = generation.get("units") or []
    return {one["unit"].removesuffix(".service"): one["image"] for one in units if one.get("image")}


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]
