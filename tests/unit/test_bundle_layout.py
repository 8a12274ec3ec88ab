"""The manifest, paths and sums: what is written is read again, and nothing that leads out is taken."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_node.bundle import sums
from vllm_node.bundle.layout import BundleError, Manifest, Part, safe_name, safe_path

DIGEST = "sha256:" + "a" * 64
IMAGE = {"digest": DIGEST, "platform_digest": DIGEST, "repository": "r/x", "architecture": "amd64", "tag": "1"}
PARTS = (
    Part("image", "vllm", "images", 3, 100, "copied from r/x", IMAGE),
    Part("wheel", "click", "wheels/click-8.whl", 1, 5, "index of pip", {"version": "8"}),
    Part("repository", "rpms", "rpms", 2, 5, "made by createrepo_c"),
)


def test_a_manifest_is_read_as_it_was_written() -> None:
    made = Manifest("2026-11-30T00:00:00Z", "0.1.0", PARTS)
    again = Manifest.parse(made.text())
    assert (set(map(repr, again.parts)), again.created_at) == (set(map(repr, PARTS)), made.created_at)
    assert again.text() == made.text()
    assert [part.folder for part in PARTS] == ["images", "wheels", "rpms"]


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "gift"},
        {"path": "models/../../etc"},
        {"path": "/etc"},
        {"path": "models/click.whl"},
        {"files": -1},
        {"bytes": True},
        {"name": None},
        {"kind": "image", "path": "images"},
        {"kind": "image", "path": "images", **IMAGE, "digest": "sha256:../../x"},
    ],
)
def test_a_part_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    said = {**PARTS[1].as_dict(), **change}
    with pytest.raises(BundleError):
        Manifest.parse(json.dumps({"schema": 1, "created_at": "", "toolkit_version": "", "parts": [said]}))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 2, "parts": []}', "[" * 100_000])
def test_what_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(BundleError):
        Manifest.parse(text)


@pytest.mark.parametrize("path", ["", "/x", "x/", "a//b", "a/./b", "../x", "a/../b", "a\nb", "a\\b", "a\rb", "\x7f"])
def test_paths_that_lead_out_or_spoil_the_sums(path: str) -> None:
    with pytest.raises(ValueError):
        safe_path(path)


@pytest.mark.parametrize("name", ["", ".x", "-x", "a/b", "a b", ".."])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ValueError):
        safe_name(name)


@given(st.dictionaries(st.text(min_size=1), st.binary(min_size=32, max_size=32)))
def test_sums_come_back_or_are_refused(tmp_path_factory: pytest.TempPathFactory, given: dict[str, bytes]) -> None:
    wanted = {path: digest.hex() for path, digest in given.items()}
    try:
        text = sums.text(wanted)
    except ValueError:
        return
    try:
        content = text.encode()
    except UnicodeEncodeError:
        return
    path = tmp_path_factory.mktemp("sums") / "SHA256SUMS"
    path.write_bytes(content)
    assert sums.read(path) == (wanted, [])


def test_sha256sum_reads_and_writes_the_same(tmp_path: Path) -> None:
    for name in ("b", "a", "B", "ä ö", "a-1"):
        (tmp_path / name).write_text(name)
    written = subprocess.run("LC_ALL=C; sha256sum *", shell=True, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    (tmp_path / "SHA256SUMS").write_text(written)
    listed, problems = sums.read(tmp_path / "SHA256SUMS")
    assert problems == []
    assert sorted(sums.text(listed).splitlines()) == sorted(written.splitlines())
    (tmp_path / "SHA256SUMS").write_text(sums.text(listed))
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=tmp_path, check=True)


@pytest.mark.parametrize(
    "line",
    ["no sum  x", "a" * 64 + " x", "a" * 63 + "  x", "A" * 64 + "  x", "a" * 64 + "  ../x", "a" * 64 + "  /x", "\\" + "a" * 64 + "  x\\ny"],
)
def test_lines_that_are_none_are_told(tmp_path: Path, line: str) -> None:
    path = tmp_path / "SHA256SUMS"
    path.write_text(f"{'b' * 64}  fine\n{line}\n")
    listed, problems = sums.read(path)
    assert (listed, len(problems)) == ({"fine": "b" * 64}, 1)
    assert "line 2" in problems[0]


def test_sums_that_were_cut_or_say_a_thing_twice(tmp_path: Path) -> None:
    path = tmp_path / "SHA256SUMS"
    path.write_text(f"{'b' * 64}  x\n{'c' * 64}  x\n{'b' * 64}  y")
    _listed, problems = sums.read(path)
    assert len(problems) == 2
    path.unlink()
    path.symlink_to("/etc/hostname")
    with pytest.raises(OSError):
        sums.read(path)
