"""What `vllm-node plan` prints: the plan of each instance, and the usual end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from vllm_node.fit.report import VERDICTS
from vllm_node.runner import Event, HostResult
from vllm_node.summary import Summary

_STYLES = {
    "fits": "bold green",
    "may_not_fit": "bold yellow",
    "does_not_fit": "bold red",
    "impossible": "bold red",
    "unknown": "yellow",
}


class PlanSummary(Summary):
    """A summary that also keeps what the action plugin `plan` tells."""

    def __init__(self, verb: str, command: str = "", *, check: bool = False) -> None:
        """Start with nothing known."""
        super().__init__(verb, command, check=check)
        self._told: dict[str, Mapping[str, Any]] = {}

    def take(self, event: Event) -> None:
        """Take note of one event."""
        super().take(event)
        if isinstance(event, HostResult) and isinstance(event.result.get("plans"), list):
            self._told[event.host] = event.result

    def document(self) -> dict[str, Any]:
        """The summary's document; each host has `plans`, null when the run did not come that far."""
        document = super().document()
        for name, host in document["hosts"].items():
            host["plans"] = self._told[name]["plans"] if name in self._told else None
        return document

    def print(self, console: Console) -> None:
        """The plans first."""
        for name in sorted(self._told):
            print_plans(console, str(self._told[name]["msg"]))
            console.print()
        super().print(console)


def print_plans(console: Console, told: str) -> None:
    """Text of plans, the verdicts in colour where there are colours."""
    words = {f": {word}: ": _STYLES[name] for name, word in VERDICTS.items()}
    for line in told.splitlines():
        style = next((style for word, style in words.items() if word in line and not line.startswith(" ")), "")
        console.print(Text(line, style=style), soft_wrap=True)
