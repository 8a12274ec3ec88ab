"""The whole way over the gap with real vLLM: a bundle is made, copied, verified and brought to a bare node, in both ways.

The node has no route but to the lab's own addresses: the control host, and the site's registry on it. The tests build on
each other: with a registry first, then, on the node that a teardown has left bare, without any.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.labs import Nodes, Run
from tests.unit import bundles
from vllm_node.lab import network, registry, vllm_cpu
from vllm_node.lab.node import Spec

pytestmark = pytest.mark.real
NODE = "gap"
IMAGES = ("vllm", "prometheus", "alertmanager", "node_exporter", "dcgm_exporter", "gateway", "grafana")
CONTAINERS = ("alertmanager", "dcgm-exporter", "gateway", "grafana", "node-exporter", "prometheus", "vllm-tiny")
STORE = "/srv/brought"


class Gap:
    """Both sides: a folder with what is made, the node, and what its inventory says."""

    def __init__(self, nodes: Nodes, folder: Path) -> None:
        self.nodes, self.folder = nodes, folder
        self.bundle = folder / "arrived"
        known = nodes.lab.inventory()["all"]["vars"]["images_lock"]
        self.lock: dict[str, Any] = {name: known[name] for name in IMAGES}
        self.variables: dict[str, Any] = {
            "images_lock": self.lock,
            "model_store_dir": STORE,
            "model_store_models": [{"name": "tiny", "source": "bundle", "path": str(self.bundle)}],
            "vllm_instances": [
                {
                    **yaml.safe_load(Path("inventories/lab/group_vars/all/main.yml").read_text())["vllm_instances"][0],
                    "model": f"{STORE}/tiny",
                }
            ],
        }

    def bundle_command(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        done = self.nodes.program(sys.executable, "-m", "vllm_node", "bundle", *map(str, words))
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done

    def run(self, verb: str, *words: str, **more: Any) -> Run:
        run = self.nodes.run(verb, *words, limit=NODE, variables={**self.variables, **more})
        assert run.code == 0, (run.document, run.said)
        return run

    @contextmanager
    def site_registry(self) -> Iterator[registry.Own]:
        """The site's registry: empty, on the address that the node knows; the lab's own is down for so long."""
        self.nodes.lab.stop_registry()
        address = network.address(self.nodes.lab.subnet, 1)
        folder = self.folder / "registry"
        folder.mkdir()
        try:
            with registry.own(folder, names=(address, registry.HOST), at=address, port=registry.PORT) as own:
                yield own
        finally:
            self.nodes.lab.start_registry()
            shutil.rmtree(folder)


@pytest.fixture(scope="module")
def gap(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gap]:
    nodes.make(Spec(NODE))
    made = Gap(nodes, tmp_path_factory.mktemp("gap"))
    yield made
    nodes.lab.remove(NODE)
    shutil.rmtree(made.folder)


@pytest.fixture(scope="module")
def bare(gap: Gap) -> dict[str, str]:
    """Every file of the bare node."""
    return gap.nodes.tree(NODE)


@pytest.fixture(scope="module")
def arrived(gap: Gap, bare: object) -> Path:
    """The bundle on the site's side: made where upstream is reached, signed, copied to another place; the first is gone."""
    connected, upstream = gap.folder / "connected", gap.nodes.lab.upstream
    connected.mkdir()
    key = connected / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "maker", "-f", key], check=True)
    signers = gap.folder / "signers"
    signers.write_text(f"maker {' '.join((connected / 'key.pub').read_text().split()[:2])}\n")
    gap.bundle_command(
        *("create", "-i", bundles.inventory(connected / "inventory", gap.lock), "--output", connected / "bundle"),
        *("--only", "images", "--only", "models", "--only", "dashboards", "--model", f"tiny={vllm_cpu.model()}"),
        *("--authfile", upstream["authfile"], "--ca", upstream["ca"], "--sign-key", key),
    )
    shutil.copytree(connected / "bundle", gap.bundle)
    shutil.rmtree(connected)
    gap.bundle_command("verify", gap.bundle, "--allowed-signers", signers)
    return gap.bundle


def inspected(gap: Gap) -> dict[str, str]:
    """Container → the image by which podman says that it was made."""
    listed = json.loads(gap.nodes.shell(NODE, "podman inspect $(podman ps --quiet)"))
    digests = {one["Name"]: one["ImageDigest"] for one in listed}
    names = {one["Name"]: one["ImageName"] for one in listed}
    assert {name: image.rpartition("@")[2] for name, image in names.items()} == digests
    return names


def locked(gap: Gap) -> dict[str, str]:
    return {
        name: "{repository}@{digest}".format(**gap.lock["vllm" if name == "vllm-tiny" else name.replace("-", "_")])
        for name in CONTAINERS
    }


def test_the_node_reaches_nothing_but_the_control_host(gap: Gap) -> None:
    routes = json.loads(gap.nodes.shell(NODE, "ip -json route show"))
    assert [one["dst"] for one in routes] == [gap.nodes.lab.subnet]


def test_a_bundle_comes_up_by_way_of_the_sites_registry(gap: Gap, arrived: Path) -> None:
    with gap.site_registry() as site:
        gap.bundle_command(
            *("push", arrived, "--no-verify", "--registry", site.address),
            *("--authfile", site.authfile, "--cert-dir", site.ca_dir),
        )
        run = gap.run(
            "up", container_host_registry_ca=(site.ca_dir / "ca.crt").read_text(), container_host_registry_password=site.password
        )
    (answer,) = run.host(NODE)["answers"]
    assert answer["model"] == "tiny"
    assert answer["tokens"] > 0
    assert inspected(gap) == locked(gap)


def test_the_model_is_the_bundles_and_was_read_whole(gap: Gap) -> None:
    mark = json.loads(gap.nodes.shell(NODE, f"cat {STORE}/.tiny.json"))
    assert set(mark["files"]) == {path.name for path in (gap.bundle / "models/tiny").iterdir()}


def test_the_node_is_bare_again_after_a_teardown(gap: Gap, bare: dict[str, str]) -> None:
    gap.run("down")
    assert gap.nodes.tree(NODE) == bare


def test_the_same_bundle_comes_up_without_any_registry(gap: Gap, arrived: Path) -> None:
    gap.nodes.lab.stop_registry()
    try:
        gap.run("bundle load", str(arrived), "--no-verify", container_host_registry_address="")
        run = gap.run("up", container_host_registry_address="")
    finally:
        gap.nodes.lab.start_registry()
    assert run.host(NODE)["answers"][0]["tokens"] > 0
    assert inspected(gap) == locked(gap)
