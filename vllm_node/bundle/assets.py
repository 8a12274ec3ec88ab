"""The small things: dashboards, and the toolkit itself with its example."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import jinja2.sandbox

from vllm_node.bundle.layout import BundleError, Part
from vllm_node.bundle.reporter import Reporter
from vllm_node.bundle.wheels import Toolkit
from vllm_node.bundle.workspace import Workspace
from vllm_node.paths import APP, project_root
from vllm_node.runner import environment, find_inventory

_IMPORTS = "grafana_dashboards_import"
_EXAMPLE = "inventories/example"


def imports(inventory: Sequence[str], vault_password_file: Path | None) -> list[Path]:
    """Dashboards that hosts of an inventory import. Raises BundleError: Ansible refuses it, or one is not there."""
    command = ["ansible-inventory", "--list"]
    for one in inventory:
        command += ["-i", find_inventory(one)]
    command += ["--vault-password-file", str(vault_password_file)] if vault_password_file else []
    variables = {**os.environ, **environment()}
    done = subprocess.run(command, env=variables, capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode != 0:
        raise BundleError(f"ansible-inventory cannot read the inventory: {(done.stderr or done.stdout).strip()}")
    hosts = json.loads(done.stdout).get("_meta", {}).get("hostvars", {}).values()
    folder = Path(find_inventory(inventory[0]))
    wanted = {path for host in hosts for path in _paths(host, folder if folder.is_dir() else folder.parent)}
    missing = sorted(str(path) for path in wanted if not path.exists())
    if missing:
        raise BundleError(f"{_IMPORTS} names what is not there: {', '.join(missing)}")
    files = {file for path in wanted for file in (path.glob("**/*.json") if path.is_dir() else [path])}
    return sorted(files)


def put_dashboards(work: Workspace, imported: Sequence[Path], reporter: Reporter) -> None:
    """The toolkit's own dashboards, and in a folder of their own those that the inventory imports. Raises OSError."""
    reporter.step("dashboards")
    work.begin_folder("dashboards")
    own = sorted((project_root() / "roles/grafana/files/dashboards").glob("*.json"))
    _put(work, "vllm-node", "dashboards/vllm-node", {path.name: path for path in own}, "from the toolkit")
    names = {path.name: path for path in imported}
    if len(names) != len(imported):
        raise BundleError(f"several dashboards of {_IMPORTS} have the same file name; rename one")
    if names:
        _put(work, "imported", "dashboards/imported", names, f"from the inventory ({_IMPORTS})")


def put_toolkit(work: Workspace, toolkit: Toolkit, reporter: Reporter) -> None:
    """The toolkit's wheel and the example inventory. Raises OSError."""
    reporter.step("toolkit")
    work.begin_folder("toolkit")
    example = project_root() / _EXAMPLE
    files = {path.relative_to(project_root()).as_posix(): path for path in example.rglob("*") if path.is_file()}
    files[toolkit.wheel.path.name] = toolkit.wheel.path
    details = {"version": str(toolkit.wheel.version)}
    _put(work, APP, "toolkit", files, toolkit.origin, "toolkit", details)


def _put(
    work: Workspace,
    name: str,
    folder: str,
    files: Mapping[str, Path],
    origin: str,
    kind: Any = "dashboards",
    details: Mapping[str, Any] | None = None,
) -> None:
    size = 0
    for inner, path in files.items():
        content = path.read_bytes()
        work.put(f"{folder}/{inner}", content)
        size += len(content)
    paths = [f"{folder}/{inner}" for inner in files]
    work.finish_part(Part(kind, name, folder, len(paths), size, origin, details or {}), paths)


def _paths(host: Mapping[str, Any], folder: Path) -> Iterator[Path]:
    jinja = jinja2.sandbox.SandboxedEnvironment(undefined=jinja2.StrictUndefined)  # no HTML here
    named = host.get(_IMPORTS) or []
    for text in named if isinstance(named, list) else [named]:
        try:
            yield Path(jinja.from_string(str(text)).render({**host, "inventory_dir": str(folder.absolute())}))
        except jinja2.TemplateError as error:
            raise BundleError(f"{_IMPORTS}: {text} is a template that only Ansible can fill in ({error})") from error
