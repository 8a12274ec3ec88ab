"""`vllm-node lab`: bring a lab up, look at it, enter a node, and end it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from vllm_node.lab import gpu, host, node, roots
from vllm_node.lab.errors import LabError
from vllm_node.lab.lab import Lab, default_name, names


def _readable_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except LabError as error:
            raise click.ClickException(str(error)) from error

    return wrapped


_name = click.option(
    "--name", default=default_name, show_default="this checkout's own", help="The lab's name."
)


@click.group("lab")
def lab_group() -> None:
    """A disposable lab on this machine: real systemd, podman, registry and vLLM; stand-ins only for GPUs."""


@lab_group.command()
@click.option("--install", is_flag=True, help="Install the missing Debian packages, as root.")
@_readable_errors
def check(install: bool) -> None:
    """Say what this machine lacks for a lab; exit code 1 when something is missing."""
    missing = host.missing()
    if install and host.can_install():
        host.install(missing)
        missing = host.missing()
    for thing in missing:
        click.echo(f"missing: {thing.what} - {thing.cure}")
    if missing:
        sys.exit(1)
    click.echo("a lab can boot here")


@lab_group.command()
@_name
@click.option("--node", "nodes", multiple=True, help="Name of a node; repeat it for several.  [default: node1]")
@click.option("--podman", type=click.Choice(sorted(roots.RELEASES)), default="5.4", show_default=True)
@click.option("--gpu", "profile", type=click.Choice(sorted(gpu.PROFILES)), default="h100x8", show_default=True)
@click.option("--cgroup", type=click.IntRange(1, 2), default=2, show_default=True)
@_readable_errors
def up(name: str, nodes: tuple[str, ...], podman: str, profile: str, cgroup: int) -> None:
    """Boot nodes and a registry. Nodes that already run stay as they are."""
    specs = [node.Spec(each, podman, profile, cgroup) for each in nodes or ("node1",)]
    if Lab.find(name) is None:
        click.echo("The first lab on a machine makes its images: about six minutes.", err=True)
    _show(Lab.up(name, specs))


@lab_group.command("list")
@click.option("--json", "as_json", is_flag=True, help="For a program.")
@_readable_errors
def list_(as_json: bool) -> None:
    """List all labs of this user and their nodes."""
    labs = [found for each in names() if (found := Lab.find(each))]
    if as_json:
        click.echo(json.dumps([_describe(each) for each in labs], indent=1))
        return
    if not labs:
        click.echo("no lab; `vllm-node lab up` makes one")
    for each in labs:
        _show(each)


@lab_group.command(context_settings={"ignore_unknown_options": True})
@_name
@click.argument("node_name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@_readable_errors
def ssh(name: str, node_name: str, command: tuple[str, ...]) -> None:
    """Enter a node, or run COMMAND on it."""
    words = [*_existing(name).ssh(node_name), *command]
    os.execvp(words[0], words)  # noqa: S606 - the terminal belongs to ssh from here on


@lab_group.command("disk")
@_name
@click.argument("node_name")
@click.option("--at", default="/srv/spare", show_default=True, help="Where it is mounted on the node.")
@_readable_errors
def disk_(name: str, node_name: str, at: str) -> None:
    """Give a node a disk of 64 MiB that may be filled. It goes with the node, or when it is unmounted."""
    lab = _existing(name)
    lab.ssh(node_name)
    lab.attach_disk(node_name, at)


@lab_group.command()
@_name
@click.option("--node", "nodes", multiple=True, help="End only this node; repeat it for several.")
@_readable_errors
def down(name: str, nodes: tuple[str, ...]) -> None:
    """End a lab, or some of its nodes, and remove what it made. Cached images stay."""
    found = Lab.find(name)
    if found is None:
        click.echo(f"there is no lab {name}")
        return
    for each in nodes:
        found.remove(each)
    if not nodes:
        found.down()


def _existing(name: str) -> Lab:
    found = Lab.find(name)
    if found is None:
        raise LabError(f"there is no lab {name}; `vllm-node lab up --name {name}` makes it")
    return found


def _describe(one: Lab) -> dict[str, Any]:
    return {
        "name": one.name,
        "registry": one.registry_address,
        "nodes": [
            {
                "name": member.spec.name,
                "address": one.place(member).address,
                "podman": member.spec.podman,
                "gpu": member.spec.gpu,
                "running": bool(member.process and member.process.alive),
            }
            for member in one.members
        ],
    }


def _show(one: Lab) -> None:
    table = Table("node", "address", "podman", "GPU stand-ins", "state", title=f"lab {one.name}")
    for member in _describe(one)["nodes"]:
        state = "running" if member["running"] else "ended"
        table.add_row(member["name"], member["address"], member["podman"], member["gpu"], state)
    Console().print(table)
