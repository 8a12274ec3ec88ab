"""Programs of Debian's packages: how they are called, and what is told when they are not what was expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vllm_node.lab import tools
from vllm_node.lab.errors import LabError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("promtool", "prometheus", "amtool", "prometheus-alertmanager"):
        (tmp_path / "usr/bin").mkdir(parents=True, exist_ok=True)
        (tmp_path / "usr/bin" / name).touch()
    monkeypatch.setattr(tools, "_root", lambda series: tmp_path)
    return tmp_path


def test_a_program_runs_through_its_own_loader(root: Path) -> None:
    loader, word, libraries, program = tools.promtool("3")
    assert loader == f"{root}/usr/lib64/ld-linux-x86-64.so.2"
    assert (word, libraries) == ("--library-path", f"{root}/usr/lib/x86_64-linux-gnu")
    assert program == f"{root}/usr/bin/promtool"
    assert tools.prometheus("2.53")[-1].endswith("/prometheus")
    assert tools.amtool()[-1].endswith("/amtool")


def test_alertmanager_sees_the_folder_that_it_reads_its_texts_from(root: Path) -> None:
    words = tools.alertmanager()
    assert words[:2] == ["unshare", "--mount"]
    assert f"{root}/usr/share" in words
    assert words[-1].endswith("/prometheus-alertmanager")


def test_a_program_that_is_missing_is_told(root: Path) -> None:
    (root / "usr/bin/amtool").unlink()
    with pytest.raises(LabError, match="amtool is not there; remove"):
        tools.amtool()


@pytest.mark.parametrize(
    ("series", "version", "good"),
    [("2.53", "2.53.3+ds1", True), ("3", "3.5.3", True), ("3", "2.53.3", False), ("2.53", "2.55.0", False)],
)
def test_a_release_that_moved_on_is_noticed(
    series: tools.Series, version: str, good: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(argv: list[str], **_: Any) -> str:
        return f"promtool, version {version} (branch: x)\n  build user: y\n"

    monkeypatch.setattr(tools, "run", run)
    if good:
        tools._check(tmp_path, series)
    else:
        with pytest.raises(LabError, match=rf"promtool {series} was expected, there is promtool, version {version}"):
            tools._check(tmp_path, series)


def test_nothing_of_the_packages_is_run_while_they_are_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def run(argv: list[str], **_: Any) -> None:
        calls.append([str(word) for word in argv])

    monkeypatch.setattr(tools, "run", run)
    tools._extract("trixie", Path("/x"), ())
    ((program, *words),) = calls
    assert program == "mmdebstrap"
    assert "--variant=extract" in words
