"""What `vllm-node diagnose` prints: the diagnosis of each node, and the usual end of a run."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from vllm_node.told_summary import ToldSummary

_STYLES = {"SUPPORTED": "bold yellow", "WEAKENED": "yellow", "HINTED": "dim"}


class DiagnoseSummary(ToldSummary):
    """A summary that also keeps what the action plugin `diagnose` tells."""

    kept = "diagnosis"

    def print(self, console: Console) -> None:
        """The diagnoses first."""
        for name in sorted(self._told):
            for line in str(self._told[name]["msg"]).splitlines():
                word = line.split(maxsplit=1)[0] if line.strip() else ""
                console.print(Text(line, style=_STYLES.get(word, "")), soft_wrap=True)
            console.print()
        super().print(console)
