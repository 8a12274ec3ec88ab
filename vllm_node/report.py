"""What runs where on a node, what its models answered, and how fast they are: the end of a bring-up."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from vllm_node.smoke import line


@dataclass
class Report:
    """What a bring-up has come to.

    rows: {unit, state, image, digest, address}; answers: {model, text, tokens (from the server's usage)}; measurements:
    those of `vllm_node.smoke`, as dictionaries.
    """

    host: str
    rows: list[dict[str, str]] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    question: str = ""
    measurements: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def build(
        cls,
        host: str,
        units: Sequence[Mapping[str, Any]],
        states: Mapping[str, Mapping[str, Any]],
        lock: Mapping[str, Mapping[str, Any]],
        answers: Sequence[Mapping[str, Any] | None],
    ) -> Report:
        """Put together what the roles staged, what systemd said, and what the models answered (None: nothing)."""
        rows = []
        for unit in units:
            image = lock.get(unit.get("image", ""), {})
            rows.append(
                {
                    "unit": unit["unit"],
                    "state": states[unit["unit"]]["state"],
                    "image": f"{image['repository']}:{image['tag']}" if image else "",
                    "digest": image.get("digest", ""),
                    "address": unit.get("address", ""),
                }
            )
        return cls(host, rows, [dict(each) for each in answers if each])

    def as_dict(self) -> dict[str, Any]:
        """For a program."""
        return asdict(self)


def text(report: Report, width: int = 140) -> str:
    """The report as a table, and below it the answers and the measurements."""
    table = Table(title=f"{report.host}: what runs where", title_justify="left")
    for column in ("unit", "state", "address", "image", "digest"):
        table.add_column(column, no_wrap=column != "image", overflow="fold")
    for row in report.rows:
        digest = row["digest"].removeprefix("sha256:")[:12]
        table.add_row(row["unit"], row["state"], row["address"], row["image"], digest)
    out = io.StringIO()
    # A model may answer with what rich takes for markup or for the name of an emoji: it is shown as it came.
    console = Console(file=out, width=width, color_system=None, markup=False, emoji=False)
    console.print(table)
    for answer in report.answers:
        console.print(f"{report.host} was asked: {report.question}")
        console.print(f"{answer['model']} answered ({answer['tokens']} tokens): {answer['text'].strip()!r}")
    for told in report.measurements:
        # Whole, whatever its length: it ends with a path.
        console.print(f"{report.host}: {line(told)}", soft_wrap=True)
    return out.getvalue().rstrip()
