"""What `vllm-node upgrade`, `rollback` and `history` have come to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from vllm_node.exit_codes import ExitCode
from vllm_node.generations.told import HEAD, drift, rows
from vllm_node.runner import Event, HostResult
from vllm_node.summary import Summary, print_table
from vllm_node.told_summary import ToldSummary


class RollbackSummary(Summary):
    """A summary that also keeps what the action plugin `rollback_report` tells."""

    def __init__(self, verb: str, command: str = "", *, check: bool = False) -> None:
        """Start with nothing known."""
        super().__init__(verb, _call(verb, command), check=check)
        self._told: dict[str, Mapping[str, Any]] = {}
        self._texts: dict[str, str] = {}

    def take(self, event: Event) -> None:
        """Take note of one event."""
        super().take(event)
        if isinstance(event, HostResult) and isinstance(event.result.get("rollback"), Mapping):
            self._told[event.host] = event.result["rollback"]
            self._texts[event.host] = str(event.result.get("msg", ""))

    @property
    def exit_code(self) -> ExitCode:
        """That of the run; where all nodes that failed are back on what they had, its own."""
        code = super().exit_code
        failed = [name for name, host in self.hosts.items() if host.failure]
        if code is ExitCode.TASK_FAILED and failed and all(self._is_back(name) for name in failed):
            return ExitCode.ROLLED_BACK
        return code

    def document(self) -> dict[str, Any]:
        """The summary's document; each host has `rollback`, null when nothing was to be rolled back."""
        document = super().document()
        for name, host in document["hosts"].items():
            host["rollback"] = self._told.get(name)
        return document

    def print(self, console: Console) -> None:
        """What went well first; what did not comes with the failures."""
        for name, text in self._texts.items():
            if self.hosts[name].failure is None:
                console.print(text, markup=False, highlight=False, soft_wrap=True)
        super().print(console)

    def _is_back(self, name: str) -> bool:
        return name in self._told and bool(self._told[name]["back"])

    def _next_steps(self) -> list[str]:
        """The advice of the rollback stands with the failure and is not repeated."""
        if self.exit_code is ExitCode.ROLLED_BACK:
            return []
        steps = super()._next_steps()
        if self.verb == "rollback" and any(host.failure and host.counts.changed for host in self.hosts.values()):
            steps.append("To go to what was ready last: the same without --to.")
        return steps

    def _interrupted(self, again: str) -> list[str]:
        """What an interrupt left."""
        steps = super()._interrupted(again)
        return [*steps, "To go back to what was there before: `vllm-node rollback HOST` with the same inventory."]


def _call(verb: str, command: str) -> str:
    """The call to repeat: `rollback` and `history` name their host themselves."""
    return command if verb == "upgrade" else command.replace(" --limit ", " ")


class HistorySummary(ToldSummary):
    """A summary that also keeps the history of each node."""

    kept = "history"

    def __init__(self, verb: str, command: str = "", *, check: bool = False) -> None:
        """Start with nothing known."""
        super().__init__(verb, _call(verb, command), check=check)

    def print(self, console: Console) -> None:
        """The history first."""
        for name in sorted(self._told):
            told = self._told[name]["history"]
            if told["generations"]:
                print_table(console, HEAD, rows(told["generations"]))
            else:
                console.print(f"{name}: no generation is on record yet", markup=False, highlight=False)
            for line in drift(name, told):
                console.print(line, markup=False, highlight=False, soft_wrap=True)
        super().print(console)
