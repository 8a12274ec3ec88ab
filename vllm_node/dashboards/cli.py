"""`vllm-node dashboards`: what a downloaded dashboard is worth on a node, before it goes into an inventory."""

from __future__ import annotations

import json
from pathlib import Path

import click

from vllm_node.dashboards.importing import Verdict, judge
from vllm_node.exit_codes import ExitCode


@click.group("dashboards")
def dashboards_group() -> None:
    """Dashboards of others: see whether they would be imported. Needs no inventory."""


@dashboards_group.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--lenient",
    is_flag=True,
    help="Only warn of metrics that nobody has and of panels that Grafana converts, as "
    "grafana_dashboards_import_lenient does.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document to stdout, and nothing else.")
def check(files: tuple[Path, ...], lenient: bool, as_json: bool) -> None:
    """Judge dashboards FILES, JSON files or folders of them, as the import would. Exit code 3: one is refused."""
    verdicts = judge([str(path.absolute()) for path in files], lenient=lenient)
    if as_json:
        click.echo(json.dumps([verdict.as_dict() for verdict in verdicts], indent=2, ensure_ascii=False))
    else:
        click.echo("\n\n".join(told(verdict) for verdict in verdicts))
    if not all(verdict.taken for verdict in verdicts):
        raise click.exceptions.Exit(int(ExitCode.VALIDATION))


def told(verdict: Verdict) -> str:
    """A verdict for people: one line, then its reasons and warnings."""
    known = f" ({verdict.title}, uid {verdict.uid})" if verdict.title else ""
    head = f"{verdict.path}{known}: {'imported' if verdict.taken else 'refused'}"
    lines = [f"  refused because {text}" for text in verdict.reasons]
    return "\n".join([head, *lines, *(f"  warning: {text}" for text in verdict.warnings)])
