"""`vllm-node bench`: what needs no node. The verb that runs one is in `vllm_node.cli`, with the other verbs."""

from __future__ import annotations

import json
from pathlib import Path

import click


class BenchGroup(click.Group):
    """`bench HOST` is short for `bench run HOST`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """What is no verb of ours is the name of a host."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["run", *args]
        return super().resolve_command(ctx, args)


@click.group("bench", cls=BenchGroup)
def bench_group() -> None:
    """Measure an instance and judge it by the SLO: `bench HOST`. Compare two runs: `bench compare A B`."""


@bench_group.command()
@click.argument("a", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("b", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default="comparison",
    show_default=True,
    help="Folder for the comparison.",
)
def compare(a: Path, b: Path, output: Path) -> None:
    """Put two runs (their run.json) side by side, with the uncertainty of each difference."""
    # No other verb of the command shall wait for what reports need.
    from vllm_node.bench.report import compare as comparing
    from vllm_node.bench.report import document, write

    try:
        found = comparing.compare(document.read(a), document.read(b))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    for path in write.comparison(found, output):
        click.echo(path)


@bench_group.command()
@click.option("--seconds", type=float, default=2.0, show_default=True, help="Length of a step.")
def selftest(seconds: float) -> None:
    """Find how much load this machine can make, against a server of our own that knows its times."""
    from vllm_node.load import selftest as ceiling

    click.echo(json.dumps(ceiling.ceiling(seconds=seconds), indent=1))
