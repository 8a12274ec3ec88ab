"""Models on their way to a real node over ssh: delivered, in place, interrupted, corrupt, and gone after a teardown."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.labs import Nodes
from tests.unit.model_folders import SHARDS, flip, model
from vllm_node.lab.node import Spec
from vllm_node.models import manifest as manifests
from vllm_node.paths import project_root

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed on this machine"),
]
NODE = "store"
TREE = "/srv/models/chat"


def _root(nodes: Nodes) -> Path:
    """The node's root as it sees it, from outside of it."""
    member = nodes.lab.member(NODE)
    assert member is not None
    return nodes.lab.place(member).root


class Site:
    """A folder with a model and its manifest on this machine, and a playbook that brings it to the node."""

    def __init__(self, nodes: Nodes, root: Path) -> None:
        self.nodes, self.root = nodes, root
        self.source, self.known, self.answer = root / "chat", root / "chat.json", root / "answer.json"
        self.entry = {"name": "chat", "source": "control", "path": str(self.source), "manifest": str(self.known)}
        keep = {"content": "{{ model_store_result | to_json }}", "dest": str(self.answer)}
        save = {"ansible.builtin.copy": keep, "delegate_to": "localhost", "become": False, "check_mode": False}
        play = {
            "hosts": "gpu_nodes", "gather_facts": False, "become": True,
            "roles": ["node_snapshot", "container_host", "model_store"],
            "post_tasks": [{**save, "changed_when": False}],
        }
        (root / "play.yml").write_text(json.dumps([play]))

    def describe(self) -> None:
        manifests.write(manifests.make(self.source), self.known)

    def words(self, *words: str, **more: Any) -> list[str]:
        values = {"model_store_models": [self.entry], **more}
        ansible = [sys.executable, "-m", "ansible", "playbook", "-i", "inventories/lab", "--limit", NODE]
        return [*ansible, str(self.root / "play.yml"), "-e", json.dumps(values), *words]

    def up(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        self.answer.unlink(missing_ok=True)
        return subprocess.run(
            self.words(*words, **more),
            cwd=project_root(),
            env=self.nodes.environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def brought(self, *words: str, **more: Any) -> dict[str, Any]:
        done = self.up(*words, **more)
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(self.answer.read_text())
        return found

    def begin(self, **more: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.words(**more),
            cwd=project_root(),
            env=self.nodes.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def hashes(self, tree: str = TREE) -> dict[str, str]:
        lines = self.nodes.shell(NODE, f"cd {tree} && find . -type f -print0 | xargs -0 sha256sum").splitlines()
        return {line.split()[1][2:]: line.split()[0] for line in lines}

    def wanted(self) -> dict[str, str]:
        return {file.path: file.sha256 for file in manifests.read(self.known).files}


@pytest.fixture(scope="module")
def node(nodes: Nodes) -> Iterator[Nodes]:
    """A node on which nothing was ever brought up."""
    nodes.make(Spec(NODE))
    yield nodes
    nodes.lab.remove(NODE)


@pytest.fixture
def site(node: Nodes, tmp_path: Path) -> Iterator[Site]:
    """After each test a teardown leaves nothing at all behind."""
    found = Site(node, tmp_path)
    model(found.source)
    found.describe()
    before = node.tree(NODE)
    yield found
    down = node.run("down", limit=NODE)
    assert down.code == 0, down.document
    assert node.tree(NODE) == before
    assert node.shell(NODE, "ls /run/vllm-node 2>/dev/null || true") == ""


def test_a_node_without_rsync_says_what_to_install(site: Site) -> None:
    site.nodes.shell(NODE, "mv /usr/bin/rsync /usr/bin/away")
    try:
        done = site.up()
    finally:
        site.nodes.shell(NODE, "mv /usr/bin/away /usr/bin/rsync")
    assert done.returncode == 2
    assert "rsync is not installed on this node" in done.stdout


def test_a_model_is_delivered_and_a_second_run_changes_nothing(site: Site) -> None:
    assert site.brought("--check")["changed"] is True
    assert site.nodes.shell(NODE, f"ls -d {TREE} 2>/dev/null || true") == ""
    first = site.brought()
    assert first["delivered"]["chat"] > 0
    assert site.hashes() == site.wanted()
    before = site.nodes.tree(NODE)
    done = site.up()
    assert "changed=0" in done.stdout
    second = json.loads(site.answer.read_text())
    assert (second["verified"], second["read"], second["delivered"]) == (["chat"], [], {})
    assert site.nodes.tree(NODE) == before


def test_a_model_that_changed_on_the_node_is_found_and_mended(site: Site) -> None:
    site.brought()
    site.nodes.shell(NODE, f"printf x | dd of={TREE}/{SHARDS[1]} bs=1 seek=200 conv=notrunc status=none")
    done = site.up()
    assert f"{SHARDS[1]} has other content" in done.stdout
    assert json.loads(site.answer.read_text())["changed"] is True
    assert site.hashes() == site.wanted()


def test_a_model_in_place_is_verified_and_refused_when_it_differs(site: Site) -> None:
    site.nodes.shell(NODE, f"cp -r /srv/models/tiny /opt/{NODE}")
    try:
        manifests.write(manifests.make(_root(site.nodes) / f"opt/{NODE}"), site.known)
        site.entry |= {"source": "path", "path": f"/opt/{NODE}"}
        assert site.brought()["read"] == ["chat"]
        assert site.brought()["read"] == []
        site.nodes.shell(NODE, f"printf x | dd of=/opt/{NODE}/{SHARDS[0]} bs=1 seek=4000 conv=notrunc status=none")
        for _ in range(2):
            done = site.up()
            assert done.returncode == 2
            assert f"/opt/{NODE}: {SHARDS[0]} has other content" in re.sub(r"\s+", " ", done.stdout)
        down = site.nodes.run("down", limit=NODE)
        assert down.code == 0
        assert len(site.hashes(f"/opt/{NODE}")) == len(site.wanted())
    finally:
        site.nodes.shell(NODE, f"rm -r /opt/{NODE}")


def test_a_path_of_the_node_is_copied_to_the_store(site: Site) -> None:
    manifests.write(manifests.make(_root(site.nodes) / "srv/models/tiny"), site.known)
    site.entry |= {"source": "path", "path": "/srv/models/tiny"}
    assert site.brought(model_store_copy=True)["delivered"]["chat"] > 0
    assert site.hashes() == site.wanted()


def test_a_corrupt_source_is_refused_by_name_and_never_served(site: Site) -> None:
    flip(site.source / SHARDS[0])
    done = site.up()
    assert done.returncode == 2
    assert f"{SHARDS[0]} has other content" in re.sub(r"\s+", " ", done.stdout)
    assert site.nodes.shell(NODE, f"ls -d {TREE} 2>/dev/null || true") == ""
    flip(site.source / SHARDS[0])
    assert site.brought()["delivered"]["chat"] == (site.source / SHARDS[0]).stat().st_size
    assert site.hashes() == site.wanted()


def test_a_disk_that_is_too_small_is_told_before_anything_is_sent(site: Site) -> None:
    size = 1 << 43
    document = json.loads(site.known.read_text())
    (shard,) = [file for file in document["files"] if file["path"] == SHARDS[0]]
    shard["size"] = size
    site.known.write_text(json.dumps(document))
    os.truncate(site.source / SHARDS[0], size)  # takes no space: it is a hole
    done = site.up()
    assert done.returncode == 2
    assert re.search(r"/srv/models has [\d.]+ GiB free, and 8192.00 GiB are to be brought", re.sub(r"\s+", " ", done.stdout))
    assert site.nodes.shell(NODE, f"ls -d {TREE}* 2>/dev/null || true") == ""


def _grown(site: Site, bytes_: int) -> None:
    end = time.monotonic() + 120
    while True:
        size = site.nodes.shell(NODE, f"du -sb {TREE}.incoming 2>/dev/null | cut -f1 || true").strip()
        if size and int(size) > bytes_:
            return
        assert time.monotonic() < end
        time.sleep(0.2)


def _rsyncs(site: Site) -> list[int]:
    done = subprocess.run(["pgrep", "-f", f"^rsync .*{site.source}/"], capture_output=True, text=True, check=False)
    return [int(pid) for pid in done.stdout.split()]


@pytest.mark.parametrize("who", ["rsync", "ansible"])
def test_a_killed_copy_goes_on_where_it_stopped(site: Site, who: str) -> None:
    shutil.rmtree(site.source)
    model(site.source, size=32 << 20)
    site.describe()
    with site.begin(model_store_bandwidth="8m") as play:
        _grown(site, 12 << 20)
        if who == "rsync":
            for pid in _rsyncs(site):
                os.kill(pid, signal.SIGKILL)
        else:
            play.terminate()
        said, _ = play.communicate(timeout=60)
    assert play.returncode != 0
    if who == "rsync":
        assert "it goes on where it stopped" in said
    end = time.monotonic() + 15
    while _rsyncs(site) and time.monotonic() < end:
        time.sleep(0.2)
    assert _rsyncs(site) == []
    assert site.nodes.shell(NODE, f"ls -d {TREE} 2>/dev/null || true") == ""
    outcome = site.brought()
    assert 0 < outcome["delivered"]["chat"] < (64 - 10) << 20
    assert site.hashes() == site.wanted()


def test_models_are_kept_by_a_teardown_that_is_asked_to(site: Site) -> None:
    site.brought()
    down = site.nodes.run("down", "--keep", "models", limit=NODE)
    assert down.code == 0, down.document
    assert down.host(NODE)["certificate"]["kept"] == [f"model {TREE}"]
    assert site.hashes() == site.wanted()
    outcome = site.brought()
    assert (outcome["read"], outcome["delivered"]) == ([], {})


def test_preflight_knows_what_will_be_brought(site: Site) -> None:
    instance = {"name": "chat", "model": TREE, "gpus": ["0"], "port": 8000}
    values: dict[str, Any] = {"vllm_instances": [instance]}
    assert "model.missing" in site.nodes.run("preflight", limit=NODE, variables=values).findings(NODE)
    values["model_store_models"] = [site.entry]
    assert site.nodes.run("preflight", limit=NODE, variables=values).findings(NODE) == set()
    site.known.unlink()
    assert site.nodes.run("preflight", limit=NODE, variables=values).findings(NODE) == {"model.delivery"}
