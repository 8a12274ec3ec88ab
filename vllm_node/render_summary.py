"""What `vllm-node render` has come to: where the files are, what was validated and what was not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from vllm_node.runner import Event, HostResult
from vllm_node.summary import Summary, print_findings

_VARIABLES = "variables against the roles' specifications, instances, ports, form of the image lock"
_NODE = "the nodes themselves: `vllm-node preflight` asks them"


class RenderSummary(Summary):
    """A summary that also keeps what the action plugins of `render.yml` tell."""

    def __init__(self, verb: str, command: str = "", *, check: bool = False) -> None:
        """Start with nothing known."""
        super().__init__(verb, command, check=check)
        self._rendered: dict[str, Mapping[str, Any]] = {}
        self._gaps: dict[str, list[str]] = {}

    def take(self, event: Event) -> None:
        """Take note of one event."""
        super().take(event)
        if isinstance(event, HostResult):
            if isinstance(event.result.get("rendered"), Mapping):
                self._rendered[event.host] = event.result["rendered"]
            self._gaps.setdefault(event.host, []).extend(event.result.get("not_validated") or [])

    def document(self) -> dict[str, Any]:
        """The summary's document; each host has `rendered`, null when the run did not come that far."""
        document = super().document()
        for name, host in document["hosts"].items():
            host["rendered"] = self._told(name) if name in self._rendered else None
        return document

    def print(self, console: Console) -> None:
        """Files first, then what was looked at, then the usual end."""
        print_findings(console, {name: host.findings for name, host in self.hosts.items() if host.findings})
        for name in sorted(self._rendered):
            rendered = self._told(name)
            _say(console, f"{name}: {len(rendered['written'])} files in {rendered['folder']}")
            for path in rendered["written"]:
                _say(console, f"{name}:   {path}")
            for path in rendered["withheld"]:
                _say(console, f"{name}:   {path} (not written: it holds a secret)")
            for line in rendered["validated"]:
                _say(console, f"{name}: validated: {line}")
            for line in rendered["not_validated"]:
                _say(console, f"{name}: NOT validated: {line}")
        super().print(console)

    def _told(self, host: str) -> dict[str, Any]:
        """What the plugins say about a host, together with what is true of each rendering."""
        rendered = self._rendered[host]
        gaps = [*self._gaps.get(host, []), *rendered["not_validated"], _NODE]
        return {**rendered, "validated": [_VARIABLES, *rendered["validated"]], "not_validated": gaps}


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
