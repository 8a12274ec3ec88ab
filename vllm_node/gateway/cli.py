"""`vllm-node gateway`: keys for its clients."""

from __future__ import annotations

import click

from vllm_node.exit_codes import help_text
from vllm_node.gateway import keys


@click.group("gateway")
def gateway_group() -> None:
    """The gateway of a node: keys for its clients."""


@gateway_group.command(epilog=f"\b\nExit codes:\n{help_text()}")
@click.option("--sha256", is_flag=True, help="Print its SHA-256 on a second line, for key_sha256 of a client.")
def key(sha256: bool) -> None:
    """Print a fresh random key, for an entry of gateway_clients.

    Nothing is kept: give it to the client, and put it into the vault of the inventory.
    """
    fresh = keys.fresh()
    click.echo(fresh)
    if sha256:
        click.echo(keys.digest(fresh))
