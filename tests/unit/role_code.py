"""Loads what runs on a node from its role, by path: modules, their shared code, and scripts."""

from __future__ import annotations

import importlib
import importlib.util
import json
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

ROOT = Path(__file__).resolve().parents[2]


def shared_code(name: str) -> Any:
    """`ansible.module_utils.NAME` out of the role that has it, as the modules of the roles import it."""
    package: Any = importlib.import_module("ansible.module_utils")
    for place in map(str, sorted(ROOT.glob("roles/*/module_utils"))):
        if place not in package.__path__:
            package.__path__.append(place)
    return importlib.import_module(f"ansible.module_utils.{name}")


def manifest_code() -> Any:
    """The manifest of a node, which several modules write."""
    return shared_code("node_manifest")


def load(path: str) -> Any:
    """A fresh copy of a file below the project's root, so that a test may change its constants."""
    manifest_code()
    file = ROOT / path
    spec = importlib.util.spec_from_file_location(file.stem.replace("-", "_"), file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_module(module: Any, capsys: pytest.CaptureFixture[str], **arguments: Any) -> dict[str, Any]:
    """What a module answers to `arguments`; `_ansible_check_mode` and the like go in as they are."""
    capsys.readouterr()
    with patch_module_args(arguments), pytest.raises(SystemExit):
        module.main()
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def program(folder: Path, name: str, body: str = "") -> None:
    """A program of that name in `folder`: a shell script, which starts ten times faster than Python does."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    log = shlex.quote(str(folder / "calls"))
    path.write_text(f"#!/bin/sh\n{{ printf '%s\\037' {name} \"$@\"; printf '\\036'; }} >> {log}\n{body}\n")
    path.chmod(0o755)


def answers(table: Mapping[str, tuple[int, str]]) -> str:
    """Body of a program that answers by the beginning of its words: {"volume ls": (exit code, output)}."""
    cases = "".join(
        f"{shlex.quote(start)}*) printf '%s\\n' {shlex.quote(text)}; exit {code};;\n"
        for start, (code, text) in sorted(table.items(), reverse=True)
    )
    return f'case "$*" in\n{cases}esac'


def calls(folder: Path, name: str | None = None) -> list[list[str]]:
    """Every call of the programs in `folder`, in order: the program's name and its words."""
    log = folder / "calls"
    records = log.read_text().split("\036")[:-1] if log.exists() else []
    found = [record.split("\037")[:-1] for record in records]
    return [call for call in found if name is None or call[0] == name]


def on_path(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Nothing but the programs in `folder` can be found by name."""
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("PATH", str(folder))


def fast_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes by sleeping only, and sleeping takes none, but for the short naps of `subprocess`."""
    now, nap = [0.0], time.sleep

    def sleep(seconds: float) -> None:
        if seconds < 0.2:
            nap(seconds)
        else:
            now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
