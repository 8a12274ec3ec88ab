"""What `vllm-node explain` prints: the flags of each instance, and the usual end of a run."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from vllm_node.told_summary import ToldSummary


class ExplainSummary(ToldSummary):
    """A summary that also keeps what the action plugin `explain` tells."""

    kept = "explanations"

    def print(self, console: Console) -> None:
        """The explanations first."""
        for name in sorted(self._told):
            for line in str(self._told[name]["msg"]).splitlines():
                style = "bold yellow" if line.strip().startswith("DIFFERS") else ""
                style = "bold" if line.rstrip().endswith("]") and " = " in line else style
                console.print(Text(line, style=style), soft_wrap=True)
            console.print()
        super().print(console)
