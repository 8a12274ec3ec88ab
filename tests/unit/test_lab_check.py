"""`vllm-node lab check`: everybody is told what is missing, and packages are installed by root with apt-get only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.unit.role_code import calls, on_path, program
from vllm_node.lab import host
from vllm_node.lab.cli import lab_group


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing but apt-get, which installs skopeo, and root as its user."""
    folder = tmp_path / "bin"
    on_path(monkeypatch, folder)
    program(folder, "apt-get", f"[ $1 != install ] || : > {folder}/skopeo")
    monkeypatch.setattr(host, "PROGRAMS", {"skopeo": "skopeo-package"})
    monkeypatch.setattr(host, "_can_make_namespaces", lambda: True)
    monkeypatch.setattr(host, "_which", lambda name: str(folder / name) if (folder / name).exists() else None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return folder


def check(*words: str) -> Result:
    return CliRunner().invoke(lab_group, ["check", *words])


def test_root_installs_what_is_missing(programs: Path) -> None:
    result = check("--install")
    assert (result.exit_code, result.output) == (0, "a lab can boot here\n")
    update, install = calls(programs, "apt-get")
    assert update[1] == "update"
    assert "skopeo-package" in install


def test_nothing_is_installed_without_being_asked(programs: Path) -> None:
    result = check()
    assert (result.exit_code, calls(programs)) == (1, [])
    assert "missing: skopeo is not installed - apt-get install skopeo-package" in result.output


def test_a_user_is_told_what_is_missing_and_nothing_is_tried(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = check("--install")
    assert (result.exit_code, calls(programs)) == (1, [])
    assert "missing: you are not root" in result.output
    assert "missing: skopeo is not installed" in result.output


def test_root_without_apt_get_is_told_what_is_missing(programs: Path) -> None:
    (programs / "apt-get").unlink()
    result = check("--install")
    assert result.exit_code == 1
    assert "missing: there is no apt-get" in result.output
    assert "missing: skopeo is not installed" in result.output


def test_an_installation_that_fails_says_so(programs: Path) -> None:
    program(programs, "apt-get", "echo 'no route to the mirror' >&2; exit 100")
    result = check("--install")
    assert result.exit_code == 1
    assert "no route to the mirror" in result.output
