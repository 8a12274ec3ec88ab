"""`vllm-node bundle`: everything that a site without internet needs, in one folder that can be verified."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from vllm_node.bundle import site_cli
from vllm_node.bundle.layout import BundleError, Folder, Manifest
from vllm_node.exit_codes import ExitCode, help_text

if TYPE_CHECKING:
    from vllm_node.bundle.create import Made
    from vllm_node.bundle.verify import Verdict

_EPILOG = f"\b\nExit codes:\n{help_text()}"
_SIZE = re.compile(r"(\d+) ?([KMGT]i?)?B?", re.IGNORECASE)
_ALWAYS: tuple[Folder, ...] = ("images", "wheels", "collections", "dashboards", "toolkit")
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group("bundle")
def bundle_group() -> None:
    """Everything that a site without internet needs, in one folder: make it, bring it, verify it."""


site_cli.register(bundle_group)


def _bytes(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """Bytes of a size such as `4GiB` or `700MB`."""
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is no size, such as 4GiB or 700MB")
    unit = (match[2] or "").lower()
    base = 1024 if unit.endswith("i") else 1000
    return int(match[1]) * int(base ** (" kmgt".index(unit[0]) if unit else 0))


def _models(_ctx: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or not name or not path:
            raise click.BadParameter(f"{text}: give NAME=FOLDER")
        if name in found:
            raise click.BadParameter(f"{name} is given twice")
        found[name] = Path(path)
    return found


@bundle_group.command(epilog=_EPILOG)
@click.option("-i", "--inventory", multiple=True, required=True, help="Inventory of the site: a folder or a file.")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder that becomes the bundle."
)
@click.option("--no-images", is_flag=True, help="Leave the images as they are.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(get_args(Folder)),
    help="Make only this, and leave the rest as it is. May be given several times.",
)
@click.option("--model", "models", multiple=True, metavar="NAME=FOLDER", callback=_models, help="A model. Repeatable.")
@click.option("--rpms", type=_FOLDER, help="Folder with RPMs, and with public keys (RPM-GPG-KEY*).")
@click.option("--rpm", "rpm_names", multiple=True, metavar="NAME", help="An RPM that dnf downloads. Repeatable.")
@click.option(
    "--python",
    "pythons",
    multiple=True,
    metavar="3.12",
    help="Bring wheels for this Python on RHEL 9 and later. Repeatable.  [default: the running one, on this machine]",
)
@click.option("--toolkit", type=_FILE, help="Wheel of this toolkit.  [default: built from the checkout]")
@click.option("--authfile", type=_FILE, help="Credentials, as `skopeo login --authfile FILE` writes them.")
@click.option("--ca", type=_FOLDER, help="Folder with authorities (*.crt) of registries, beside the system's own.")
@click.option("--lock", type=_FILE, help="The image lock.  [default: that of the inventory]")
@click.option("--vault-password-file", type=_FILE, help="File, or program, with the password of the inventory's vault.")
@click.option("--sign-key", type=_FILE, help="Sign with this ssh key; with one of an agent, name its public half.")
@click.option("--part-size", callback=_bytes, help="Cut it into parts as well (OUTPUT.parts), of 50GB or 4095MiB.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document to stdout, and nothing else.")
def create(part_size: int | None, as_json: bool, no_images: bool, only: tuple[Folder, ...], **given: Any) -> None:
    """Make a bundle, or go on where an interrupted run was. On the side that reaches registries and indexes.

    What is there and whole is not fetched again. On a finished bundle, the kinds that are asked for are renewed.
    """
    from vllm_node.bundle.create import Request
    from vllm_node.bundle.create import create as make
    from vllm_node.bundle.reporter import Reporter
    from vllm_node.bundle.split import SMALLEST_PART_BYTES, split
    from vllm_node.images.skopeo import Access

    wanted = _wanted(only, no_images, given)
    if part_size is not None and part_size < SMALLEST_PART_BYTES:
        raise click.UsageError(f"--part-size {part_size}: parts have at least {SMALLEST_PART_BYTES} bytes")
    access = Access(given.pop("authfile"), given.pop("ca"))
    request = Request(folders=frozenset(wanted), access=access, **given)

    def run() -> None:
        with Reporter() as reporter:
            made = make(request, reporter)
            parts = made.bundle.with_name(f"{made.bundle.name}.parts")
            listing = split(made.bundle, parts, part_size, reporter) if part_size is not None else None
        document = _made_document(made)
        if listing is not None:
            document["parts_folder"], document["parts_count"] = str(parts), len(listing.sizes)
        if as_json:
            click.echo(json.dumps(document, indent=2, ensure_ascii=False))
            return
        _print_contents(made.manifest)
        signed = "signed" if made.signed else "not signed (--sign-key)"
        click.echo(f"{made.bundle}: {made.files} files, {decimal(made.bytes)}, {signed}")
        if listing is not None:
            click.echo(f"{parts}: {len(listing.sizes)} parts. On the other side: vllm-node bundle join {parts.name} …")
        click.echo(f"Bring it over, and there: vllm-node bundle verify {made.bundle.name}")

    _guarded(run, ExitCode.TASK_FAILED)


@bundle_group.command(epilog=_EPILOG)
@click.argument("bundle", type=_FOLDER)
@click.option("--allowed-signers", type=_FILE, help="Who may sign, as ssh-keygen has it; a signature is wanted then.")
@click.option("--require-signature", is_flag=True, help="Refuse a bundle without signature. Needs --allowed-signers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document to stdout, and nothing else.")
def verify(bundle: Path, allowed_signers: Path | None, require_signature: bool, as_json: bool) -> None:
    """Read every file of a bundle, and list everything that is wrong with it. Needs no network."""
    from vllm_node.bundle.reporter import Reporter
    from vllm_node.bundle.verify import verify as look

    if require_signature and allowed_signers is None:
        raise click.UsageError("--require-signature needs --allowed-signers: a signature by anybody proves nothing")

    def run() -> None:
        with Reporter() as reporter:
            verdict = look(bundle, reporter, allowed_signers=allowed_signers, require_signature=require_signature)
        if as_json:
            click.echo(json.dumps(verdict.document(), indent=2, ensure_ascii=False))
        else:
            _print_verdict(verdict)
        if not verdict.ok:
            raise click.exceptions.Exit(int(ExitCode.VALIDATION))

    _guarded(run, ExitCode.VALIDATION)


@bundle_group.command(epilog=_EPILOG)
@click.argument("folder", type=_FOLDER)
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder that becomes the bundle."
)
def join(folder: Path, output: Path) -> None:
    """Make a bundle of the parts in FOLDER, or go on where an interrupted run was. Needs no network."""
    from vllm_node.bundle.join import join as put_together
    from vllm_node.bundle.reporter import Reporter

    def run() -> None:
        with Reporter() as reporter:
            made = put_together(folder, output, reporter)
        click.echo(f"{made} is there. Now: vllm-node bundle verify {made}")

    _guarded(run, ExitCode.VALIDATION)


def _guarded(run: Callable[[], None], code: ExitCode) -> None:
    try:
        run()
    except (BundleError, OSError) as error:
        click.echo(f"Error: {error}", err=True)
        raise click.exceptions.Exit(int(code)) from error


def _wanted(only: tuple[Folder, ...], no_images: bool, given: dict[str, Any]) -> set[Folder]:
    """Kinds to make: what was named, else everything that needs no further word and what options ask for."""
    asked: dict[Folder, bool] = {
        "models": bool(given["models"]),
        "rpms": bool(given["rpms"] or given["rpm_names"]),
    }
    if only and no_images:
        raise click.UsageError("Give --only or --no-images, not both.")
    wanted: set[Folder] = set(only) or {*_ALWAYS, *(folder for folder, is_asked in asked.items() if is_asked)}
    for folder, is_asked in asked.items():
        option = "--model" if folder == "models" else "--rpms or --rpm"
        if folder in wanted and not is_asked:
            raise click.UsageError(f"--only {folder} needs {option}.")
        if is_asked and folder not in wanted:
            raise click.UsageError(f"{option} is without effect when --only leaves {folder} out.")
    return wanted - {"images"} if no_images else wanted


def _made_document(made: Made) -> dict[str, Any]:
    return {
        "schema": 1,
        "bundle": str(made.bundle),
        "created_at": made.manifest.created_at,
        "files": made.files,
        "bytes": made.bytes,
        "signed": made.signed,
        "parts": [part.as_dict() for part in made.manifest.parts],
    }


def _stdout() -> Console:
    return Console(file=sys.stdout, highlight=False)


def _print_contents(manifest: Manifest) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("kind", "parts", "size"):
        table.add_column(column, justify="left" if column == "kind" else "right")
    for folder in sorted({part.folder for part in manifest.parts}):
        parts = [part for part in manifest.parts if part.folder == folder]
        table.add_row(folder, str(len(parts)), decimal(sum(part.bytes for part in parts)))
    _stdout().print(table)


def _print_verdict(verdict: Verdict) -> None:
    out = _stdout()
    for problem in verdict.problems:
        out.print(problem.line(), markup=False, soft_wrap=True)
    if verdict.manifest is not None and verdict.ok:
        _print_contents(verdict.manifest)
    signed = {
        "none": "It is not signed.",
        "trusted": f"Signed by {verdict.signed.signer} with the {verdict.signed.key}.",
        "unknown": f"Signed with the {verdict.signed.key}; whether to trust it only --allowed-signers can tell.",
        "untrusted": f"Signed with the {verdict.signed.key}, which is not allowed.",
        "broken": "Its signature is not over these sums.",
    }[verdict.signed.state]
    read = f"{verdict.files} files, {decimal(verdict.bytes)} read"
    count = len(verdict.problems)
    outcome = "whole" if verdict.ok else f"{count} problem{'s' if count > 1 else ''}: do not use it"
    out.print(f"{verdict.bundle}: {outcome} ({read}). {signed}", markup=False, soft_wrap=True)

