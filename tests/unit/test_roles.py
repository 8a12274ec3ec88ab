"""Every role: a schema that agrees with its defaults, names of its own, and nothing that the design forbids."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.role_code import ROOT

ROLES = sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir())
FORBIDDEN = re.compile(r"label=disable|SecurityLabelDisable|:latest\b|--privileged|setenforce 0|pull_policy: always")
IMAGE = re.compile(r"^\s*(?:Image|image|image_name)\s*[:=]\s*(?P<image>.+)$", re.MULTILINE)
MARKED = re.compile(r"^\s*(?:#|//).*$|(?<=\s)#.*$", re.MULTILINE)


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text()) if path.exists() else None


def options(role: Path) -> dict[str, dict[str, Any]]:
    specs: dict[str, Any] = read(role / "meta/argument_specs.yml")["argument_specs"]
    return {name: option for entry in specs.values() for name, option in (entry.get("options") or {}).items()}


def disagreements(specs: dict[str, dict[str, Any]], defaults: dict[str, Any]) -> list[str]:
    """Where the schema and the defaults of a role do not say the same."""
    found = [f"{name} has a default but no schema" for name in defaults if name not in specs]
    for name, option in specs.items():
        required = option.get("required", False)
        if required and (name in defaults or "default" in option):
            found.append(f"{name} is required and has a default")
        elif not required and "default" in option and name not in defaults:
            found.append(f"{name} has a default in the schema only")
        elif name in defaults and ("default" not in option or option["default"] != defaults[name]):
            found.append(f"{name} is {defaults[name]!r} by default, its schema says {option.get('default')!r}")
    return found


def strangers(role: str, names: list[str]) -> list[str]:
    """Names that carry neither the role's name nor the mark of something internal."""
    return [name for name in names if not name.startswith((f"{role}_", "_"))]


def tasks(node: Any) -> Iterator[dict[str, Any]]:
    """Every task in a file, also inside of blocks."""
    for entry in node or []:
        if isinstance(entry, dict):
            yield entry
            for part in ("block", "rescue", "always"):
                yield from tasks(entry.get(part))


def names_in(files: list[Path]) -> list[str]:
    """Variables that tasks set: registered results and `vars:`, less what they hand to another role by its own names."""
    found: list[str] = []
    for path in files:
        for task in tasks(read(path)):
            other = (task.get("ansible.builtin.include_role") or task.get("ansible.builtin.import_role") or {}).get("name")
            found += [task["register"]] if "register" in task else []
            found += [name for name in task.get("vars") or {} if not (other and name.startswith(f"{other}_"))]
    return found


def forbidden(text: str) -> list[str]:
    return FORBIDDEN.findall(MARKED.sub("", text))


def unlocked_images(text: str) -> list[str]:
    """Images that are named by anything else than the image lock, or a name in it."""
    found = [match["image"].strip() for match in IMAGE.finditer(MARKED.sub("", text))]
    return [image for image in found if "images_lock" not in image and re.search(r"[/:@]", image)]


def texts(role: Path) -> dict[Path, str]:
    """Everything that a role writes or does; prose of schemas and documentation is not among it."""
    folders = ("tasks", "templates", "files", "defaults", "vars", "handlers", "library", "module_utils")
    paths = (path for folder in folders for path in (role / folder).rglob("*") if path.is_file())
    return {path: path.read_text() for path in paths if "__pycache__" not in path.parts}


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_the_schema_and_the_defaults_agree(role: Path) -> None:
    assert disagreements(options(role), read(role / "defaults/main.yml") or {}) == []


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_every_option_is_described(role: Path) -> None:
    specs = read(role / "meta/argument_specs.yml")["argument_specs"]
    assert all(entry.get("short_description") for entry in specs.values())
    assert [
        name for name, option in options(role).items() if not option.get("description") or not option.get("type")
    ] == []


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_variables_carry_the_roles_name(role: Path) -> None:
    known = [*options(role), *(read(role / "defaults/main.yml") or {}), *(read(role / "vars/main.yml") or {})]
    assert strangers(role.name, known) == []
    internal = [name for name in read(role / "vars/main.yml") or {} if not name.startswith(f"_{role.name}_")]
    assert internal == []
    assert strangers(role.name, names_in(sorted((role / "tasks").glob("*.yml")))) == []


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_nothing_forbidden_is_in_a_role(role: Path) -> None:
    assert {str(path): found for path, text in texts(role).items() if (found := forbidden(text))} == {}


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_images_are_named_by_the_lock_only(role: Path) -> None:
    assert {str(path): found for path, text in texts(role).items() if (found := unlocked_images(text))} == {}


SPECS: dict[str, dict[str, Any]] = {
    "r_a": {"type": "int", "default": 1},
    "r_b": {"type": "str"},
    "r_c": {"type": "str", "required": True},
}


@pytest.mark.parametrize(
    ("defaults", "said"),
    [
        ({"r_a": 1}, []),
        ({}, ["r_a has a default in the schema only"]),
        ({"r_a": 2}, ["r_a is 2 by default, its schema says 1"]),
        ({"r_a": 1, "r_b": ""}, ["r_b is '' by default, its schema says None"]),
        ({"r_a": 1, "r_c": ""}, ["r_c is required and has a default"]),
        ({"r_a": 1, "r_d": 1}, ["r_d has a default but no schema"]),
    ],
)
def test_a_disagreement_is_told(defaults: dict[str, Any], said: list[str]) -> None:
    assert disagreements(SPECS, defaults) == said


def test_a_variable_with_another_name_is_told(tmp_path: Path) -> None:
    (tmp_path / "main.yml").write_text(
        "- block:\n    - x:\n      register: result\n      vars: {_in: 1, r_x: 2, port: 3}\n"
    )
    assert strangers("r", names_in([tmp_path / "main.yml"])) == ["result", "port"]


def test_only_the_names_of_the_role_that_is_called_are_handed_to_it(tmp_path: Path) -> None:
    (tmp_path / "main.yml").write_text(
        "- ansible.builtin.include_role: {name: other}\n  vars: {other_x: 1, r_x: 2, _in: 3, third_x: 4}\n"
    )
    assert strangers("r", names_in([tmp_path / "main.yml"])) == ["third_x"]


@pytest.mark.parametrize(
    "text",
    [
        "PodmanArgs=--privileged",
        "SecurityLabelDisable=true",
        "--security-opt label=disable",
        "Image=r/x:latest",
        "setenforce 0",
    ],
)
def test_a_forbidden_word_is_found_in_code_and_not_in_a_comment(text: str) -> None:
    assert forbidden(f"[Container]\n{text}\n")
    assert not forbidden(f"# never {text}\nkey: value  # not {text}\n")


@pytest.mark.parametrize(
    "text", ["Image=quay.example/prom/prometheus:v3", "  image: prometheus:v3", "image: r/x@sha256:00"]
)
def test_an_image_beside_the_lock_is_found(text: str) -> None:
    assert unlocked_images(text)


@pytest.mark.parametrize(
    "text", ["Image={{ images_lock.grafana | image_reference }}", "  image: grafana", "# image: r/x:v1"]
)
def test_a_name_in_the_lock_is_not_an_image_beside_it(text: str) -> None:
    assert not unlocked_images(text)


def test_every_role_is_looked_at() -> None:
    assert len(ROLES) >= 13
    assert all((role / "meta/argument_specs.yml").is_file() for role in ROLES)
