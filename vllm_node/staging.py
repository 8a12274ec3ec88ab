"""What the component roles want on a node, collected before anything is written there.

Each role stages its files, secrets and units; they travel as host facts named `_staged_<part>`, which live as long
as the run. `quadlet` installs them in one call, `stack` starts their units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PREFIX = "_staged_"


@dataclass(frozen=True)
class Staged:
    """Everything staged for one host.

    files: {path, content, mode, owner, group, secret, live}; secrets: {name, value}; volumes: names;
    units: {unit, component, image, address, gpu, ready, reload} with `ready` and `reload` as `stack` understands them;
    checks: {image, folder, at, argv}, programs that judge files before they are installed.
    """

    files: list[dict[str, Any]] = field(default_factory=list)
    secrets: list[dict[str, Any]] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    units: list[dict[str, Any]] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)


def fact_name(part: str) -> str:
    """Name of the fact that carries `part` (letters, digits and dashes)."""
    return PREFIX + part.replace("-", "_")


def collect(variables: Mapping[str, Any], scope: str) -> Staged:
    """Put together what was staged for `scope`; a secret may be shared by parts that agree on its value.

    Raises:
        ValueError: two parts want the same file, secret or unit.
    """
    staged = Staged()
    owners: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {}
    for name in sorted(name for name in variables if name.startswith(PREFIX)):
        part = variables[name]
        if part["scope"] != scope:
            continue
        for kind, key, target in (
            ("files", "path", staged.files),
            ("secrets", "name", staged.secrets),
            ("units", "unit", staged.units),
        ):
            for entry in part[kind]:
                owner, known = owners.setdefault((kind, entry[key]), (part["part"], entry))
                if known is entry:
                    target.append(entry)
                elif kind != "secrets" or known != entry:
                    raise ValueError(f"{owner} and {part['part']} both want {entry[key]}")
        staged.volumes.extend(part["volumes"])
        staged.checks.extend(part["checks"])
    return staged
