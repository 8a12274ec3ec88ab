"""A node is changed and goes back: by itself when the change does not work, and when it is asked to.

The tests of this file build on each other: a node is brought up, upgraded, upgraded to what cannot run, and taken back.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.labs import Nodes, Run
from tests.variants import variant
from vllm_node.lab.node import Spec

pytestmark = pytest.mark.node
NODE = "moved"
SECRET = "never-to-be-kept"


class Site:
    """A node that watches itself and serves no model; what changes is the image of its node exporter."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.lock: dict[str, Any] = nodes.lab.inventory()["all"]["vars"]["images_lock"]
        image = self.lock["node_exporter"]
        self.digests = {
            "old": image["digest"],
            "new": variant(image, Labels={"variant": "new"})["digest"],
            "broken": variant(image, Entrypoint=["/no/such/program"])["digest"],
        }

    def variables(self, which: str) -> dict[str, Any]:
        image = {**self.lock["node_exporter"], "digest": self.digests[which], "platform_digest": self.digests[which]}
        return {
            "images_lock": {**self.lock, "node_exporter": image},
            "vllm_instances": [],
            "dcgm_exporter_enabled": False,
            "alertmanager_enabled": False,
            "gateway_enabled": False,
            "grafana_admin_password": SECRET,
        }

    def run(self, verb: str, which: str) -> Run:
        return self.nodes.run(verb, limit=NODE, variables=self.variables(which))

    def asked(self, verb: str, *words: str) -> Run:
        """A verb that names its host."""
        done = self.nodes.program(*self._argv(verb, NODE, "--json", *words), limit_s=300)
        return Run(done.returncode, json.loads(done.stdout), done.stderr)

    def interrupt(self, verb: str, which: str, moment: str) -> str:
        """What a run said after it was ended, which it was as soon as it said `moment`."""
        return self.nodes.interrupted(moment, *self._argv(verb, "--limit", NODE, "-e", json.dumps(self.variables(which))))

    @staticmethod
    def _argv(verb: str, *words: str) -> list[str]:
        return [sys.executable, "-m", "vllm_node", verb, "-i", "inventories/lab", *words]

    def shell(self, command: str) -> str:
        return self.nodes.shell(NODE, command)

    def running(self) -> str:
        """Which of the digests the node exporter runs."""
        image = self.shell("podman ps --filter name=node-exporter --format '{{.Image}}'").strip()
        return next(name for name, digest in self.digests.items() if image.endswith(digest))

    def installed(self) -> dict[str, str]:
        """Everything below the places of units and configurations."""
        tree = self.nodes.tree(NODE)
        return {path: state for path, state in tree.items() if path.startswith(("etc/containers/systemd", "etc/vllm-node"))}

    def targets(self) -> dict[str, str]:
        url = "http://127.0.0.1:9091/api/v1/query?query=up"
        result = json.loads(self.shell(f"curl -sf '{url}'"))["data"]["result"]
        return {one["metric"]["job"]: one["value"][1] for one in result}

    def history(self) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = self.asked("history").host(NODE)["history"]["generations"]
        return told


@pytest.fixture(scope="module")
def site(nodes: Nodes) -> Iterator[Site]:
    nodes.make(Spec(NODE))
    yield Site(nodes)
    nodes.lab.remove(NODE)


@pytest.fixture(scope="module")
def bare(site: Site) -> dict[str, str]:
    return site.nodes.tree(NODE)


def test_a_change_that_works_stays_and_what_was_there_is_kept(site: Site, bare: object) -> None:
    assert site.run("up", "old").code == 0
    run = site.run("upgrade", "new")
    assert run.code == 0, run.document
    assert site.running() == "new"
    images = site.shell("podman images --digests --format '{{.Digest}}'").split()
    assert {site.digests["old"], site.digests["new"]} <= set(images)
    assert site.run("upgrade", "new").host(NODE)["counts"]["changed"] == 0


def test_a_change_that_never_gets_ready_is_taken_back(site: Site) -> None:
    before = site.installed()
    assert "vllm-node rollback" in site.interrupt("upgrade", "broken", "auto-restart")
    told = site.history()
    assert [(one["verb"], one["outcome"]) for one in told] == [("up", "ready"), ("upgrade", "ready"), ("upgrade", "applied")]
    assert told[1]["changes"] == [f"node-exporter: image {site.digests['old'][:19]} → {site.digests['new'][:19]}"]
    # All files are there by now; whether it ever runs is what this run looks at.
    run = site.run("upgrade", "broken")
    assert run.code == 9, run.document
    returned = run.host(NODE)["rollback"]
    assert returned["back"]
    message = run.host(NODE)["failure"]["message"]
    assert "node-exporter.service is not ready" in message
    assert "back on generation 2 since" in message
    assert f"images_lock.node_exporter: repository {site.lock['node_exporter']['repository']}, digest {site.digests['new']}" in message
    assert site.running() == "new"
    assert site.installed() == before
    assert site.targets() == {"node": "1", "prometheus": "1"}
    assert [one["outcome"] for one in site.history()] == ["ready", "ready", "rolled_back", "ready"]


def test_an_operator_goes_back_and_forth(site: Site) -> None:
    for which, number in (("old", 1), ("new", 4)):
        run = site.asked("rollback")
        assert run.code == 0, run.document
        assert run.host(NODE)["rollback"]["number"] == number
        assert site.running() == which
    # The inventory has the last word, and it has another.
    assert site.run("verify", "old").code == 4


def test_nothing_is_left_of_it(site: Site, bare: dict[str, str]) -> None:
    assert site.shell(f"grep -rl {SECRET} /var/lib/vllm-node || true") == ""
    run = site.run("down", "new")
    assert run.code == 0, run.document
    assert site.nodes.tree(NODE) == bare
