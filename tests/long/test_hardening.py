"""A node with firewalld is closed but for one door, and the door is open for those who may use it; all of it goes again.

The tests of this file build on each other: a node is brought up with a gateway, looked at, and torn down.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.hardening import assert_hardened
from tests.labs import Nodes
from vllm_node.lab.node import Spec

pytestmark = pytest.mark.node
NODE, PORT = "walled", 8443
UNITS = ("gateway", "dcgm-exporter", "node-exporter", "prometheus", "alertmanager", "grafana")
VARIABLES: dict[str, Any] = {
    "vllm_instances": [],
    "gateway_enabled": True,
    "gateway_listen_address": "0.0.0.0",
    "gateway_port": PORT,
    "gateway_clients": [{"name": "nobody", "key_sha256": "ab" * 32}],
}
SITES_OWN = 'rule family="ipv4" source address="192.0.2.0/24" port port="8443" protocol="tcp" accept'


class Site:
    """The node, its firewall, and the lab's side of it as a client."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        member = nodes.lab.member(NODE)
        assert member is not None
        self.address = nodes.lab.place(member).address
        self.near = nodes.lab.place(member).gateway + "/32"

    def shell(self, command: str) -> str:
        return self.nodes.shell(NODE, command)

    def run(self, verb: str, *words: str, **changed: Any) -> Any:
        return self.nodes.run(verb, *words, limit=NODE, variables={**VARIABLES, **changed})

    def rules(self) -> dict[str, list[str]]:
        """Rich rules that run, and those that are kept."""
        places = {"runtime": "", "permanent": "--permanent "}
        return {
            where: sorted(self.shell(f"firewall-cmd {words}--zone=public --list-rich-rules").splitlines())
            for where, words in places.items()
        }

    def is_open(self) -> bool:
        """Whether the lab's side of the bridge gets a connection."""
        with socket.socket() as client:
            client.settimeout(3)
            return client.connect_ex((self.address, PORT)) == 0

    def found(self) -> tuple[str, dict[str, str]]:
        """The rules of the kernel, and every file below /etc/firewalld."""
        tree = self.nodes.tree(NODE)
        return self.shell("nft -s list ruleset"), {path: tree[path] for path in tree if path.startswith("etc/firewalld")}


@pytest.fixture(scope="module")
def site(nodes: Nodes) -> Iterator[Site]:
    nodes.make(Spec(NODE, podman="5.4-firewalld", gpu="l40sx2"))
    yield Site(nodes)
    nodes.lab.remove(NODE)


@pytest.fixture(scope="module")
def found(site: Site) -> tuple[str, dict[str, str]]:
    """The firewall as found: the site's zone has a rule of its own."""
    for words in ("", "--permanent "):
        site.shell(f"firewall-cmd {words}--zone=public --add-rich-rule='{SITES_OWN}'")
    return site.found()


@pytest.fixture(scope="module")
def up(site: Site, found: tuple[str, dict[str, str]]) -> Any:
    return site.run("up", gateway_allowed_sources=[site.near, "192.0.2.0/24", "2001:db8::/48"])


def test_the_door_is_open_for_those_who_may_use_it(site: Site, up: Any) -> None:
    assert up.code == 0, up.said
    new = [
        f'rule family="ipv4" source address="{site.near}" port port="{PORT}" protocol="tcp" accept',
        f'rule family="ipv6" source address="2001:db8::/48" port port="{PORT}" protocol="tcp" accept',
    ]
    wanted = sorted([*new, SITES_OWN])
    assert site.rules() == {"runtime": wanted, "permanent": wanted}
    noted = json.loads(site.shell("cat /var/lib/vllm-node/manifest.json"))["firewall"]["rules"]
    assert sorted(noted) == sorted(["public", where, rule] for where in ("runtime", "permanent") for rule in new)
    assert site.is_open()


def test_all_else_is_closed(site: Site, up: Any) -> None:
    rows = assert_hardened(site.shell, UNITS, ports=[PORT])
    assert len(rows) == len(UNITS) + 1


def test_what_speaks_to_its_node_only_gets_no_further(site: Site, up: Any) -> None:
    ask = "podman exec grafana curl -s -o /dev/null -w '%{{http_code}}' -m 3 {url} || true"
    assert site.shell(ask.format(url="http://127.0.0.1:9091/-/ready")) == "200"
    # The registry of the lab, which the node itself reaches.
    registry = site.nodes.lab.registry_address
    assert site.shell(f"curl -sk -o /dev/null -w '%{{http_code}}' -m 3 https://{registry}/v2/") == "401"
    address = site.shell("getent hosts registry.lab.internal").split()[0]
    assert site.shell(ask.format(url=f"-k https://{address}:{registry.rpartition(':')[2]}/v2/")) == "000"


def test_a_second_run_changes_nothing_and_other_sources_shut_the_door(site: Site, up: Any) -> None:
    same = site.run("up", gateway_allowed_sources=[site.near, "192.0.2.0/24", "2001:db8::/48"])
    assert (same.code, same.host(NODE)["counts"]["changed"]) == (0, 0), same.host(NODE)["changes"]
    other = site.run("up", gateway_allowed_sources=["198.51.100.0/24"])
    assert other.code == 0, other.said
    assert not site.is_open()
    drift = site.run("verify", gateway_allowed_sources=[site.near])
    assert drift.code != 0
    assert "firewall" in drift.host(NODE)["failure"]["message"]


def test_a_teardown_leaves_the_firewall_as_it_was_found(site: Site, found: tuple[str, dict[str, str]], up: Any) -> None:
    down = site.run("down")
    assert down.code == 0, down.said
    assert site.found() == found
    assert site.rules() == {"runtime": [SITES_OWN], "permanent": [SITES_OWN]}
