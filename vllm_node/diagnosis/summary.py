"""What `vllm-node diagnose` prints: the diagnosis of each node, and the usual end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from vllm_node.runner import Event, HostResult
from vllm_node.summary import Summary

_STYLES = {"SUPPORTED": "bold yellow", "WEAKENED": "yellow", "HINTED": "dim"}


class DiagnoseSummary(Summary):
    """A summary that also keeps what the action plugin `diagnose` tells."""

    def __init__(self, verb: str, command: str = "", *, check: bool = False) -> None:
        """Start with nothing known."""
        super().__init__(verb, command, check=check)
        self._told: dict[str, Mapping[str, Any]] = {}

    def take(self, event: Event) -> None:
        """Take note of one event."""
        super().take(event)
        if isinstance(event, HostResult) and isinstance(event.result.get("diagnosis"), Mapping):
            self._told[event.host] = event.result

    def document(self) -> dict[str, Any]:
        """The summary's document; each host has `diagnosis`, null when the run did not come that far."""
        document = super().document()
        for name, host in document["hosts"].items():
            host["diagnosis"] = self._told[name]["diagnosis"] if name in self._told else None
        return document

    def print(self, console: Console) -> None:
        """The diagnoses first."""
        for name in sorted(self._told):
            for line in str(self._told[name]["msg"]).splitlines():
                word = line.split(maxsplit=1)[0] if line.strip() else ""
                console.print(Text(line, style=_STYLES.get(word, "")), soft_wrap=True)
            console.print()
        super().print(console)
