"""Writes the parts of `docs/` that repeat what the code says: `python -m vllm_node.docs`.

A unit test fails when they differ from what this module would write.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from vllm_node import runbooks
from vllm_node.bench import workloads_page as workloads
from vllm_node.diagnosis import page as hypotheses
from vllm_node.last_words import page as last_words
from vllm_node.metrics import page as metrics
from vllm_node.paths import project_root
from vllm_node.serving import page as profiles

BEGIN, END = "<!-- written by python -m vllm_node.docs -->", "<!-- end -->"

_VARIABLES = """# Variables

Written by `python -m vllm_node.docs` from each role's `meta/argument_specs.yml`; edit those.
A site sets them in its inventory, see [the example](../inventories/example). Preflight refuses a wrong type and a
misspelt name before anything is changed.
"""
_MAKERS = {"fail": ("fail",), "warn": ("warn",), "finding": ("fail", "warn"), "make": ("fail", "warn")}


def documents(root: Path) -> dict[Path, str]:
    """Text of each file of `docs/` that is written by this module, as it should be.

    Raises:
        ValueError: `docs/preflight.md` has lost the marks between which its table stands.
    """
    page = root / "docs/preflight.md"
    return {
        root / "docs/variables.md": variables(root / "roles"),
        page: _between(page, checks(root / "vllm_node")),
        **hypotheses.page(root / "docs/diagnosis.md", _between, _table),
        **last_words.page(root / "docs/last-words.md", _between, _table),
        **metrics.page(root / "docs/metrics.md", _between, _table),
        **profiles.page(root / "docs/profiles.md", _between, _table),
        **workloads.page(root / "docs/workloads.md", _between, _table),
        **runbooks.pages(root / "docs/runbooks"),
    }


def variables(roles: Path) -> str:
    """The page of all variables, a table a role."""
    parts = [_VARIABLES]
    for path in sorted(roles.glob("*/meta/argument_specs.yml")):
        spec = yaml.safe_load(path.read_text())["argument_specs"]["main"]
        rows = list(_rows("", spec.get("options") or {}))
        if rows:
            parts.append(f"## {path.parts[-3]}\n\n{_plain(spec['short_description'])}.\n")
            parts.append(_table(("variable", "type", "default", "meaning"), rows))
    return "\n".join(parts)


def _rows(prefix: str, options: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, option in options.items():
        kind = f"list of {option['elements']}" if "elements" in option else str(option["type"])
        if "choices" in option:
            kind += ": " + ", ".join(map(str, option["choices"]))
        default = "**required**" if option.get("required") else _value(option.get("default"))
        yield f"`{prefix}{name}`", kind, default, _plain(option["description"])
        yield from _rows(f"{prefix}{name}[].", option.get("options") or {})


def _value(value: object) -> str:
    if value is None:
        return ""
    # One line, as it would stand in an inventory.
    return f"`{yaml.safe_dump(value, default_flow_style=True, width=1000).splitlines()[0]}`"


def _plain(description: str | list[str]) -> str:
    """Ansible's markup as Markdown."""
    text = description if isinstance(description, str) else " ".join(description)
    return re.sub(r"C\(([^)]*)\)", r"`\1`", " ".join(text.split())).replace("|", "\\|")


def checks(package: Path) -> str:
    """The table of preflight's checks: id, levels, why it matters; read from the calls that make findings."""
    found: dict[str, tuple[set[str], str]] = {}
    for path in [*sorted((package / "preflight").glob("checks_*.py")), *sorted(package.glob("*inputs.py"))]:
        tree = ast.parse(path.read_text())
        names = _names(tree, path.relative_to(package.parent))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _MAKERS:
                first = 1 if node.func.id == "finding" else 0
                check, why = node.args[first], node.args[first + 2]
                assert isinstance(check, ast.Constant), f"{path}:{node.lineno}: the id of a check is a plain text"
                levels, _ = found.setdefault(str(check.value), (set(), _text(why, names)))
                levels.update(_MAKERS[node.func.id])
    rows = [(f"`{check}`", " or ".join(sorted(levels)), why) for check, (levels, why) in sorted(found.items())]
    return _table(("check", "level", "why it matters"), rows)


def _names(tree: ast.Module, path: Path) -> dict[str, ast.expr]:
    """What a name in a text stands for: texts of the module itself, and those that a check sets beforehand."""
    module = importlib.import_module(".".join(path.with_suffix("").parts))
    found: dict[str, ast.expr] = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    return found | {name: ast.Constant(value) for name, value in vars(module).items() if isinstance(value, str)}


def _text(node: ast.expr, names: Mapping[str, ast.expr]) -> str:
    """The text of an expression, with an ellipsis where a value of the node would stand."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, names) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, names)
    if isinstance(node, ast.Name) and node.id in names:
        return _text(names[node.id], names)
    if isinstance(node, ast.BinOp):
        return _text(node.left, names) + _text(node.right, names)
    if isinstance(node, ast.IfExp):
        return f"{_text(node.body, names)} Or: {_text(node.orelse, names)}"
    return "…"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = list(head)
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _between(page: Path, table: str) -> str:
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page} has no line {BEGIN} with {END} below it")
    return f"{before}{BEGIN}\n\n{table}\n{END}{after}"


def main() -> None:
    """Write all of them."""
    for path, text in documents(project_root()).items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
