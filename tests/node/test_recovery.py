"""A bring-up that fails half way, or is ended, leaves a node that can be torn down and brought up again."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.labs import Nodes
from vllm_node.lab.node import Spec

pytestmark = pytest.mark.node
NODE = "hurt"
WITHOUT_VLLM: dict[str, list[object]] = {"vllm_instances": []}


@pytest.fixture
def hurt(nodes: Nodes) -> Iterator[Nodes]:
    """A bare node."""
    nodes.make(Spec(NODE, podman="5.8"))
    yield nodes
    nodes.lab.remove(NODE)


def _goes_away_clean(nodes: Nodes, before: dict[str, str]) -> None:
    run = nodes.run("down", limit=NODE, variables={"teardown_stop_limit_s": 20})
    assert run.code == 0, run.document
    assert run.host(NODE)["certificate"]["clean"]
    assert nodes.tree(NODE) == before


def test_a_unit_that_dies_is_explained(hurt: Nodes) -> None:
    before = hurt.tree(NODE)
    hurt.shell(NODE, "cp -r /srv/models/tiny /srv/models/odd; sed -i s/LlamaForCausalLM/NoSuchModel/ /srv/models/odd/config.json")
    instance = {"name": "odd", "model": "/srv/models/odd", "gpus": ["0"], "port": 8000, "args": {"no-such-flag": 1}}
    ignored = {"preflight_ignore": ["instance.flags"]}
    run = hurt.run("up", limit=NODE, variables={"vllm_instances": [instance], **ignored})
    hurt.shell(NODE, "rm -r /srv/models/odd")
    assert run.code == 4
    message = run.host(NODE)["failure"]["message"]
    assert f"{NODE}: vllm-odd.service is not ready" in message
    assert "its last lines:" in message
    assert "unrecognized arguments: --no-such-flag" in message
    assert "does not know that flag" in message
    _goes_away_clean(hurt, before)


def test_an_interrupted_bring_up_is_taken_up_again_or_undone(hurt: Nodes) -> None:
    before = hurt.tree(NODE)
    argv = [sys.executable, "-m", "vllm_node", "up", "-i", "inventories/lab", "--limit", NODE]
    for moment in ("container_host: Registry access is staged", "pulling for"):
        assert "vllm-node down" in hurt.interrupted(moment, *argv)
    assert hurt.run("up", limit=NODE, variables=WITHOUT_VLLM).code == 0
    _goes_away_clean(hurt, before)


def test_specifications_of_the_site_stay_untouched(hurt: Nodes) -> None:
    hurt.shell(NODE, "mkdir /etc/cdi; nvidia-modprobe -u -c0; nvidia-ctk cdi generate --output=/etc/cdi/site.yaml")
    before = hurt.tree(NODE)
    assert hurt.run("up", limit=NODE, variables=WITHOUT_VLLM).code == 0
    assert hurt.shell(NODE, "ls /run/cdi 2>/dev/null || true") == ""
    _goes_away_clean(hurt, before)


def test_what_others_changed_meanwhile_is_told_and_not_touched(hurt: Nodes) -> None:
    assert hurt.run("up", limit=NODE, variables=WITHOUT_VLLM).code == 0
    hurt.shell(NODE, "echo '# theirs' > /etc/sysctl.d/99-theirs.conf")
    run = hurt.run("down", limit=NODE)
    assert run.code == 6
    assert run.host(NODE)["certificate"]["left"] == []
    assert any("/etc/sysctl.d/99-theirs.conf" in one for one in run.host(NODE)["certificate"]["difference"])
    assert hurt.shell(NODE, "cat /etc/sysctl.d/99-theirs.conf") == "# theirs\n"


def test_a_file_of_the_site_comes_back(hurt: Nodes) -> None:
    place = "/etc/containers/certs.d/registry.lab.internal:5000"
    hurt.shell(NODE, f"mkdir -p {place}; echo theirs > {place}/ca.crt; chmod 640 {place}/ca.crt")
    before = hurt.tree(NODE)
    assert hurt.run("up", limit=NODE, variables=WITHOUT_VLLM).code == 0
    assert "BEGIN CERTIFICATE" in hurt.shell(NODE, f"cat {place}/ca.crt")
    _goes_away_clean(hurt, before)
    assert hurt.shell(NODE, f"cat {place}/ca.crt") == "theirs\n"
