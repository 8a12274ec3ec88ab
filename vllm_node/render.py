"""What a bring-up would install on a node, written to a folder of the control host and validated there.

Nobody is connected to. Secrets are not written, and not even read: see `judge_inputs`.
"""

from __future__ import annotations

import ast
import csv
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from vllm_node import inputs
from vllm_node.preflight import Finding, judge, wanted_from
from vllm_node.preflight.findings import fail, ordered, softened
from vllm_node.staging import Staged

PLACEHOLDER = "(secret, not rendered)"
# A folder that carries this file is ours to empty.
MARK = ".rendered-by-vllm-node"

_GENERATORS = ("/usr/libexec/podman/quadlet", "/usr/lib/systemd/system-generators/podman-system-generator")
_QUADLET_FOLDER = "/etc/containers/systemd/"
_PROMETHEUS = "/etc/vllm-node/prometheus/prometheus.yml"
_UNIT_KINDS = (".container", ".service", ".target", ".volume", ".network")
_WHY = "The program that reads it on the node would refuse it."
_MEND = "Correct the variables that go into it, or the role's template."
# Facts about nodes to be, which nothing but a node can satisfy: told, but no reason to stop here.
_FOR_LATER = ("lock.placeholder",)


class RenderError(Exception):
    """The output folder cannot be used. The text says why and what to do."""


@dataclass(frozen=True)
class JudgedInputs:
    """What is wrong with a host's variables; what hides its secrets; what could not be looked at, and why."""

    findings: list[Finding]
    placeholders: dict[str, Any]
    not_validated: list[str]


@dataclass
class Rendered:
    """One host's files: paths below `folder`. `validated` and `not_validated` are lines for people."""

    folder: str
    written: list[str] = field(default_factory=list)
    withheld: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    validated: list[str] = field(default_factory=list)
    not_validated: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For Ansible's result and for `--json`; findings travel beside it."""
        told = asdict(self)
        del told["findings"]
        return told


def judge_inputs(
    host: str, variables: Mapping[str, Any], template: Callable[[Any], Any], roles: Path
) -> JudgedInputs:
    """Judge variables and image lock as preflight does, without a snapshot.

    A secret that is defined over a closed vault is no mistake here: its name counts, its value is not needed.
    """
    specs = inputs.load_specs(roles)
    hidden = {name: _hidden(variables.get(name), keys) for name, keys in inputs.secret_keys(specs).items()}
    given = {**variables, **{name: entries for name, entries in hidden.items() if entries is not None}}
    values, undefined = inputs.resolve(inputs.names(specs), given, template)
    secrets = inputs.secret_names(specs)
    closed = sorted(secrets & undefined.keys())
    placeholders = {name: PLACEHOLDER for name in sorted(secrets) if name in values or name in closed}
    placeholders |= {name: values[name] for name, entries in hidden.items() if entries is not None and name in values}
    for name in closed:
        del undefined[name]
        values[name] = PLACEHOLDER
    wanted = wanted_from(host, inputs.with_defaults(values, specs))
    found = softened(
        inputs.check(values, specs, defined=[*variables], undefined=undefined, host=host), wanted.limits.ignore
    )
    found += softened(judge({}, wanted), _FOR_LATER, "a bring-up will stop here")
    gaps = [f"{name}: its vault is not open here" for name in closed]
    return JudgedInputs(ordered(found), placeholders, gaps)


def _hidden(entries: Any, keys: frozenset[str]) -> list[Any] | None:
    """A list of dictionaries with a word in the place of each secret; None when it is not written as one."""
    if not isinstance(entries, list):
        return None
    return [
        {**entry, **dict.fromkeys(keys & entry.keys(), PLACEHOLDER)} if isinstance(entry, Mapping) else entry
        for entry in entries
    ]


def render(host: str, folder: Path, staged: Iterable[Staged]) -> Rendered:
    """Write what was staged below `folder`, each file at its path on the node, and validate it.

    A file that only root may read on the node holds a secret and is left out.

    Raises:
        RenderError: `folder` holds something else than an earlier rendering.
    """
    parts = list(staged)
    files = {entry["path"]: entry for part in parts for entry in part.files}
    done = Rendered(str(folder), secrets=sorted(secret["name"] for part in parts for secret in part.secrets))
    _empty(folder)
    for path, entry in sorted(files.items()):
        if not int(entry["mode"], 8) & 0o044:
            done.withheld.append(path)
            continue
        target = folder / PurePosixPath(path).relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(entry["content"], encoding="utf-8")
        target.chmod(int(entry["mode"], 8))
        done.written.append(path)
    texts = {path: entry["content"] for path, entry in files.items()}
    _validate_syntax(texts, done)
    _validate_units(texts, done)
    _validate_prometheus(folder, texts, done)
    if done.secrets:
        done.not_validated.append(f"values of podman secrets: {', '.join(done.secrets)}")
    done.findings = [replace(each, host=host) for each in done.findings]
    return done


def _empty(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise RenderError(f"{folder} holds files that were not rendered; give another --output, or remove it")
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).touch()


def _validate_syntax(texts: Mapping[str, str], done: Rendered) -> None:
    counts: dict[str, int] = {}
    for path, text in texts.items():
        kind = "unit" if path.endswith(_UNIT_KINDS) else PurePosixPath(path).suffix.lstrip(".")
        check = _SYNTAX.get(kind)
        if check is None:
            continue
        counts[kind] = counts.get(kind, 0) + 1
        problem = check(text)
        if problem:
            done.findings.append(fail("render.syntax", f"{path}: {problem}", _WHY, _MEND))
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    done.validated.append(f"syntax ({kinds})")


def _json(text: str) -> str | None:
    try:
        json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}"
    return None


def _yaml(text: str) -> str | None:
    try:
        yaml.safe_load(text)
    except yaml.YAMLError as error:
        return f"no YAML: {' '.join(str(error).split())}"
    return None


def _python(text: str) -> str | None:
    try:
        ast.parse(text, feature_version=(3, 9))
    except SyntaxError as error:
        return f"no Python 3.9: {error}"
    return None


def _counters(text: str) -> str | None:
    """The DCGM exporter's rules: a comment, or exactly three columns."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    wrong = [row for row in csv.reader(lines) if len(row) != 3]
    return f"not three columns: {wrong[0]}" if wrong else None


def _unit(text: str) -> str | None:
    section = None
    for number, line in enumerate(text.replace("\\\n", "").splitlines(), 1):
        if re.fullmatch(r"\[[A-Za-z-]+\]", line):
            section = line
        elif not line.strip() or line.startswith(("#", ";")):
            continue
        elif section is None or not re.match(r"[A-Za-z][A-Za-z0-9-]*\s*=", line):
            return f"line {number} is neither a section nor Key=value below one: {line}"
    return None if section else "it has no section"


_SYNTAX: dict[str, Callable[[str], str | None]] = {
    "csv": _counters,
    "json": _json,
    "py": _python,
    "unit": _unit,
    "yaml": _yaml,
    "yml": _yaml,
}


def _validate_units(texts: Mapping[str, str], done: Rendered) -> None:
    units = {PurePosixPath(path).name: text for path, text in texts.items() if path.startswith(_QUADLET_FOLDER)}
    generator = next((path for path in _GENERATORS if os.access(path, os.X_OK)), None)
    if generator is None:
        done.not_validated.append("units: this machine has no Quadlet generator (podman 5.4 or later brings it)")
        return
    with tempfile.TemporaryDirectory(prefix="vllm-node-") as folder:
        for name, text in units.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        said = subprocess.run(
            [generator, "-dryrun"],
            env={**os.environ, "QUADLET_UNIT_DIRS": folder},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    complaints = [line for line in said.stderr.splitlines() if re.search(r"unsupported key|converting ", line)]
    # Some versions drop a unit that they do not like without a word.
    services = {name: f"{PurePosixPath(name).stem}.service" for name in units if name.endswith(".container")}
    complaints += [
        f"{name} gives no {service}"
        for name, service in services.items()
        if f"---{service}---" not in said.stdout
    ]
    done.findings += [fail("render.unit", line, "systemd would not see the unit.", _MEND) for line in complaints]
    done.validated.append(f"{len(units)} units, by this machine's Quadlet generator")


def _validate_prometheus(folder: Path, texts: Mapping[str, str], done: Rendered) -> None:
    if _PROMETHEUS not in texts:
        return
    promtool = shutil.which("promtool")
    if promtool is None:
        done.not_validated.append("Prometheus's configuration beyond its YAML: this machine has no promtool")
        return
    # Paths in it are those of the container: files that it names are not looked for.
    said = subprocess.run(
        [promtool, "check", "config", "--syntax-only", folder / _PROMETHEUS.lstrip("/")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if said.returncode != 0:
        done.findings.append(fail("render.prometheus", (said.stderr or said.stdout).strip(), _WHY, _MEND))
    done.validated.append("Prometheus's configuration, by promtool")
