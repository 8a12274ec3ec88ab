"""How long units are waited for: slow is not dead, and what dies again and again for one reason is not slow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from vllm_node.last_words import explain
from vllm_node.last_words.cause import causes
from vllm_node.progress import elapsed

# For a unit that names no time of its own.
DEFAULT_BUDGET_S = 180.0
# Past its estimate a start that says nothing new for this long is given up; a compilation is the longest silence.
SILENCE_S = 600.0
_SHOWN_LINES = 25

State = Mapping[str, Any]


@dataclass(frozen=True)
class Patience:
    """`budget_s` is never passed; `estimate_s` only by a start that goes on, None where there is none."""

    budget_s: float = DEFAULT_BUDGET_S
    estimate_s: float | None = None


@dataclass
class Watch:
    """What was seen of the units so far."""

    patience: Mapping[str, Patience]
    _restarts: dict[str, int] = field(default_factory=dict)
    _news: dict[str, tuple[str, float]] = field(default_factory=dict)

    def lost(self, states: Mapping[str, State], elapsed_s: float) -> dict[str, str]:
        """Units that are given up `elapsed_s` after the wait began, and why, out of what each does now."""
        found = {}
        for unit, state in states.items():
            begun = self._restarts.setdefault(unit, state["restarts"])
            detail, since = self._news.get(unit, ("", 0.0))
            if detail != state["detail"]:
                since = elapsed_s
                self._news[unit] = state["detail"], since
            if state["state"] == "ready":
                continue
            why = self._why(unit, state, elapsed_s, since, state["restarts"] - begun)
            if why:
                found[unit] = why
        return found

    def _why(self, unit: str, state: State, elapsed_s: float, since: float, restarts: int) -> str | None:
        patience = self.patience.get(unit, Patience())
        if state["state"] == "dead":
            return str(state["detail"])
        if _same_death(state.get("log", ""), restarts):
            return f"{state['detail']}; each start died with the same words"
        if elapsed_s > patience.budget_s:
            return f"{state['detail']}; start_budget_s is over"
        silence = elapsed_s - since
        if patience.estimate_s is not None and elapsed_s > patience.estimate_s and silence > SILENCE_S:
            return (
                f"{state['detail']}; that for {duration(silence)}, "
                f"and all of it was to take less than {duration(patience.estimate_s)}"
            )
        return None


def duration(seconds: float) -> str:
    """Time in whole seconds, as nobody waits for tenths of them: `42 s`, `1:05`."""
    return f"{seconds:.0f} s" if seconds < 59.5 else elapsed(round(seconds))


def _same_death(log: str, restarts: int) -> bool:
    """Whether two starts since the wait began died of one cause that no further start will mend."""
    if restarts < 1:
        return False
    # The latest start may only have begun; what lies before the wait is not held against the unit.
    died = [found.word for found in islice(causes(log), restarts + 1) if found]
    return len(died) > 1 and len({word.id for word in died}) == 1 and not died[0].again


def waiting_line(host: str, waiting: Mapping[str, State], elapsed_s: float, weights_s: Mapping[str, float]) -> str:
    """One line for a person: what the units that are not ready do.

    `weights_s`: how long the weights of an instance will take to be read, by unit, where it is known.
    """
    parts = []
    for unit, state in waiting.items():
        phase = state.get("phase") or {}
        text = f"{unit.removesuffix('.service')} {state['detail']}"
        if phase.get("left_s") is not None:
            text += f", about {duration(phase['left_s'])} left"
        elif phase.get("phase") == "weights" and not phase["done"] and unit in weights_s:
            text += f", about {duration(weights_s[unit])} for all of them"
        parts.append(text)
    return f"{host}: {'; '.join(parts)} ({duration(elapsed_s)})"


def explained(host: str, lost: Mapping[str, str], states: Mapping[str, State], elapsed_s: float) -> str:
    """For a person: why units were given up, with their last lines, the cause that these show, and the next step."""
    parts: list[str] = []
    for unit, why in lost.items():
        parts.append(f"{host}: {unit} is not ready after {elapsed_s:.0f} s: {why}")
        log = str(states[unit].get("log") or "")
        shown = _shown(log)
        if shown:
            parts.append("its last lines:\n" + "\n".join("  | " + line for line in shown))
        cause = explain(log)
        known = cause.text if cause else "not one that is known; the lines above are all there is"
        parts.append("likely cause: " + known)
        if cause and not any(cause.line in line for line in shown):
            parts.append("  it said further up: " + cause.line[:400])
        parts.append(f"next: journalctl -u {unit} on {host}; mend it and run the same playbook again")
    return "\n".join(parts)


def shortened(states: Mapping[str, State]) -> dict[str, dict[str, Any]]:
    """The states with no more of each log than a person would read."""
    return {
        unit: {**state, "log": "\n".join(_shown(state["log"]))} if "log" in state else dict(state)
        for unit, state in states.items()
    }


def _shown(log: str) -> list[str]:
    return log.splitlines()[-_SHOWN_LINES:]
