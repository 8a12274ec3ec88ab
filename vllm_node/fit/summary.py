"""What `vllm-node plan` prints: the plan of each instance, and the usual end of a run."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from vllm_node.fit.report import VERDICTS
from vllm_node.told_summary import ToldSummary

_STYLES = {
    "fits": "bold green",
    "may_not_fit": "bold yellow",
    "does_not_fit": "bold red",
    "impossible": "bold red",
    "unknown": "yellow",
}


class PlanSummary(ToldSummary):
    """A summary that also keeps what the action plugin `plan` tells."""

    kept = "plans"

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
