"""Collections: what is packed here, ansible-galaxy installs there, without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from vllm_node.bundle import galaxy
from vllm_node.bundle.layout import BundleError
from vllm_node.bundle.reporter import Reporter
from vllm_node.bundle.workspace import Workspace


def test_what_is_packed_can_be_installed_offline(tmp_path: Path) -> None:
    with Workspace(tmp_path / "b") as work, Reporter() as reporter:
        galaxy.fetch(work, reporter, ["ansible.posix"])
        part = work.parts[0]
    path = tmp_path / "b" / part.path
    # The one that is installed here is no reason to do nothing.
    words = ["collection", "install", "--offline", "--force", str(path), "-p", str(tmp_path / "there")]
    done = subprocess.run([sys.executable, "-m", "ansible.cli.galaxy", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "there/ansible_collections/ansible/posix/plugins/modules/firewalld.py").is_file()
    assert "leaves out" in part.origin or "installed here" in part.origin
    assert part.details["version"] in path.name


def test_the_same_collection_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = collection(tmp_path / "c")
    (folder / "plugins/x.py").unlink()
    packed = galaxy._tarball(galaxy._read(folder, "a.b"))
    os.utime(folder / "FILES.json", (1, 1))
    assert galaxy._tarball(galaxy._read(folder, "a.b")) == packed


def collection(folder: Path) -> Path:
    (folder / "plugins").mkdir(parents=True)
    (folder / "plugins/x.py").write_text("x = 1\n")
    digest = "d62ed65ed1e2a0a3a83db23b1ae9d36efe3ff6a57ef23b0b9b1eaf1a3d5f2b42"
    files = [{"name": ".", "ftype": "dir"}, {"name": "plugins", "ftype": "dir"}, {"name": "plugins/x.py", "ftype": "file", "chksum_sha256": digest}]
    (folder / "FILES.json").write_text(json.dumps({"files": files, "format": 1}))
    (folder / "MANIFEST.json").write_text(json.dumps({"collection_info": {"version": "1.0.0"}, "file_manifest_file": {}}))
    return folder


def test_a_collection_that_was_changed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"plugins/x\.py was changed"):
        galaxy._read(collection(tmp_path / "c"), "a.b")
    with pytest.raises(BundleError, match="cannot be read"):
        galaxy._read(tmp_path, "a.b")


def test_a_file_that_is_left_out_is_left_out_of_the_list(tmp_path: Path) -> None:
    folder = collection(tmp_path / "c")
    (folder / "plugins/x.py").unlink()
    found = galaxy._read(folder, "a.b")
    assert found.missing == 1
    (tmp_path / "x.tar.gz").write_bytes(galaxy._tarball(found))
    with tarfile.open(tmp_path / "x.tar.gz") as archive:
        listed = archive.extractfile("FILES.json")
        assert listed is not None
        assert [entry["name"] for entry in json.load(listed)["files"]] == [".", "plugins"]


def test_a_collection_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with Workspace(tmp_path / "b") as work, Reporter() as reporter, pytest.raises(BundleError, match=r"nobody\.nothing"):
        galaxy.fetch(work, reporter, ["nobody.nothing"])
