"""What `vllm-node explain` prints: the flags of each instance, and the usual end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from vllm_node.runner import Event, HostResult
from vllm_node.summary import Summary


class ExplainSummary(Summary):
    """A summary that also keeps what the action plugin `explain` tells."""

    def __init__(self, verb: str, command: str = "", *, check: bool = False) -> None:
        """Start with nothing known."""
        super().__init__(verb, command, check=check)
        self._told: dict[str, Mapping[str, Any]] = {}

    def take(self, event: Event) -> None:
        """Take note of one event."""
        super().take(event)
        if isinstance(event, HostResult) and isinstance(event.result.get("explanations"), list):
            self._told[event.host] = event.result

    def document(self) -> dict[str, Any]:
        """The summary's document; each host has `explanations`, null when the run did not come that far."""
        document = super().document()
        for name, host in document["hosts"].items():
            host["explanations"] = self._told[name]["explanations"] if name in self._told else None
        return document

    def print(self, console: Console) -> None:
        """The explanations first."""
        for name in sorted(self._told):
            for line in str(self._told[name]["msg"]).splitlines():
                style = "bold yellow" if line.strip().startswith("DIFFERS") else ""
                style = "bold" if line.rstrip().endswith("]") and " = " in line else style
                console.print(Text(line, style=style), soft_wrap=True)
            console.print()
        super().print(console)
