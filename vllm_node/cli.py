"""The command line: a verb is a playbook, its options are those of the run. All else is in typed modules."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

import click
import yaml
from rich.console import Console

from vllm_node import __doc__ as about
from vllm_node.bench.cli import bench_group
from vllm_node.bench.summary import BenchSummary
from vllm_node.bundle.cli import bundle_group
from vllm_node.dashboards.cli import dashboards_group
from vllm_node.diagnosis.request import variables as diagnose_variables
from vllm_node.diagnosis.summary import DiagnoseSummary
from vllm_node.exit_codes import ExitCode, help_text
from vllm_node.fit.cli import here as plan_here
from vllm_node.fit.cli import plan_options
from vllm_node.fit.cli import variables as plan_variables
from vllm_node.fit.summary import PlanSummary
from vllm_node.gateway.cli import gateway_group
from vllm_node.generations.summary import HistorySummary, RollbackSummary
from vllm_node.images.cli import images_group
from vllm_node.metrics.offline import check_files
from vllm_node.metrics.summary import MetricsSummary
from vllm_node.models.cli import models_group
from vllm_node.progress import View, open_view
from vllm_node.remote import InventoryError, read_inventory
from vllm_node.render_summary import RenderSummary
from vllm_node.runner import PlaybookRun, PlayRequest, RunError
from vllm_node.serving.summary import ExplainSummary
from vllm_node.status import document, exit_code, print_status, read_all
from vllm_node.summary import Summary

_Command = TypeVar("_Command", bound=Callable[..., Any])
_EPILOG = f"\b\nExit codes:\n{help_text()}"


class _Group(click.Group):
    """Imports the lab's commands only when they are asked for: they need packages that a site does not."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Own commands, and `lab`."""
        return [*super().list_commands(ctx), "lab"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by name."""
        return _lab() if cmd_name == "lab" else super().get_command(ctx, cmd_name)


def _lab() -> click.Command:
    try:
        command = importlib.import_module("vllm_node.lab.cli").lab_group
    except ImportError as error:
        return _unavailable_lab(str(error))
    assert isinstance(command, click.Command)
    return command


def _unavailable_lab(reason: str) -> click.Command:
    @click.command(
        "lab",
        help="Disposable nodes on this machine (not available here).",
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
    )
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    def lab(words: tuple[str, ...]) -> NoReturn:
        raise click.ClickException(
            f"`vllm-node lab {' '.join(words)}` cannot run: {reason}. Install the extra packages: "
            "pip install 'vllm-node[lab]'"
        )

    return lab


@click.group(cls=_Group, help=about, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="vllm-node")
def cli() -> None:
    """The commands."""


def _inventory_options(command: _Command, *, limit: bool = True, required: bool = True) -> _Command:
    limits = [click.option("-l", "--limit", help="Only these hosts: a pattern as Ansible has it.")] if limit else []
    for option in (
        click.option(
            "--json", "as_json", is_flag=True, help="Print one JSON document to stdout, and nothing else."
        ),
        click.option(
            "--vault-password-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="File, or program, with the password of the inventory's vault.",
        ),
        *limits,
        click.option(
            "-i",
            "--inventory",
            multiple=True,
            required=required,
            help="Inventory: a file or a folder, such as inventories/lab.",
        ),
    ):
        command = option(command)
    return command


_extra_vars_option = click.option(
    "-e",
    "--extra-vars",
    multiple=True,
    metavar="KEY=VALUE",
    help="A variable that wins over the inventory: KEY=VALUE (text), a JSON or YAML mapping, or "
    "@FILE. Later ones win, and files lose against the rest.",
)


def _run_options(command: _Command) -> _Command:
    tags = click.option("-t", "--tags", help="Only tasks with one of these tags.")
    return _inventory_options(tags(_extra_vars_option(command)))


def _check_options(command: _Command) -> _Command:
    for option in (
        click.option(
            "--diff/--no-diff", default=None, help="Show what changes in files. Default: with --check."
        ),
        click.option("--check", is_flag=True, help="Change nothing; show what would be changed."),
    ):
        command = option(command)
    return command


@dataclass(frozen=True)
class _Asked:
    """What all verbs that run a playbook are given."""

    inventory: tuple[str, ...]
    limit: str | None
    vault_password_file: Path | None
    as_json: bool
    extra_vars: tuple[str, ...]
    tags: str | None = None
    check: bool = False
    diff: bool | None = None


@cli.command(epilog=_EPILOG)
@_check_options
@_run_options
def up(**options: Any) -> None:
    """Bring nodes up: from whatever they are to a model that answers. Can be repeated at any time."""
    _play("up", "site", _Asked(**options))


@cli.command(epilog=_EPILOG)
@_check_options
@_run_options
def upgrade(**options: Any) -> None:
    """Bring nodes to what the inventory says now, or back to what they had when that does not work."""
    _play("upgrade", "upgrade", _Asked(**options), None, RollbackSummary)


@cli.command(epilog=_EPILOG)
@click.argument("host")
@click.option("--to", type=click.IntRange(1), help="A generation of `vllm-node history`.  [default: the one before]")
@_check_options
@_extra_vars_option
@partial(_inventory_options, limit=False)
def rollback(host: str, to: int | None, **options: Any) -> None:
    """Bring HOST back to what it had before its last change, byte for byte: images, flags and files; not data."""
    _play("rollback", "rollback", _Asked(limit=host, **options), {"rollback_to": to or 0}, RollbackSummary)


@cli.command(epilog=_EPILOG)
@click.argument("host")
@partial(_inventory_options, limit=False)
def history(host: str, **options: Any) -> None:
    """Show what ran on HOST and when, who changed what, and what came of it. Changes nothing."""
    _play("history", "history", _Asked(limit=host, extra_vars=(), **options), None, HistorySummary)


@cli.command(epilog=_EPILOG)
@_run_options
def preflight(**options: Any) -> None:
    """Look whether nodes are fit, and list everything that is not, with how to mend it. Changes nothing."""
    _play("preflight", "preflight", _Asked(**options))


@cli.command(epilog=_EPILOG)
@plan_options
@_extra_vars_option
@partial(_inventory_options, limit=False, required=False)
def plan(
    host: str | None,
    instance: str | None,
    model: Path | None,
    inventory: tuple[str, ...],
    vault_password_file: Path | None,
    as_json: bool,
    extra_vars: tuple[str, ...],
    **here: Any,
) -> None:
    """Reckon whether the models of HOST fit its GPUs, how many tokens fit, and what to change. Changes nothing.

    An instance that runs is asked for its own figures, and the plan is held against them.
    """
    more = plan_variables(host, instance, model, **here)
    if more is None:
        assert model is not None
        if inventory or extra_vars:
            raise click.UsageError("-i and -e have no part in a plan for a folder on this machine.")
        _exit(plan_here(model, as_json=as_json, **here))
    if not inventory:
        raise click.UsageError("Give -i INVENTORY, so that HOST can be asked.")
    _play("plan", "plan", _Asked(inventory, host, vault_password_file, as_json, extra_vars), more, PlanSummary)


@cli.command(epilog=_EPILOG)
@_run_options
def verify(**options: Any) -> None:
    """Prove that what runs is what the inventory says. Changes nothing."""
    _play("verify", "verify", _Asked(**options))


@cli.command(epilog=_EPILOG)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default="rendered",
    show_default=True,
    help="Folder for the files; each host gets a folder in it.",
)
@_extra_vars_option
@_inventory_options
def render(output: Path, **options: Any) -> None:
    """Write what `up` would install to a folder here, and validate it. Connects to no node, needs no vault."""
    more: dict[str, object] = {"render_output": str(output.absolute())}
    _play("render", "render", _Asked(**options), more, RenderSummary)


@cli.command(epilog=_EPILOG)
@click.option(
    "--keep",
    multiple=True,
    type=click.Choice(["images", "data", "models"]),
    help="Leave these on the node; the certificate says so. May be given several times.",
)
@click.option(
    "--remove",
    multiple=True,
    type=click.Choice(["packages"]),
    help="Remove these too, which stay otherwise: RPMs that were installed, unless something else needs them.",
)
@_check_options
@_run_options
def down(keep: tuple[str, ...], remove: tuple[str, ...], **options: Any) -> None:
    """Remove all that vllm-node brought, prove that nodes are as they were found, issue the certificate."""
    asked = {"teardown_keep": list(keep), "teardown_remove": list(remove)}
    _play("down", "teardown", _Asked(**options), {name: value for name, value in asked.items() if value})


@cli.command(epilog=_EPILOG)
@click.argument("host")
@click.option("--window", help="How much of the past is looked at.  [default: 15m, or the client's time]")
@click.option("--at", metavar="TIME", help="End of that time: ISO 8601 with its offset, or seconds since 1970.")
@click.option(
    "--client",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What a client measured on its side, as JSON; docs/diagnosis.md shows the form.",
)
@partial(_inventory_options, limit=False)
def diagnose(host: str, window: str | None, at: str | None, client: Path | None, **options: Any) -> None:
    """Weigh what may be wrong with HOST: evidence for and against, and the next measurement. Changes nothing."""
    try:
        more = diagnose_variables(window, at, client)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    _play("diagnose", "diagnose", _Asked(limit=host, extra_vars=(), **options), more, DiagnoseSummary)


@cli.command(epilog=_EPILOG)
@click.argument("host")
@click.argument("instance", required=False, default="")
@click.option("--offline", is_flag=True, help="Read the inventory only, and ask no node.")
@_extra_vars_option
@partial(_inventory_options, limit=False)
def explain(host: str, instance: str, offline: bool, **options: Any) -> None:
    """Show each flag of vLLM on HOST, who set it and why, and where the vLLM that runs has another. Changes nothing."""
    more: dict[str, object] = {"explain_instance": instance, "explain_offline": offline}
    _play("explain", "explain", _Asked(limit=host, **options), more, ExplainSummary)


@cli.command(epilog=_EPILOG)
@_run_options
def rehearse(**options: Any) -> None:
    """Restart all units with the way out closed, and report who tried to leave. For a node that serves nobody yet."""
    _play("rehearse", "rehearse", _Asked(**options))


def _numbers(kind: type[float] | type[int]) -> Callable[[click.Context, click.Parameter, str], list[float]]:
    def parse(_ctx: click.Context, _parameter: click.Parameter, text: str) -> list[float]:
        try:
            found = [kind(one) for one in text.split(",") if one.strip()]
        except ValueError as error:
            raise click.BadParameter("numbers with commas between them, such as 2,4,8") from error
        if any(one <= 0 for one in found):
            raise click.BadParameter("numbers above 0")
        return found

    return parse


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@bench_group.command("run", epilog=_EPILOG)
@click.argument("host")
@click.option("--instance", default="", help="Name of the instance.  [default: the first one]")
@click.option("--workload", help="chat, rag, agent or smoke.  [default: chat]")
@click.option("--requests", type=_FILE, help="Your own requests instead, one JSON object a line (docs/workloads.md).")
@click.option("--reuse", is_flag=True, help="Send one of your requests more than once; this measures the prefix cache.")
@click.option("--api", type=click.Choice(["completions", "chat"]), default="completions", show_default=True)
@click.option("--param", multiple=True, metavar="KEY=VALUE", help="One more field of each request body.")
@click.option("--rate", "rates", default="", callback=_numbers(float), help="Requests a second.  [default: 1]")
@click.option("--clients", default="", callback=_numbers(int), help="Clients that wait for answers, a step each.")
@click.option("--trace", type=_FILE, help="Recorded arrivals instead of both, one a line (docs/workloads.md).")
@click.option("--speed", type=click.FloatRange(0, min_open=True), help="Play the trace so many times as fast.")
@click.option("--repeats", type=click.IntRange(1, 50), default=1, show_default=True, help="How often each step is run.")
@click.option("--duration", type=click.IntRange(5, 86400), help="Seconds of a stage.  [default: 120, or the trace's]")
@click.option("--lead-in", type=click.FloatRange(0), help="Seconds of these not scored.  [default: the inventory's]")
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed gives the same requests.")
@click.option("--max-in-flight", type=click.IntRange(1), default=256, show_default=True, help="Limit of the load.")
@click.option("--cross-check", is_flag=True, help="Ask vllm bench serve as well, at a light load, and compare.")
@click.option("--approved", is_flag=True, help="Measure although others use the instance at the moment.")
@click.option("--redact", is_flag=True, help="Replace names, addresses and serial numbers in what is written.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Folder for runs and reports.")
@partial(_inventory_options, limit=False)
def bench(
    host: str, inventory: tuple[str, ...], vault_password_file: Path | None, as_json: bool, **options: Any
) -> None:
    """Measure an instance of HOST under a load, and judge it by the SLO of the inventory (benchmark_slo).

    Ctrl-C ends the stage that runs, and what was measured is kept.
    """
    # No other verb of the command shall wait for what this one needs.
    from vllm_node.bench.request import variables

    try:
        more = variables(**options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    _play("bench", "benchmark", _Asked(inventory, host, vault_password_file, as_json, ()), more, BenchSummary)


@bundle_group.command("load", epilog=_EPILOG)
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--no-verify", is_flag=True, help="Do not read the whole bundle before: it was verified.")
@_check_options
@_run_options
def load_bundle(bundle: Path, no_verify: bool, **options: Any) -> None:
    """Bring the images of a bundle straight into podman's storage on nodes, where there is no registry.

    Only what a node needs and lacks is sent, with the digests of the image lock. `up` then pulls nothing.
    """
    from vllm_node.bundle.site_cli import verified

    if not no_verify:
        verified(bundle)
    _play("bundle load", "load", _Asked(**options), {"image_load_bundle": str(bundle.absolute())})


@cli.group(epilog=_EPILOG)
def metrics() -> None:
    """What metrics nodes offer, and whether all that rules and dashboards ask for is among them."""


@metrics.command(epilog=_EPILOG)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default="metrics-schema",
    show_default=True,
    help="Folder for the files, one a node.",
)
@_inventory_options
def snapshot(output: Path, **options: Any) -> None:
    """Save which metrics nodes offer: names, types, labels and edges, no values. Changes nothing on them."""
    more: dict[str, object] = {"metrics_output": str(output.absolute())}
    _play("metrics snapshot", "metrics", _Asked(extra_vars=(), **options), more, MetricsSummary)


@metrics.command("check", epilog=_EPILOG)
@click.option(
    "--schema",
    "schemas",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Check a file of `metrics snapshot` instead of a node. May be given several times.",
)
@click.option(
    "--scrape",
    "scrapes",
    multiple=True,
    metavar="JOB[@VERSION]=FILE",
    help="Check a saved page of metrics, such as vllm@0.33.0=page.txt, instead of a node. May be given several times.",
)
@partial(_inventory_options, required=False)
def check_metrics(schemas: tuple[Path, ...], scrapes: tuple[str, ...], **options: Any) -> None:
    """Look whether nodes offer every metric that rules, dashboards and diagnosis ask for. Changes nothing."""
    if bool(options["inventory"]) == bool(schemas or scrapes):
        raise click.UsageError("Give -i INVENTORY to ask nodes, or --schema and --scrape to look at files.")
    if options["inventory"]:
        _play("metrics check", "metrics", _Asked(extra_vars=(), **options), None, MetricsSummary)
    try:
        reports = check_files(schemas, scrapes)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if options["as_json"]:
        _print_json({"schema": 1, "checks": [report.as_dict() for report in reports]})
    else:
        for report in reports:
            _stdout().print(report.text(), markup=False, soft_wrap=True)
    _exit(ExitCode.OK if all(report.ok for report in reports) else ExitCode.TASK_FAILED)


@cli.command(epilog=_EPILOG)
@_inventory_options
def status(
    inventory: tuple[str, ...], limit: str | None, vault_password_file: Path | None, as_json: bool
) -> None:
    """Show units, containers, health and image digests of nodes, as they are now. Changes nothing."""
    try:
        targets = read_inventory(inventory, limit, vault_password_file)
    except InventoryError as error:
        raise click.UsageError(f"ansible-inventory cannot read the inventory: {error}") from error
    if not targets:
        raise click.UsageError("No host of the inventory matches. Look at the inventory and at --limit.")
    waiting = Console(stderr=True)
    with (
        waiting.status(f"asking {len(targets)} node(s)") if waiting.is_terminal else contextlib.nullcontext()
    ):
        nodes = read_all(targets, inventory)
    if as_json:
        _print_json(document(nodes))
    else:
        print_status(_stdout(), nodes)
    _exit(exit_code(nodes))


def parse_extra_vars(given: tuple[str, ...]) -> tuple[dict[str, object], tuple[Path, ...]]:
    """Variables and files of `-e`. Raises click.UsageError for what is neither."""
    values: dict[str, object] = {}
    files: list[Path] = []
    for text in given:
        key, equals, value = text.partition("=")
        if text.startswith("@"):
            path = Path(text[1:])
            if not path.is_file():
                raise click.UsageError(f"-e {text}: there is no file {path}")
            files.append(path)
        elif text.lstrip().startswith("{"):
            try:
                mapping = yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise click.UsageError(f"-e {text}: neither JSON nor YAML: {error}") from error
            if not isinstance(mapping, dict):
                raise click.UsageError(f"-e {text}: not a mapping")
            values.update({str(name): one for name, one in mapping.items()})
        elif equals and key.strip().isidentifier():
            values[key.strip()] = value
        else:
            raise click.UsageError(f"-e {text}: give KEY=VALUE, a mapping in braces, or @FILE")
    return values, tuple(files)


def _play(
    verb: str,
    playbook: str,
    asked: _Asked,
    more: dict[str, object] | None = None,
    kind: type[Summary] = Summary,
) -> NoReturn:
    values, files = parse_extra_vars(asked.extra_vars)
    request = PlayRequest(
        playbook=playbook,
        inventory=asked.inventory,
        limit=asked.limit,
        check=asked.check,
        diff=asked.check if asked.diff is None else asked.diff,
        tags=asked.tags,
        extra_vars={**values, **(more or {})},
        vars_files=files,
        vault_password_file=asked.vault_password_file,
    )
    summary = kind(verb, _again(verb, asked), check=asked.check)
    try:
        run = PlaybookRun(request)
    except RunError as error:
        raise click.UsageError(str(error)) from error
    # The progress goes to stderr, so that stdout holds the outcome and nothing else.
    with open_view(Console(stderr=True, highlight=False), verb) as view:
        _follow(run, summary, view)
    if asked.as_json:
        _print_json(summary.document())
    else:
        summary.print(_stdout())
    _exit(summary.exit_code)


_ENDS = (
    "Interrupted: the stage that runs is ended, and what was measured is written; this may take a minute. Once "
    "more to end at once, which leaves that unwritten and a load on the node until its time is over."
)


def _follow(run: PlaybookRun, summary: Summary, view: View) -> None:
    """Show the run to its end. The first Ctrl-C asks it to stop, the second one makes it."""
    interrupts = 0
    with run:
        while True:
            try:
                for event in run.events():
                    summary.take(event)
                    view.show(event)
                return
            except KeyboardInterrupt:
                interrupts += 1
                if interrupts == 1:
                    view.note(_ENDS if run.cancel() else "Interrupted: Ansible is asked to stop. Once more to kill it.")
                else:
                    run.kill()
            except Exception as error:
                summary.crashed(error)
                if os.environ.get("VLLM_NODE_DEBUG"):
                    view.note(traceback.format_exc())
                return


def _again(verb: str, asked: _Asked) -> str:
    """The call as the user may repeat it. Values of -e are left out, they may be secret."""
    words = ["vllm-node", verb]
    for one in asked.inventory:
        words += ["-i", one]
    words += ["--limit", asked.limit] if asked.limit else []
    return shlex.join(words) + (" -e …" if asked.extra_vars else "")


class _Stdout(Console):
    """Standard output. A reader that goes away, as `| head` does, does not change what a run has come to."""

    def on_broken_pipe(self) -> None:
        """Write the rest to nowhere; rich itself would exit with 1 here."""
        self.quiet = True
        _abandon_stdout()


def _stdout() -> Console:
    return _Stdout(file=sys.stdout, highlight=False)


def _print_json(value: dict[str, Any]) -> None:
    try:
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))
    except BrokenPipeError:
        _abandon_stdout()


def _abandon_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exit(code: ExitCode) -> NoReturn:
    raise click.exceptions.Exit(int(code))


def _on_sigterm(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


cli.add_command(dashboards_group)
cli.add_command(bench_group)
cli.add_command(bundle_group)
cli.add_command(gateway_group)
cli.add_command(images_group)
cli.add_command(models_group)


def main() -> NoReturn:
    """Entry point of `vllm-node`: every way out has its documented exit code."""
    # A run has a session of its own and would outlive us; a SIGTERM is to stop it as Ctrl-C does.
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:
        _abandon_stdout()
        code = ExitCode.OK
    except Exception as error:
        if os.environ.get("VLLM_NODE_DEBUG"):
            traceback.print_exc()
        hint = "Set VLLM_NODE_DEBUG=1 to see where."
        click.echo(f"vllm-node itself failed: {type(error).__name__}: {error}. {hint}", err=True)
        code = ExitCode.INTERNAL
    sys.exit(int(code) if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
