"""`vllm-node models`: describe a model's folder by a manifest, and hold a folder against one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import click
from rich.console import Console

from vllm_node.byte_progress import shown, sized
from vllm_node.exit_codes import ExitCode
from vllm_node.models import manifest as manifests


@click.group("models")
def models_group() -> None:
    """Folders of models: their manifests, by which nodes prove that they serve what was meant. Needs no inventory."""


@models_group.command()
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the manifest to this file.  [default: stdout]",
)
@click.option(
    "--check",
    "known",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Make none; compare DIR with the manifest in this file and list every difference.",
)
@click.option("--workers", type=click.IntRange(1), help="How many files are read at a time.  [default: one a core]")
@click.option("--json", "as_json", is_flag=True, help="With --check: print one JSON document to stdout.")
def manifest(folder: Path, output: Path | None, known: Path | None, workers: int | None, as_json: bool) -> None:
    """Describe the model in DIR: SHA-256 and size of each file, and whether the model is whole.

    Exit code 3: the model is not whole (the manifest says why, and is written all the same), or DIR differs.
    """
    if known and output:
        raise click.UsageError("Give --output to make a manifest, or --check to compare with one.")
    if output and folder.resolve() in output.resolve().parents:
        raise click.UsageError(f"{output} lies in {folder}: the manifest would be one of the files that it describes.")
    try:
        if known:
            _compare(folder, known, workers, as_json)
        _make(folder, output, workers)
    except manifests.ManifestError as error:
        raise click.UsageError(str(error)) from error


def _make(folder: Path, output: Path | None, workers: int | None) -> None:
    with shown(_stderr(), f"hashing {folder}", _total_bytes(folder)) as progress:
        made = manifests.make(folder, workers, progress)
    if output is None:
        click.echo(made.text(), nl=False)
    else:
        manifests.write(made, output)
        click.echo(f"{output}: {made.name}, {len(made.files)} files, {sized(made.total_bytes)}")
    for path, why in sorted((made.left_out or {}).items()):
        click.echo(f"left out: {path}, {why}", err=True)
    for problem in made.problems:
        click.echo(f"problem: {problem}", err=True)
    if made.problems:
        raise click.exceptions.Exit(int(ExitCode.VALIDATION))


def _compare(folder: Path, known: Path, workers: int | None, as_json: bool) -> NoReturn:
    wanted = manifests.read(known)
    with shown(_stderr(), f"hashing {folder}", _total_bytes(folder)) as progress:
        found = manifests.compare(wanted, folder, workers, progress)
    if as_json:
        differences = [{"path": each.path, "seen": each.seen} for each in found]
        click.echo(json.dumps({"schema": 1, "name": wanted.name, "differences": differences}, indent=1))
    else:
        for each in found:
            click.echo(str(each))
        word = f"{len(found)} differences from" if found else "is what is described in"
        click.echo(f"{folder}: {word} {known} ({len(wanted.files)} files, {sized(wanted.total_bytes)})")
    raise click.exceptions.Exit(int(ExitCode.VALIDATION if found else ExitCode.OK))


def _total_bytes(folder: Path) -> int:
    try:
        return sum(manifests.sizes(folder).values())
    except OSError as error:
        raise manifests.ManifestError(f"{folder} cannot be read: {error}") from error


def _stderr() -> Console:
    return Console(stderr=True, highlight=False)
