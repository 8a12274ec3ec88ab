"""`python -m vllm_node.dashboards.pictures --prometheus URL`: a picture of each dashboard for the docs."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from vllm_node.dashboards import store
from vllm_node.dashboards.asking import Answerer, Prometheus
from vllm_node.dashboards.drawing import picture

_POINTS = 240


def write(folder: Path, answer: Answerer) -> list[Path]:
    """Draw each stored dashboard into `folder`, with the thresholds that are shipped."""
    folder.mkdir(parents=True, exist_ok=True)
    thresholds = store.numbers({})
    written = []
    for path in store.paths():
        target = folder / f"{path.stem}.png"
        target.write_bytes(picture(json.loads(store.text(path, thresholds)), answer))
        written.append(target)
    return written


@click.command()
@click.option("--prometheus", required=True, metavar="URL", help="Address of a Prometheus that scrapes a node.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), default="docs/images", show_default=True)
@click.option("--minutes", type=click.IntRange(min=2), default=60, show_default=True, help="How far back to look.")
def main(prometheus: str, output: Path, minutes: int) -> None:
    """Draw each dashboard from the answers to its own queries."""
    span_s = minutes * 60.0
    try:
        answer = Prometheus(prometheus, time.time(), span_s, max(1.0, span_s / _POINTS))
        for path in write(output, answer):
            click.echo(path)
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{prometheus}: {error}") from error


if __name__ == "__main__":
    main()
