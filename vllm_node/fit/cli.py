"""`vllm-node plan`: whether a model fits, asked of a node or of a folder here."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from vllm_node.exit_codes import ExitCode
from vllm_node.fit import offline, settings
from vllm_node.fit.report import text
from vllm_node.fit.summary import print_plans
from vllm_node.serving.flags.known import version_of

_Command = TypeVar("_Command", bound=Callable[..., Any])
_ONLY_HERE = ("gpu_memory", "node_memory", "gpus", "args", "env", "vllm")


def plan_options(command: _Command) -> _Command:
    """Arguments and options of the verb, but for those of an inventory."""
    for option in (
        click.option("--vllm", metavar="VERSION", help="With --model: version of vLLM, such as 0.32.0."),
        click.option("--env", multiple=True, metavar="KEY=VALUE", help="With --model: a variable of the environment."),
        click.option("--arg", "args", multiple=True, metavar="KEY=VALUE", help="With --model: a flag of vllm serve."),
        click.option("--node-memory", metavar="SIZE", help="With --model: no GPU, the CPU build on such a node."),
        click.option("--gpus", type=click.IntRange(1, 64), help="With --model: how many GPUs.  [default: 1]"),
        click.option("--gpu-memory", metavar="SIZE", help="With --model: memory of each GPU, such as 80GiB."),
        click.option(
            "--model",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="A model's folder on this machine; no node is asked.",
        ),
        click.argument("instance", required=False),
        click.argument("host", required=False),
    ):
        command = option(command)
    return command


def variables(host: str | None, instance: str | None, model: Path | None, **here: Any) -> dict[str, object] | None:
    """What the playbook is given; None when a folder on this machine is meant.

    Raises:
        click.UsageError: options of one way together with those of the other.
    """
    if model is not None:
        if host:
            raise click.UsageError("Give either HOST, or --model for a folder on this machine.")
        return None
    used = [f"--{name.replace('_', '-').removesuffix('s') if name == 'args' else name.replace('_', '-')}" for name in
            _ONLY_HERE if here.get(name)]  # fmt: skip
    if used:
        raise click.UsageError(f"{', '.join(used)}: only with --model; a node's own GPUs and settings count otherwise.")
    if not host:
        raise click.UsageError("Give HOST and -i INVENTORY to ask a node, or --model DIR --gpu-memory SIZE.")
    return {"plan_instance": instance or ""}


def here(
    model: Path,
    *,
    gpu_memory: str | None,
    gpus: int | None,
    node_memory: str | None,
    args: tuple[str, ...],
    env: tuple[str, ...],
    vllm: str | None,
    as_json: bool,
) -> ExitCode:
    """Plan for a folder, print it, and say with the exit code whether it fits.

    Raises:
        click.UsageError: a value that cannot be understood, or a folder that is no model.
    """
    if bool(gpu_memory) == bool(node_memory):
        raise click.UsageError("Give --gpu-memory SIZE, or --node-memory SIZE for vLLM on a CPU.")
    try:
        known = version_of(vllm) if vllm else None
        if vllm and known is None:
            raise ValueError(f"{vllm!r} is no version")
        given = settings.arguments(args)
        if gpus is None and gpu_memory:
            gpus = settings.read(given).gpus
        plan = offline.plan_folder(
            model,
            given,
            settings.arguments(env),
            gpu_bytes=offline.memory_bytes(gpu_memory) if gpu_memory else None,
            gpus=gpus or 1,
            node_bytes=offline.memory_bytes(node_memory) if node_memory else None,
            version=known,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        click.echo(json.dumps({"schema": 1, "plans": [plan.document()]}, indent=2, ensure_ascii=False))
    else:
        print_plans(Console(file=sys.stdout, highlight=False), text(plan))
    return ExitCode.VALIDATION if plan.verdict in ("does_not_fit", "impossible") else ExitCode.OK
