"""Images by the names that upstream gives them, through a mirror; and what the node's own policy has to say about it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.labs import Nodes
from tests.unit.factories import snapshot as healthy
from vllm_node.lab.node import Spec
from vllm_node.preflight import judge, wanted_from

pytestmark = pytest.mark.node
NODE = "mirrored"
# A name that nothing answers to, as upstream's are at such a site.
UPSTREAM = "upstream.example"
POLICY = "/etc/containers/policy.json"
OURS = "/etc/containers/registries.conf.d/50-vllm-node.conf"
ACCEPT: dict[str, str] = {"type": "insecureAcceptAnything"}
REJECT = {"type": "reject"}
SIGNED = {"type": "signedBy", "keyType": "GPGKeys", "keyPath": "/etc/pki/rpm-gpg/nobody"}


class Site:
    """A node whose lock has upstream's names; only the node exporter is wanted, the smallest image."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        recorded = nodes.lab.inventory()["all"]["vars"]["images_lock"]
        registry = self.registry = nodes.lab.registry_address
        lock = {
            name: {**image, "repository": image["repository"].replace(registry, UPSTREAM)}
            for name, image in recorded.items()
        }
        self.image = "{repository}@{digest}".format(**lock["node_exporter"])
        self.internal = "{repository}@{digest}".format(**recorded["node_exporter"])
        self.variables: dict[str, Any] = {
            "images_lock": {"node_exporter": lock["node_exporter"]},
            "container_host_mirrors": [{"upstream": UPSTREAM, "mirror": registry}],
            "vllm_instances": [],
            **{f"{name}_enabled": False for name in ("dcgm_exporter", "prometheus", "alertmanager", "grafana", "gateway")},
        }

    def up(self, **changed: Any) -> Any:
        return self.nodes.run("up", limit=NODE, variables={**self.variables, **changed})

    def pull(self, image: str) -> tuple[int, str]:
        """Exit code and words of a pull by hand, with the account of the toolkit."""
        command = f"podman pull --quiet --authfile /etc/containers/auth-vllm-node.json {image} 2>&1; echo $?"
        *said, code = self.nodes.shell(NODE, command).splitlines()
        return int(code), "\n".join(said)


@pytest.fixture(scope="module")
def site(nodes: Nodes) -> Iterator[Site]:
    nodes.make(Spec(NODE))
    yield Site(nodes)
    nodes.lab.remove(NODE)


def policy(**scopes: Any) -> str:
    default = [scopes.pop("default", ACCEPT)]
    return json.dumps({"default": default, "transports": {"docker": {name: [rule] for name, rule in scopes.items()}}})


@pytest.mark.parametrize(
    ("break_it", "finding", "said"),
    [
        (f"echo '{policy(default=REJECT)}' > {POLICY}", "trust.reject", "everything (default)"),
        (f"echo '{policy(**{UPSTREAM: SIGNED})}' > {POLICY}", "trust.signature", UPSTREAM),
        (f"echo '{{' > {POLICY}", "trust.policy", POLICY),
        (f"rm {POLICY}", "trust.policy", POLICY),
        ("echo 'x = [' > /etc/containers/registries.conf.d/10-site.conf", "registries.unreadable", "10-site.conf"),
        (
            f"printf '[[registry]]\\nlocation = \"{UPSTREAM}\"\\n' > /etc/containers/registries.conf.d/10-site.conf",
            "registries.taken",
            "10-site.conf",
        ),
    ],
    ids=("default reject", "signatures asked for", "no JSON", "no policy", "no TOML", "the same table"),
)
def test_a_policy_or_a_table_in_the_way_is_told_before_anything_changes(
    site: Site, break_it: str, finding: str, said: str
) -> None:
    site.nodes.shell(NODE, f"cp {POLICY} /srv/policy.json; {break_it}")
    try:
        before = site.nodes.tree(NODE)
        run = site.up()
        assert (run.code, run.findings(NODE)) == (3, {finding}), run.host(NODE)["failure"]
        (told,) = [one for one in run.host(NODE)["findings"] if one["id"] == finding]
        assert said in told["seen"]
        assert site.nodes.tree(NODE) == before
    finally:
        site.nodes.shell(NODE, f"cp /srv/policy.json {POLICY}; rm -f /etc/containers/registries.conf.d/10-site.conf")


def test_a_mirror_that_lacks_the_image_is_named(site: Site) -> None:
    elsewhere = [{"upstream": UPSTREAM, "mirror": f"{site.registry}/nowhere"}]
    run = site.up(container_host_mirrors=elsewhere)
    assert (run.code, run.findings(NODE)) == (3, {"image.missing"})
    (told,) = [one for one in run.host(NODE)["findings"] if one["id"] == "image.missing"]
    assert f"{site.registry}/nowhere/prom/node-exporter" in told["seen"]


class TestBringUp:
    """In this order: each goes on where the one before it has left the node."""

    def test_upstreams_name_is_pulled_from_the_mirror(self, site: Site) -> None:
        run = site.up(container_host_short_names="refused")
        assert run.code == 0, run.host(NODE)["failure"]
        shell = site.nodes.shell
        assert "upstream.example" not in shell(NODE, "cat /etc/hosts")
        (image,) = json.loads(shell(NODE, "podman images --digests --format json"))
        assert site.image in image["RepoDigests"]
        assert shell(NODE, "systemctl is-active node-exporter").strip() == "active"
        assert site.image in shell(NODE, "podman inspect --format '{{.ImageName}}' node-exporter")

    def test_podman_understood_what_was_written(self, site: Site) -> None:
        told = json.loads(site.nodes.shell(NODE, "podman info --format json"))["registries"]
        assert told.get("search") in (None, [])
        assert told[UPSTREAM]["Location"] == told[UPSTREAM]["Prefix"] == UPSTREAM
        (mirror,) = told[UPSTREAM]["Mirrors"]
        assert (mirror["Location"], mirror["Insecure"], mirror["PullFromMirror"]) == (site.registry, False, "digest-only")
        assert site.nodes.shell(NODE, "stat -c %a /etc/containers/auth-vllm-node.json").strip() == "600"
        assert "short-name" in site.pull("node-exporter")[1]

    def test_a_second_run_changes_nothing(self, site: Site) -> None:
        run = site.up(container_host_short_names="refused")
        assert (run.code, run.host(NODE)["counts"]["changed"]) == (0, 0), run.host(NODE)["failure"]

    def test_a_tag_is_not_asked_of_the_mirror(self, site: Site) -> None:
        tag = site.variables["images_lock"]["node_exporter"]["tag"]
        code, said = site.pull(f"{site.image.partition('@')[0]}:{tag}")
        assert code != 0
        assert UPSTREAM in said
        known = f"{site.internal.partition('@')[0]}:{tag}"
        assert site.pull(known)[0] == 0
        site.nodes.shell(NODE, f"podman rmi {known}")

    @pytest.mark.parametrize("image", ["image", "internal"])
    @pytest.mark.parametrize(
        "rules",
        [
            {"default": REJECT},
            {"default": REJECT, UPSTREAM: ACCEPT},
            {"default": REJECT, "registry.lab.internal:5000": ACCEPT},
            {"default": REJECT, "*.example": ACCEPT},
            {"default": REJECT, "*.lab.internal": ACCEPT, "": ACCEPT},
            {UPSTREAM: ACCEPT, f"{UPSTREAM}/prom": REJECT},
            {f"{UPSTREAM}/prom": ACCEPT, f"{UPSTREAM}/prom/node-exporter": SIGNED},
            {"registry.lab.internal": REJECT, "registry.lab.internal:5000/prom": SIGNED},
            {"upstream.exam": REJECT, "*.internal": REJECT},
        ],
        ids=str,
    )
    def test_podman_judges_as_preflight_does(self, site: Site, image: str, rules: dict[str, Any]) -> None:
        wanted = getattr(site, image)
        repository, digest = wanted.split("@")
        lock = {"images_lock": {"node_exporter": {"repository": repository, "digest": digest}}}
        kinds = {scope: [rule["type"]] for scope, rule in rules.items()}
        told = {"default": kinds.pop("default", ["insecureAcceptAnything"]), "docker": kinds}
        seen = {**healthy(), "supply": {"policy": {"path": POLICY, "rules": told, "error": None}, "registries": []}}
        found = {each.id for each in judge(seen, wanted_from(NODE, lock))} & {"trust.reject", "trust.signature"}
        site.nodes.shell(NODE, f"cp {POLICY} /srv/policy.json; echo '{policy(**rules)}' > {POLICY}")
        try:
            code, said = site.pull(wanted)
        finally:
            site.nodes.shell(NODE, f"cp /srv/policy.json {POLICY}")
        assert (code != 0) == bool(found), (said, found)

    def test_teardown_takes_it_all_away(self, site: Site) -> None:
        # Pulled above by hand under another name, which is nothing of the toolkit's.
        site.nodes.shell(NODE, f"podman rmi {site.internal}")
        assert site.nodes.shell(NODE, f"cat {OURS}")
        run = site.nodes.run("down", limit=NODE)
        assert run.code == 0, run.host(NODE)["failure"]
        assert not [path for path in site.nodes.tree(NODE) if "vllm-node" in path]
