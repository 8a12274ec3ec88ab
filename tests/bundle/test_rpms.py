"""RPMs built on the spot, signed and unsigned, and the repository that is made of them."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit import bundles
from tests.unit.bundles import call, verify
from vllm_node.bundle import rpms
from vllm_node.bundle.layout import Manifest

SPEC = """Name: standin-%(name)s
Version: 1.2
Release: 3
Summary: stand-in
License: MIT
BuildArch: noarch
%%description
stand-in
%%files
"""
PROGRAMS = ("rpmbuild", "rpmsign", "gpg")
pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, PROGRAMS)), reason=f"RPMs cannot be built here: {', '.join(PROGRAMS)} are needed (apt-get install rpm gpg)"
)


def build(folder: Path, name: str) -> Path:
    (folder / "x.spec").write_text(SPEC % {"name": name})
    command = ["rpmbuild", "-bb", "--quiet", "--define", f"_topdir {folder}/top", str(folder / "x.spec")]
    subprocess.run(command, check=True, capture_output=True)
    return next((folder / "top/RPMS").rglob(f"standin-{name}-*.rpm"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a signed RPM, an unsigned one and a public key."""
    folder = tmp_path_factory.mktemp("rpms")
    # A socket has to fit into its path, which that of pytest's folders is too long for.
    home = Path(f"/tmp/vllm-node-gpg-{os.getpid()}")
    home.mkdir(mode=0o700)
    environment = {**os.environ, "GNUPGHOME": str(home)}
    try:
        for name in ("signed", "unsigned"):
            shutil.move(build(folder, name), folder)
        make = ["gpg", "--batch", "--quiet", "--passphrase", "", "--quick-gen-key", "site@site.example", "rsa2048", "sign", "1d"]
        subprocess.run(make, env=environment, check=True, capture_output=True)
        sign = ["rpmsign", "--define", "_gpg_name site@site.example", "--define", f"__gpg {shutil.which('gpg')}", "--addsign"]
        subprocess.run([*sign, str(folder / "standin-signed-1.2-3.noarch.rpm")], env=environment, check=True, capture_output=True)
        public = subprocess.run(["gpg", "--armor", "--export"], env=environment, check=True, capture_output=True).stdout
        (folder / "RPM-GPG-KEY-site").write_bytes(public)
        yield folder
    finally:
        subprocess.run(["gpgconf", "--kill", "all"], env=environment, check=False, capture_output=True)
        shutil.rmtree(home)


def create(folder: Path, source: Path, *more: str | Path, code: int = 0) -> str:
    inventory = bundles.inventory(folder / "inventory")
    return call(
        "create", "-i", inventory, "--output", folder / "bundle", "--only", "rpms", "--rpms", source, *more, code=code
    ).output


def test_rpms_travel_as_a_repository_and_an_unsigned_one_is_told(built: Path, tmp_path: Path) -> None:
    said = create(tmp_path, built)
    assert "without a signature, which nodes refuse (gpgcheck): standin-unsigned-1.2-3.noarch.rpm" in said
    bundle = tmp_path / "bundle"
    assert verify(bundle) == []
    parts = {part.name: part for part in Manifest.read(bundle).parts}
    assert {name: part.details.get("signed") for name, part in parts.items()} == {
        "standin-signed": True,
        "standin-unsigned": False,
        "rpms": None,
    }
    signed = parts["standin-signed"].details
    assert (signed["version"], signed["architecture"], signed["licence"]) == ("1.2-3", "noarch", "MIT")
    primary = next((bundle / "rpms/repodata").glob("*primary.xml.gz"))
    listed = gzip.decompress(primary.read_bytes()).decode()
    assert 'href="standin-signed-1.2-3.noarch.rpm"' in listed
    assert str(tmp_path) not in listed
    assert (bundle / "rpms/RPM-GPG-KEY-site").is_file()


def test_a_second_create_changes_no_file(built: Path, tmp_path: Path) -> None:
    create(tmp_path, built)
    before = bundles.stamps(tmp_path / "bundle/rpms")
    create(tmp_path, built)
    assert bundles.stamps(tmp_path / "bundle/rpms") == before


def test_without_createrepo_the_rpms_travel_all_the_same(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert rpms._createrepo() is None
    assert "rpms/ is no repository yet" in create(tmp_path, built)
    assert not (tmp_path / "bundle/rpms/repodata").exists()


def test_what_is_no_rpm_is_refused(built: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    assert "there is no *.rpm in it" in create(tmp_path, source, code=4)
    (source / "x.rpm").write_text("no RPM")
    assert "x.rpm is no RPM" in create(tmp_path, source, code=4)


@pytest.fixture
def one_repository(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """dnf, which sees one repository and nothing of this machine's own; the folder of the repository."""
    dnf = shutil.which("dnf")
    if dnf is None or subprocess.run([dnf, "download", "--help"], capture_output=True, check=False).returncode != 0:
        pytest.skip("dnf with its download plugin is not here (apt-get install dnf dnf-plugins-core)")
    program = rpms._createrepo()
    assert program is not None
    repository = Path(shutil.copytree(built, tmp_path / "repository"))
    subprocess.run([program, "--quiet", str(repository)], check=True)
    (tmp_path / "repos").mkdir()
    (tmp_path / "repos/site.repo").write_text(f"[site]\nname=site\nbaseurl=file://{repository}\ngpgcheck=0\n")
    (tmp_path / "bin").mkdir()
    options = f"--setopt=reposdir={tmp_path}/repos --setopt=cachedir={tmp_path}/cache --installroot={tmp_path}/root --releasever=9"
    (tmp_path / "bin/dnf").write_text(f'#!/bin/sh\nexec {dnf} {options} "$@"\n')
    (tmp_path / "bin/dnf").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return repository


def test_dnf_brings_what_is_named(one_repository: Path, tmp_path: Path) -> None:
    words = ("create", "-i", bundles.inventory(tmp_path / "inventory"), "--output", tmp_path / "bundle", "--only", "rpms")
    call(*words, "--rpm", "standin-signed")
    name = "standin-signed-1.2-3.noarch.rpm"
    assert (tmp_path / "bundle/rpms" / name).read_bytes() == (one_repository / name).read_bytes()
    assert [path.name for path in (tmp_path / "bundle/rpms").glob("*.rpm")] == [name]
    assert verify(tmp_path / "bundle") == []
    assert "dnf does not bring nosuch" in call(*words, "--rpm", "nosuch", code=4).output


def test_names_need_dnf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inventory = bundles.inventory(tmp_path / "inventory")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    said = call("create", "-i", inventory, "--output", tmp_path / "bundle", "--only", "rpms", "--rpm", "podman", code=4).output
    assert "--rpm needs dnf" in said
