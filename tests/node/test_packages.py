"""Packages from the site's own repository on a node with dnf and without podman: installed, locked, refused, handed back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.labs import Nodes
from tests.rpms import ENABLED, PODMAN, URL, Workshop
from vllm_node.lab.node import Spec

pytestmark = pytest.mark.node
NODE = "rpms"
# dnf and rpm write there themselves, and what stands in their database is compared by name; the repository is in srv.
_DATABASES = ("var/lib/rpm", "var/lib/dnf", "srv")
_LIST = "/etc/dnf/plugins/versionlock.list"
_TOOLKIT = "nvidia-container-toolkit-1.19.1-1.noarch"
_PLUGIN = "python3-dnf-plugin-versionlock-4.3.1-1.x86_64"


class Site:
    """A node that waits for podman, and a repository with it; `variables` is what brings it up."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        shop = self.shop = Workshop(nodes, NODE)
        self.key, self.other_key = shop.key("signer"), shop.key("stranger")
        shop.podman("signer")
        shop.lock_plugin("signer")
        for version in ("1.0", "2.0"):
            shop.package("updated", version, signer="signer")
        shop.package("nvidia-container-toolkit", "1.19.1", signer="signer")
        shop.package("unsigned", "1.0", signer=None)
        shop.package("needy", "1.0", signer="signer", tags="Requires: absent")
        shop.package("greedy", "1.0", signer="signer", tags="Obsoletes: bystander\nProvides: bystander")
        shop.package("bystander", "1.0", signer="signer")
        shop.index()
        # As found there are two packages: one that will be updated, and one that nobody may touch.
        shop.shell("rpm --install --nosignature /srv/rpms/updated-1.0-1.rpm /srv/rpms/bystander-1.0-1.rpm")
        self.packages, self.tree = self.database(), self.written()
        self.variables: dict[str, Any] = {
            "packages_repository": URL,
            "packages_gpg_key": self.key,
            "vllm_instances": [],
            **{f"{name}_enabled": False for name in ("dcgm_exporter", "prometheus", "alertmanager", "grafana", "gateway")},
        }

    def database(self) -> list[str]:
        """Packages and keys."""
        return sorted(self.nodes.shell(NODE, "rpm -qa").split())

    def written(self) -> dict[str, str]:
        return {path: state for path, state in self.nodes.tree(NODE).items() if not path.startswith(_DATABASES)}

    def up(self, *words: str, **changed: Any) -> Any:
        return self.nodes.run("up", *words, limit=NODE, variables={**self.variables, **changed})


@pytest.fixture(scope="module")
def site(nodes: Nodes) -> Iterator[Site]:
    nodes.make(Spec(NODE, podman="none"))
    yield Site(nodes)
    nodes.lab.remove(NODE)


@pytest.mark.parametrize(
    ("finding", "changed"),
    [
        ("packages.key", {"packages_gpg_key": ""}),
        ("packages.repository", {"packages_repository": "ftp://site.example/rpms"}),
        ("packages.name", {"packages_install": ["podman", "@base"], "packages_versionlock": []}),
        ("packages.versionlock", {"packages_install": ["podman"]}),
        ("podman.missing", {"packages_install": ["nvidia-container-toolkit"], "packages_versionlock": []}),
        ("podman.missing", {"packages_repository": ""}),
    ],
    ids=("no key", "not a repository", "a group", "locks without a plugin", "podman not asked for", "no repository"),
)
def test_wishes_that_lead_nowhere_are_refused_before_anything_changes(site: Site, finding: str, changed: Any) -> None:
    run = site.up(**changed)
    assert (run.code, run.findings(NODE)) == (3, {finding}), run.host(NODE)["failure"]
    assert (site.written(), site.database()) == (site.tree, site.packages)


@pytest.mark.parametrize(
    ("said", "changed"),
    [
        ("has no package nosuch", {"packages_install": ["podman", "nosuch"]}),
        ("unsigned-1.0-1.noarch in file:///srv/rpms is not signed, and nothing was installed", {"packages_install": ["podman", "unsigned"]}),
        ("is not signed with the key in packages_gpg_key, and nothing was installed", {"packages_gpg_key": "the stranger's"}),
        ("nothing provides absent", {"packages_install": ["podman", "needy"]}),
        ("would remove bystander-1.0-1.noarch", {"packages_install": ["podman", "greedy"]}),
        ("file:///srv/nowhere cannot be read from the node", {"packages_repository": "/srv/nowhere"}),
    ],
    ids=("no such package", "unsigned", "another key", "something is missing", "something would go", "no repository"),
)
def test_what_cannot_be_installed_is_named_and_nothing_is_installed(site: Site, said: str, changed: dict[str, Any]) -> None:
    if "packages_gpg_key" in changed:
        changed = {"packages_gpg_key": site.other_key}
    run = site.up(**{"packages_versionlock": [], **changed})
    failure = run.host(NODE)["failure"]
    assert run.code == 4, run.host(NODE)["failure"]
    assert failure["message"].startswith(f"{NODE}: ")
    assert said in failure["message"]
    assert [name for name in site.database() if not name.startswith("gpg-pubkey")] == site.packages


def test_a_bring_up_that_was_refused_leaves_nothing_behind(site: Site) -> None:
    run = site.nodes.run("down", limit=NODE)
    assert run.code == 0, run.host(NODE)["failure"]
    assert (site.written(), site.database()) == (site.tree, site.packages)


def test_check_mode_says_what_is_missing_and_changes_nothing(site: Site) -> None:
    run = site.up("--check")
    assert run.code == 0, run.host(NODE)["failure"]
    assert run.host(NODE)["counts"]["changed"] > 0
    assert "podman.missing" in run.findings(NODE, "warn")
    assert (site.written(), site.database()) == (site.tree, site.packages)


class TestBringUp:
    """In this order: each goes on where the one before it has left the node."""

    wishes = ("podman >= 5.4", "nvidia-container-toolkit", "python3-dnf-plugin-versionlock", "updated >= 2")

    def up(self, site: Site, **changed: Any) -> Any:
        return site.up(**{"packages_install": list(self.wishes), **changed})

    def test_a_node_without_podman_comes_up(self, site: Site) -> None:
        run = self.up(site)
        assert run.code == 0, run.host(NODE)["failure"]
        assert "podman.missing" in run.findings(NODE, "warn")
        assert {PODMAN, _TOOLKIT, _PLUGIN, "updated-2.0-1.noarch"} <= set(site.database())
        assert site.nodes.shell(NODE, "systemctl is-active node-exporter").strip() == "active"

    def test_a_second_run_changes_nothing(self, site: Site) -> None:
        run = self.up(site)
        assert (run.code, run.host(NODE)["counts"]["changed"]) == (0, 0), run.host(NODE)["failure"]

    def test_the_sites_dnf_sees_nothing_of_the_repository(self, site: Site) -> None:
        assert "vllm-node" not in site.nodes.shell(NODE, "dnf repolist --enabled")
        assert "gpgcheck=1" in site.nodes.shell(NODE, "cat /etc/yum.repos.d/vllm-node.repo")

    def test_the_toolkit_stays_in_its_version_whoever_calls_dnf(self, site: Site) -> None:
        assert "nvidia-container-toolkit-0:1.19.1-1.*" in site.nodes.shell(NODE, "dnf -q versionlock list")
        site.shop.package("nvidia-container-toolkit", "1.20.0", signer="signer")
        site.shop.index()
        ours = "dnf -y --disablerepo='*' --enablerepo=vllm-node --setopt=gpgcheck=1"
        site.nodes.shell(NODE, f"{ours} upgrade nvidia-container-toolkit")
        assert _TOOLKIT in site.database()
        # Without the lock it would have gone: the lock is what keeps it.
        assert "1.20.0" in site.nodes.shell(NODE, f"{ours} --disableplugin=versionlock check-update || true")

    def test_verify_finds_what_is_not_there_any_more(self, site: Site) -> None:
        def verify() -> Any:
            return site.nodes.run("verify", limit=NODE, variables={**site.variables, "packages_install": list(self.wishes)})

        assert verify().code == 0
        site.nodes.shell(NODE, "rpm --erase --justdb nvidia-container-toolkit; echo '#' >> /etc/yum.repos.d/vllm-node.repo")
        run = verify()
        assert run.code == 4
        message = run.host(NODE)["failure"]["message"]
        assert "/etc/yum.repos.d/vllm-node.repo" in message
        assert "nvidia-container-toolkit" in message
        again = "rpm --install --justdb --nosignature $(find /srv/rpms -name 'nvidia-container-toolkit-1.19.1-*.rpm')"
        site.nodes.shell(NODE, f"sed -i '$d' /etc/yum.repos.d/vllm-node.repo; {again}")
        assert verify().code == 0

    def test_a_lock_of_the_site_is_left_alone(self, site: Site) -> None:
        site.nodes.shell(NODE, f"echo '# ours\nbystander-0:1.0-1.*' >> {_LIST}")
        assert self.up(site).host(NODE)["counts"]["changed"] == 0
        run = self.up(site, packages_versionlock=["updated"])
        assert run.code == 0, run.host(NODE)["failure"]
        lines = site.nodes.shell(NODE, f"cat {_LIST}").splitlines()
        assert lines == ["# ours", "bystander-0:1.0-1.*", "updated-0:2.0-1.*"]
        site.nodes.shell(NODE, f"sed -i 1,2d {_LIST}")

    def test_teardown_keeps_the_packages_says_so_and_takes_the_rest(self, site: Site) -> None:
        run = site.nodes.run("down", limit=NODE)
        assert run.code == 0, run.host(NODE)["failure"]
        kept = set(run.host(NODE)["certificate"]["kept"])
        assert kept == {
            f"package {PODMAN}",
            f"package {_TOOLKIT}",
            f"package {_PLUGIN}",
            "package updated-2.0-1.noarch (found as updated-1.0-1.noarch)",
        }
        assert not [name for name in site.database() if name.startswith("gpg-pubkey")]
        assert site.nodes.shell(NODE, f"cat {_LIST}") == ""
        owned = set(site.nodes.shell(NODE, f"rpm -ql {PODMAN} {_TOOLKIT} {_PLUGIN} updated").split())
        new = {f"/{path}" for path, state in site.written().items() if site.tree.get(path) != state}
        # Debian's Python compiles what it runs; a distribution of RPMs packages that.
        new = {path for path in new if "__pycache__" not in path}
        beside = {path for path in new - owned if not path.startswith("/var/lib/vllm-node")}
        folders = {path for path in beside if any(file.startswith(f"{path}/") for file in owned)}
        assert beside - folders == {ENABLED}

    def test_what_a_package_did_not_bring_is_still_told(self, site: Site) -> None:
        site.nodes.shell(NODE, "echo x > /etc/containers/stray.conf; echo '#' >> /etc/containers/registries.conf")
        run = site.nodes.run("down", limit=NODE)
        site.nodes.shell(NODE, "rm /etc/containers/stray.conf; sed -i '$d' /etc/containers/registries.conf")
        told = " ".join(run.host(NODE)["certificate"]["difference"])
        assert run.code == 6
        assert "/etc/containers/stray.conf" in told
        assert "/etc/containers/registries.conf" in told

    def test_asked_for_the_packages_go_too(self, site: Site) -> None:
        site.nodes.shell(NODE, f"true > {_LIST}; rm {ENABLED}")
        run = site.nodes.run("down", "--remove", "packages", limit=NODE)
        assert run.code == 0, run.host(NODE)["failure"]
        assert [name for name in site.database() if name not in site.packages] == ["updated-2.0-1.noarch"]
        assert run.host(NODE)["certificate"]["kept"] == ["package updated-2.0-1.noarch (found as updated-1.0-1.noarch)"]


def test_a_node_without_dnf_is_refused_a_repository(nodes: Nodes) -> None:
    nodes.make(Spec("dnfless"))
    try:
        before = nodes.tree("dnfless")
        run = nodes.run("up", limit="dnfless", variables={"packages_repository": URL, "packages_gpg_key": "-----BEGIN PGP PUBLIC KEY BLOCK-----"})
        assert (run.code, run.findings("dnfless")) == (3, {"packages.dnf"}), run.host("dnfless")["failure"]
        assert nodes.tree("dnfless") == before
    finally:
        nodes.lab.remove("dnfless")
