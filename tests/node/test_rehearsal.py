"""A rehearsal without a way out: who tries to leave is told by name, and the node is open again afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.labs import Nodes, Run
from vllm_node.lab.node import Spec

pytestmark = pytest.mark.node
NODE = "closed"
# Alertmanager asks a name server for the first one, and goes straight to the second one, as soon as it has an alert.
OUTSIDE, ADDRESS = "deadman.elsewhere.example", "203.0.113.7"
OFFENDING = [
    {"name": "central", "kind": "webhook", "severities": ["deadman"], "url": f"http://{OUTSIDE}:9201/"},
    {"name": "other", "kind": "webhook", "severities": ["deadman"], "url": f"http://{ADDRESS}:9202/"},
]
SHORT: dict[str, Any] = {"vllm_instances": [], "rehearse_seconds": 15}


@pytest.fixture(scope="module")
def closed(nodes: Nodes) -> Iterator[Nodes]:
    """A node with a route to nowhere, so that attempts get as far as the node's own edge."""
    nodes.make(Spec(NODE, podman="5.4"))
    nodes.shell(NODE, "ip route add 203.0.113.0/24 dev host0; ip route add 198.18.0.0/15 dev host0")
    yield nodes
    nodes.lab.remove(NODE)


def ids(nodes: Nodes) -> dict[str, str]:
    listed = json.loads(nodes.shell(NODE, "podman ps --format json"))
    return {one["Names"][0]: one["Id"] for one in listed}


def rehearse(nodes: Nodes, **variables: Any) -> Run:
    return nodes.run("rehearse", limit=NODE, variables={**SHORT, **variables})


def nothing_is_left(nodes: Nodes) -> None:
    assert "rehearsal" not in nodes.shell(NODE, "nft list ruleset; ls /run /run/systemd/system; systemctl list-units")
    assert nodes.shell(NODE, "systemctl show -p NeedDaemonReload --value prometheus.service").strip() == "no"


def test_offenders_are_told_by_name_and_the_node_is_open_again(closed: Nodes) -> None:
    variables = {**SHORT, "alertmanager_receivers": OFFENDING}
    assert closed.run("up", limit=NODE, variables=variables).code == 0
    before = ids(closed)
    # An alert that Prometheus finds before Alertmanager listens is told again after a minute, and not before.
    run = rehearse(closed, alertmanager_receivers=OFFENDING, rehearse_seconds=90)
    assert run.code == 4, run.document
    message = run.host(NODE)["failure"]["message"]
    assert f"alertmanager.service tried to reach {OUTSIDE}:9201 (tcp," in message
    assert f"alertmanager.service tried to reach {ADDRESS}:9202 (tcp," in message
    # Each unit was started anew for it, and nobody else tried anything.
    after = ids(closed)
    assert set(after) == set(before)
    assert set(after.values()).isdisjoint(before.values())
    assert [name for name in after if name != "alertmanager" and f"{name}.service" in message] == []
    nothing_is_left(closed)
    # They went on after it as they were.
    assert ids(closed) == after


def test_what_is_allowed_is_no_attempt(closed: Nodes) -> None:
    closed.shell(NODE, f"cp /etc/hosts /root/hosts; echo '198.51.100.9 {OUTSIDE}' >>/etc/hosts")
    run = rehearse(closed, alertmanager_receivers=OFFENDING, rehearse_allowed=[OUTSIDE, "203.0.113.0/24"])
    assert run.code == 0, run.document
    unknown = rehearse(closed, alertmanager_receivers=OFFENDING, rehearse_allowed=["nobody.elsewhere.example"])
    assert unknown.code == 4
    assert "nobody.elsewhere.example may be reached (rehearse_allowed)" in unknown.host(NODE)["failure"]["message"]
    nothing_is_left(closed)


def test_a_watch_that_nobody_ends_goes_by_itself(closed: Nodes) -> None:
    run = rehearse(closed, rehearse_limit_s=5, rehearse_seconds=8)
    assert run.code == 4
    assert "one ends by itself after rehearse_limit_s" in run.host(NODE)["failure"]["message"]
    nothing_is_left(closed)
