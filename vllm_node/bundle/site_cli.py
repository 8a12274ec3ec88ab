"""`vllm-node bundle push` and `serve`: a bundle on the side without a way out. `load` is a playbook: vllm_node.cli."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.filesize import decimal

from vllm_node.bundle.layout import BundleError
from vllm_node.exit_codes import ExitCode, help_text

if TYPE_CHECKING:
    from vllm_node.bundle.push import Outcome

_EPILOG = f"\b\nExit codes:\n{help_text()}"
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_no_verify = click.option("--no-verify", is_flag=True, help="Do not read the whole bundle before: it was verified.")
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document to stdout, and nothing else.")


def register(group: click.Group) -> None:
    """Add these commands to `vllm-node bundle`."""
    group.add_command(push)
    group.add_command(serve)


@click.command(epilog=_EPILOG)
@click.argument("bundle", type=_FOLDER)
@click.option("--registry", required=True, metavar="HOST:PORT", help="The site's registry.")
@click.option("--prefix", default="", metavar="PATH", help="Path there, for images that the lock has elsewhere.")
@click.option("--only", multiple=True, metavar="NAME", help="Only this image. May be given several times.")
@click.option("--authfile", type=_FILE, help="Credentials, as `skopeo login --authfile FILE` writes them.")
@click.option("--cert-dir", type=_FOLDER, help="Folder with the registry's authority (*.crt), beside the system's own.")
@_no_verify
@_json
def push(
    bundle: Path,
    registry: str,
    prefix: str,
    only: tuple[str, ...],
    authfile: Path | None,
    cert_dir: Path | None,
    no_verify: bool,
    as_json: bool,
) -> None:
    """Bring the images of a bundle into the site's registry, with their digests unchanged. Needs skopeo.

    What is there already is not sent again. The registry is asked for the digest of each image at the end.
    """
    from vllm_node.bundle.push import Request
    from vllm_node.bundle.push import push as send
    from vllm_node.bundle.reporter import Reporter
    from vllm_node.images.skopeo import Access

    if cert_dir is not None and not any(cert_dir.glob("*.crt")):
        raise click.UsageError(f"--cert-dir {cert_dir}: there is no *.crt in it, and skopeo looks at no other names")
    request = Request(registry, prefix.strip("/"), frozenset(only), Access(authfile, cert_dir))
    if not no_verify:
        verified(bundle)
    try:
        with Reporter() as reporter:
            outcomes = send(bundle, request, reporter)
    except (BundleError, OSError) as error:
        raise _ended(error, ExitCode.TASK_FAILED) from error
    if as_json:
        document = {"schema": 1, "bundle": str(bundle), "registry": registry, "ok": _all_there(outcomes)}
        click.echo(json.dumps({**document, "images": [one.document() for one in outcomes]}, indent=2))
    else:
        _print_pushed(outcomes, registry)
    if not _all_there(outcomes):
        raise click.exceptions.Exit(int(ExitCode.TASK_FAILED))


def verified(bundle: Path) -> None:
    """Read the whole bundle; ends the command when it is not what its maker made, with all that is wrong."""
    from vllm_node.bundle.reporter import Reporter
    from vllm_node.bundle.verify import verify

    try:
        with Reporter() as reporter:
            verdict = verify(bundle, reporter)
    except (BundleError, OSError) as error:
        raise _ended(error, ExitCode.VALIDATION) from error
    if not verdict.ok:
        lines = "\n".join(f"  {problem.line()}" for problem in verdict.problems)
        raise _ended(f"{bundle} is not what its maker made; nothing was done:\n{lines}", ExitCode.VALIDATION)


def _ended(error: object, code: ExitCode) -> click.exceptions.Exit:
    click.echo(f"Error: {error}", err=True)
    return click.exceptions.Exit(int(code))


def _all_there(outcomes: Sequence[Outcome]) -> bool:
    return all(one.state != "failed" for one in outcomes)


def _print_pushed(outcomes: Sequence[Outcome], registry: str) -> None:
    out = Console(file=sys.stdout, highlight=False)

    def line(text: Any) -> None:
        out.print(text, markup=False, soft_wrap=True)

    for one in outcomes:
        if one.state != "failed":
            line(f"{one.part.name}: {one.state}, {decimal(one.bytes)}, {one.reference} (tag {one.tag})")
    for one in outcomes:
        if one.state == "failed":
            line(f"{one.part.name} is not in {one.repository}: {one.why}")
    states = [one.state for one in outcomes]
    told = ", ".join(f"{states.count(state)} {state}" for state in ("pushed", "present", "failed") if state in states)
    line(f"{registry}: {told}")


@click.command(epilog=_EPILOG)
@click.argument("bundle", type=_FOLDER)
@click.option("--address", required=True, help="Name or IP address of this machine, as nodes reach it.")
@click.option("--port", type=click.IntRange(1, 65535), default=5000, show_default=True, help="Of the registry.")
@click.option("--rpm-port", type=click.IntRange(1, 65535), help="Offer the RPMs as well, on this port.")
@click.option("--tls-cert", type=_FILE, help="Certificate with its chain, PEM.  [default: one of an own authority]")
@click.option("--tls-key", type=_FILE, help="Key of that certificate, PEM.")
@_no_verify
def serve(
    bundle: Path,
    address: str,
    port: int,
    rpm_port: int | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    no_verify: bool,
) -> None:
    """Offer a bundle as a registry and a repository of RPMs, read-only, until Ctrl-C: for the first node of a site.

    Needs a registry program (docker-registry, or registry of distribution).
    """
    import yaml

    from vllm_node.bundle.serve import Request, Tls, is_everywhere, serving

    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("Give --tls-cert and --tls-key, or neither.")
    if is_everywhere(address):
        raise click.UsageError(f"--address {address}: nodes need a name or an address that leads here.")
    if rpm_port == port:
        raise click.UsageError("Give the RPMs a port of their own.")
    tls = Tls(tls_cert, tls_key) if tls_cert and tls_key else None
    if not no_verify:
        verified(bundle)
    try:
        with serving(bundle, Request(address, port, rpm_port, tls)) as offer, contextlib.suppress(KeyboardInterrupt):
            click.echo(f"registry: https://{offer.registry}, read-only, {offer.images} images of {bundle}")
            if offer.rpms:
                click.echo(f"RPMs: https://{offer.rpms}/")
            click.echo("In the inventory:")
            click.echo(yaml.safe_dump(offer.variables(), sort_keys=False, width=1000).rstrip())
            click.echo("Ctrl-C ends it.")
            offer.wait()
    except BundleError as error:
        raise _ended(error, ExitCode.TASK_FAILED) from error
