"""What `vllm-node bench` has come to: the verdict of each node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from vllm_node.exit_codes import ExitCode
from vllm_node.runner import Event, HostResult
from vllm_node.summary import Summary

_CODES = {"pass": ExitCode.OK, "fail": ExitCode.SLO_FAILED, "insufficient": ExitCode.INSUFFICIENT}
_STYLES = {"pass": "bold green", "fail": "bold red", "insufficient": "bold yellow"}


class BenchSummary(Summary):
    """A summary that also keeps verdicts and reports; the exit code is that of the worst verdict."""

    def __init__(self, verb: str, command: str = "", *, check: bool = False) -> None:
        """Start with nothing known."""
        super().__init__(verb, command, check=check)
        self._told: dict[str, Mapping[str, Any]] = {}

    def take(self, event: Event) -> None:
        """Take note of one event."""
        super().take(event)
        if isinstance(event, HostResult) and isinstance(event.result.get("benchmark"), Mapping):
            self._told[event.host] = event.result

    @property
    def exit_code(self) -> ExitCode:
        """That of the run, and where the run was good that of the verdicts."""
        code = super().exit_code
        if code is not ExitCode.OK:
            return code
        codes = {_CODES[told["verdict"]["verdict"]] for told in self._told.values()}
        return next((one for one in (ExitCode.SLO_FAILED, ExitCode.INSUFFICIENT) if one in codes), ExitCode.OK)

    def _interrupted(self, again: str) -> list[str]:
        """What an interrupt left. A report that was written has all there is to say."""
        steps = [f"{name}: it ended early, and its report has what was measured until then." for name in self._told]
        if steps:
            return [*steps, f"To measure again: {again}."]
        loads = [
            f"{name}: a load may still run there, until its time is over; `systemctl stop vllm-node-load` ends it, and "
            "warnings about load may be silenced for as long."
            for name, host in self.hosts.items()
            if host.running and host.running.startswith("benchmark: ")
        ]
        return [*loads, *super()._interrupted(again)]

    def document(self) -> dict[str, Any]:
        """The summary's document; each host has `verdict` and `reports`, null when the run did not come that far."""
        document = super().document()
        for name, host in document["hosts"].items():
            told = self._told.get(name)
            host["verdict"] = told["verdict"] if told else None
            host["reports"] = told["reports"] if told else None
        return document

    def print(self, console: Console) -> None:
        """The verdicts first."""
        for name, told in sorted(self._told.items()):
            word = told["verdict"]["verdict"]
            console.print(Text(f"{name}: {word.upper()}", style=_STYLES[word]))
            for reason in told["verdict"]["reasons"]:
                console.print(f"  {reason}", markup=False, highlight=False, soft_wrap=True)
            rate = told["verdict"]["sustainable_rate_per_s"]
            if rate is not None:
                console.print(f"  held in all repeats: {rate:g} requests/s (measured)", markup=False, highlight=False)
            for path in told["reports"]:
                console.print(f"  {path}", markup=False, highlight=False, soft_wrap=True)
        super().print(console)
