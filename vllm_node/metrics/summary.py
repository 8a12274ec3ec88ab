"""What `vllm-node metrics` has come to, host by host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from vllm_node.runner import Event, HostResult
from vllm_node.summary import Summary


class MetricsSummary(Summary):
    """A summary that also keeps what the action plugins of `metrics.yml` tell."""

    def __init__(self, verb: str, command: str = "", *, check: bool = False) -> None:
        """Start with nothing known."""
        super().__init__(verb, command, check=check)
        self._checks: dict[str, Mapping[str, Any]] = {}
        self._files: dict[str, str] = {}
        self._texts: dict[str, str] = {}

    def take(self, event: Event) -> None:
        """Take note of one event."""
        super().take(event)
        if not isinstance(event, HostResult):
            return
        if isinstance(event.result.get("metrics_check"), Mapping):
            self._checks[event.host] = event.result["metrics_check"]
            self._texts[event.host] = str(event.result.get("msg", ""))
        if isinstance(event.result.get("metrics_schema_file"), str):
            self._files[event.host] = event.result["metrics_schema_file"]
            self._texts[event.host] = str(event.result.get("msg", ""))

    def document(self) -> dict[str, Any]:
        """The summary's document; each host has `metrics_check` and `metrics_schema_file`, null when not told."""
        document = super().document()
        for name, host in document["hosts"].items():
            host["metrics_check"] = self._checks.get(name)
            host["metrics_schema_file"] = self._files.get(name)
        return document

    def print(self, console: Console) -> None:
        """What is well first; what is not comes with the failures."""
        for name, text in self._texts.items():
            if self.hosts[name].failure is None:
                console.print(text, markup=False, highlight=False, soft_wrap=True)
        super().print(console)
