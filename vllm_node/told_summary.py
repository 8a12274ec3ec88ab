"""The summary of a verb whose playbook tells one thing of each host, beside the usual end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from vllm_node.runner import Event, HostResult
from vllm_node.summary import Summary


class ToldSummary(Summary):
    """A summary that also keeps what an action plugin tells of each host: the list or mapping `kept` of its result."""

    kept: ClassVar[str]

    def __init__(self, verb: str, command: str = "", *, check: bool = False) -> None:
        """Start with nothing known."""
        super().__init__(verb, command, check=check)
        # Host → the whole result, of which `msg` is the same as text.
        self._told: dict[str, Mapping[str, Any]] = {}

    def take(self, event: Event) -> None:
        """Take note of one event."""
        super().take(event)
        if isinstance(event, HostResult) and isinstance(event.result.get(self.kept), (list, Mapping)):
            self._told[event.host] = event.result

    def document(self) -> dict[str, Any]:
        """The summary's document; each host has what was kept, null when the run did not come that far."""
        document = super().document()
        for name, host in document["hosts"].items():
            host[self.kept] = self._told[name][self.kept] if name in self._told else None
        return document
