"""`vllm-node images`: the image lock, on the side that reaches the registries images come from."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from vllm_node.exit_codes import ExitCode, help_text
from vllm_node.images import lockfile
from vllm_node.images.lockfile import Entry, LockError, LockFile
from vllm_node.images.report import Report, size, state_of
from vllm_node.images.resolve import Outcome, resolve_all
from vllm_node.images.skopeo import Access, SkopeoError


@click.group("images")
def images_group() -> None:
    """The image lock: which images a site runs, by digest. Needs skopeo."""


@images_group.command(epilog=f"\b\nExit codes:\n{help_text()}")
@click.option("-i", "--inventory", multiple=True, help="Inventory whose lock is meant: a folder, or a file in it.")
@click.option(
    "--lock",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"The lock itself.  [default: {lockfile.PLACE} of the inventory]",
)
@click.option("--check", is_flag=True, help="Write nothing; exit code 4 when a tag has moved or an image is gone.")
@click.option("--update", "only", multiple=True, metavar="NAME", help="Only this image. May be given several times.")
@click.option(
    "--authfile",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Credentials, as `skopeo login --authfile FILE` writes them.",
)
@click.option(
    "--ca",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with authorities (*.crt) that registries are trusted by, beside the system's own.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document to stdout, and nothing else.")
def lock(
    inventory: tuple[str, ...],
    path: Path | None,
    check: bool,
    only: tuple[str, ...],
    authfile: Path | None,
    ca: Path | None,
    as_json: bool,
) -> None:
    """Write down which digest each tag of an inventory's images names now, or see whether it still does.

    Each image is looked up where it comes from (source, or repository where there is none). Nothing is written
    unless all of them were found.
    """
    if ca is not None and not any(ca.glob("*.crt")):
        raise click.UsageError(f"--ca {ca}: there is no *.crt in it, and skopeo looks at no other names")
    began = time.monotonic()
    try:
        file = LockFile.read(path or lockfile.find(_named(inventory)))
        entries = _chosen(file, only)
        with _progress(len(entries)) as told:
            outcomes = resolve_all(entries, Access(authfile, ca), told)
        written = False
        if not check and not any(outcome.problem for outcome in outcomes):
            values = {one.entry.name: one.seen.values() for one in outcomes if one.seen is not None}
            written = file.write(file.with_values(values))
    except LockError as error:
        raise click.UsageError(str(error)) from error
    except SkopeoError as error:
        raise click.ClickException(error.said) from error
    report = Report(file.path, outcomes, check, written, time.monotonic() - began)
    if as_json:
        click.echo(json.dumps(report.document(), indent=2, ensure_ascii=False))
    else:
        report.print(Console(file=sys.stdout, highlight=False))
    if report.exit_code is not ExitCode.OK:
        raise click.exceptions.Exit(int(report.exit_code))


def _named(inventory: tuple[str, ...]) -> tuple[str, ...]:
    if not inventory:
        raise click.UsageError("Give -i INVENTORY, or --lock FILE.")
    return inventory


def _chosen(file: LockFile, only: tuple[str, ...]) -> list[Entry]:
    known = {entry.name: entry for entry in file.entries}
    if not known:
        raise LockError(f"{file.path} holds no image")
    missing = sorted(set(only) - set(known))
    if missing:
        raise LockError(f"{file.path} has no image {', '.join(missing)}; it has {', '.join(sorted(known))}")
    return [entry for entry in file.entries if not only or entry.name in only]


@contextmanager
def _progress(count: int) -> Iterator[Callable[[Outcome], None]]:
    """How far it is, on stderr: a line that changes on a terminal, a line for each image elsewhere."""
    console = Console(stderr=True, highlight=False)
    done = 0
    words = "asking registries: {} of {} images"
    with console.status(words.format(0, count)) if console.is_terminal else contextlib.nullcontext() as status:

        def told(outcome: Outcome) -> None:
            nonlocal done
            done += 1
            if status is not None:
                status.update(words.format(done, count))
            else:
                told_size = f", {size(outcome.seen.size_bytes)}" if outcome.seen else ""
                console.print(
                    f"{done}/{count} {outcome.entry.name}: {state_of(outcome)}{told_size}", markup=False, soft_wrap=True
                )

        yield told
