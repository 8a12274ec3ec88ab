"""Wheels: whether a set suffices, by their own metadata; and pip's real work over a folder of tiny ones."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.unit import bundles
from tests.unit.bundles import call, verify, wheel
from vllm_node.bundle import wheels
from vllm_node.bundle.layout import BundleError, Manifest
from vllm_node.bundle.wheel_set import Target, Wheel, lacking

RUNNING = Target.running()
OTHER = Target("3.99", RUNNING.machine)


def lacks(folder: Path, target: Target = RUNNING, wanted: str = "a") -> list[str]:
    return [str(one) for one in lacking([Wheel.read(path) for path in folder.glob("*.whl")], [Requirement(wanted)], target)]


def test_what_is_needed_directly_and_by_others(tmp_path: Path) -> None:
    wheel(tmp_path, "a", requires=["b>=2", 'c; extra == "x"'])
    assert lacks(tmp_path) == ["b>=2"]
    wheel(tmp_path, "b", "1.0")
    assert lacks(tmp_path) == ["b>=2"]
    wheel(tmp_path, "b", "2.0", ["A_n-d", "a"])
    assert lacks(tmp_path) == ["A_n-d"]
    wheel(tmp_path, "a-n.D")
    assert lacks(tmp_path) == []
    assert lacks(tmp_path, wanted="a[x]") == ['c; extra == "x"']


def test_markers_are_those_of_the_target(tmp_path: Path) -> None:
    wheel(tmp_path, "a", requires=['old; python_version < "3.99"', 'new; python_version >= "3.99"', 'other; sys_platform == "win32"'])
    assert lacks(tmp_path) == ['old; python_version < "3.99"']
    assert lacks(tmp_path, OTHER) == ['new; python_version >= "3.99"']


def test_a_wheel_for_something_else_does_not_count(tmp_path: Path) -> None:
    wheel(tmp_path, "a", requires=["b", "c", "d"])
    wheel(tmp_path, "b", tag="cp399-cp399-manylinux_2_28_" + RUNNING.machine)
    wheel(tmp_path, "c", tag="cp399-cp399-manylinux_2_39_" + RUNNING.machine)
    wheel(tmp_path, "d", tag="py3-none-win_amd64")
    assert sorted(lacks(tmp_path)) == ["b", "c", "d"]
    # Too new a glibc for RHEL 9.
    assert sorted(lacks(tmp_path, OTHER)) == ["c", "d"]
    wheel(tmp_path, "c", tag="py3-none-any", Requires_Python="<3.50")
    assert "c" not in lacks(tmp_path)
    assert "c" in lacks(tmp_path, OTHER)


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ({"License_Expression": "MIT OR Apache-2.0", "License": "x"}, "MIT OR Apache-2.0"),
        ({"License": "BSD"}, "BSD"),
        ({"License": "the whole text " * 20}, None),
        ({"License": "UNKNOWN"}, None),
        ({"Classifier": "License :: OSI Approved :: MIT License"}, "MIT License"),
        ({}, None),
    ],
)
def test_licences_are_told_as_far_as_they_are_known(tmp_path: Path, metadata: dict[str, str], licence: str | None) -> None:
    assert Wheel.read(wheel(tmp_path, "a", **metadata)).licence == licence


def test_what_is_no_wheel_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "a-1-py3-none-any.whl").write_text("no zip")
    with pytest.raises(BundleError, match="a-1-py3"):
        Wheel.read(tmp_path / "a-1-py3-none-any.whl")
    with pytest.raises(BundleError):
        Wheel.read(wheel(tmp_path, "a").rename(tmp_path / "nonsense.whl"))


def words(folder: Path, *more: str | Path) -> list[str | Path]:
    own = bundles.toolkit(folder / "index")
    inventory = bundles.inventory(folder / "inventory")
    return ["create", "-i", inventory, "--output", folder / "bundle", "--only", "wheels", "--toolkit", own, *more]


def test_pip_on_the_other_side_needs_no_index(tmp_path: Path) -> None:
    call(*words(tmp_path), env=bundles.environment(tmp_path / "index"))
    bundle = tmp_path / "bundle"
    assert verify(bundle) == []
    parts = {part.name: part for part in Manifest.read(bundle).parts}
    assert (parts["needed"].details["licence"], parts["vllm-node"].details["pythons"]) == ("MIT", [RUNNING.version])
    venv.create(tmp_path / "fresh")
    python = str(tmp_path / "fresh/bin/python")
    nowhere = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--find-links"]
    install += [str(bundle / "wheels"), "vllm-node"]
    subprocess.run(install, env=nowhere, check=True)
    shown = subprocess.run([python, "-c", "import vllm_node, needed; print(needed.version)"], capture_output=True, text=True, check=True)
    assert shown.stdout == "1.0\n"


def test_wheels_that_are_there_are_not_asked_for_again(tmp_path: Path) -> None:
    given = words(tmp_path)
    call(*given, env=bundles.environment(tmp_path / "index"))
    before = bundles.stamps(tmp_path / "bundle/wheels")
    empty = tmp_path / "empty"
    empty.mkdir()
    call(*given, env=bundles.environment(empty))
    assert bundles.stamps(tmp_path / "bundle/wheels") == before
    wheel(tmp_path / "index", "needed", "2.0")
    (tmp_path / "bundle/wheels/needed-1.0-py3-none-any.whl").write_text("spoilt")
    call(*given, env=bundles.environment(tmp_path / "index"))
    assert sorted(path.name for path in (tmp_path / "bundle/wheels").iterdir()) == [
        "needed-2.0-py3-none-any.whl",
        "vllm_node-0.1.0-py3-none-any.whl",
    ]


def test_what_pip_leaves_out_for_another_python_is_asked_for(tmp_path: Path) -> None:
    """pip holds markers against the Python that runs it."""
    given = words(tmp_path, "--python", "3.99")
    index = tmp_path / "index"
    wheel(index, "needed", requires=['only-there; python_version >= "3.99"'])
    said = call(*given, code=4, env=bundles.environment(index)).output
    assert "only-there" in said
    wheel(index, "only-there", tag=f"cp399-cp399-manylinux_2_28_{RUNNING.machine}")
    call(*given, env=bundles.environment(index))
    assert len(list((tmp_path / "bundle/wheels").iterdir())) == 3


@pytest.mark.parametrize("case", ["nothing there", "another wheel"])
def test_what_cannot_be_had_says_why(tmp_path: Path, case: str) -> None:
    given = words(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    if case == "another wheel":
        given[given.index("--toolkit") + 1] = wheel(empty, "another")
    said = call(*given, code=4, env=bundles.environment(empty)).output
    assert ("No matching distribution found for needed" if case == "nothing there" else "the wheel of another") in said
    assert verify(tmp_path / "bundle", code=3) == [("unfinished", "SHA256SUMS")]


def test_a_python_that_is_here_is_asked_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own markers count then, and pip has to find it by its path."""
    (tmp_path / "bin").mkdir()
    (tmp_path / f"bin/python{RUNNING.version}").symlink_to(sys.executable)
    (tmp_path / "bin/python3.99").write_text("#!/bin/sh\necho 'python3.99: not installed' >&2\nexit 127\n")
    (tmp_path / "bin/python3.99").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    call(*words(tmp_path, "--python", RUNNING.version), env=bundles.environment(tmp_path / "index"))
    assert verify(tmp_path / "bundle") == []
    assert wheels._interpreter("3.99") is None
