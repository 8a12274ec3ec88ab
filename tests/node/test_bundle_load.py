"""Images straight out of a bundle: on a node without any registry, under their locked digests, and gone after teardown."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.labs import Nodes, Run
from tests.registry import program
from tests.registry.tiny import DOCKER, OCI, Tiny, digest
from tests.unit import bundles, site_bundles
from vllm_node.lab import registry
from vllm_node.lab.node import Spec

pytestmark = pytest.mark.node
NODE = "loaded"
HOST = f"{registry.HOST}:{registry.PORT}"
PLACE = "/var/lib/vllm-node/load"


def stored(name: str) -> Path:
    """A blob in the storage of the lab's registry."""
    value = name.removeprefix("sha256:")
    return registry.storage() / "docker/registry/v2/blobs/sha256" / value[:2] / value / "data"


class Image:
    """An image of the lab in another of the formats that images come in. Its layers stay where they are."""

    def __init__(self, lock: dict[str, Any], kinds: dict[str, str], *, index: bool) -> None:
        said = json.loads(stored(lock["digest"]).read_bytes())
        self.layers = [one["digest"] for one in (said["config"], *said["layers"])]
        if kinds is DOCKER:
            said |= {"mediaType": kinds["manifest"], "config": {**said["config"], "mediaType": kinds["config"]}}
            said["layers"] = [{**one, "mediaType": kinds["layer"].removesuffix(".gzip")} for one in said["layers"]]
        self.tiny = Tiny(kinds, top=json.dumps(said).encode())
        self.tiny.manifests[digest(self.tiny.top)] = self.tiny.top
        if index:
            mine = {"mediaType": kinds["manifest"], "digest": digest(self.tiny.top), "size": len(self.tiny.top)}
            other = Tiny(kinds)
            theirs = other.platform("arm64", "never sent")
            self.tiny.blobs |= other.blobs
            self.tiny.manifests |= other.manifests
            self.tiny.index([theirs, {**mine, "platform": {"os": "linux", "architecture": "amd64"}}])
        self.platform = digest(json.dumps(said).encode())

    def lock(self, entry: dict[str, Any]) -> dict[str, Any]:
        return {**entry, "digest": self.tiny.digest, "platform_digest": self.platform}


FORMATS: dict[str, tuple[dict[str, str], bool]] = {
    "prometheus": (OCI, False),
    "alertmanager": (OCI, True),
    "node_exporter": (DOCKER, False),
    "grafana": (DOCKER, True),
    "dcgm_exporter": (OCI, True),
    "gateway": (OCI, False),
}


class Site:
    """A node, a bundle with everything that it runs, and a registry that is only a name."""

    def __init__(self, nodes: Nodes, folder: Path) -> None:
        self.nodes, self.bundle = nodes, folder / "bundle"
        known = nodes.lab.inventory()["all"]["vars"]["images_lock"]
        images = {name: Image(known[name], kinds, index=index) for name, (kinds, index) in FORMATS.items()}
        site_bundles.write(
            self.bundle,
            {name: image.tiny for name, image in images.items()},
            repositories={name: known[name]["repository"] for name in images},
            borrowed={layer: stored(layer) for image in images.values() for layer in image.layers},
        )
        self.lock = {name: image.lock(known[name]) for name, image in images.items()}
        self.variables: dict[str, Any] = {"vllm_instances": [], "images_lock": self.lock, "container_host_registry_address": ""}

    def load(self, *words: str, code: int = 0, **more: Any) -> Run:
        run = self.nodes.run("bundle load", str(self.bundle), *words, limit=NODE, variables={**self.variables, **more})
        assert run.code == code, (run.document, run.said)
        return run

    def up(self, **more: Any) -> Run:
        return self.nodes.run("up", limit=NODE, variables={**self.variables, **more})

    def shell(self, command: str) -> str:
        return self.nodes.shell(NODE, command)

    def repo_digests(self) -> dict[str, list[str]]:
        """RepoDigests of each image, by its id."""
        listed = json.loads(self.shell("podman images --all --format json"))
        return {one["Id"]: one["RepoDigests"] for one in listed}

    def reference(self, name: str) -> str:
        return f"{self.lock[name]['repository']}@{self.lock[name]['digest']}"

    def staged(self) -> list[str]:
        return self.shell(f"ls {PLACE}/images/blobs/sha256 2>/dev/null || true").split()


@pytest.fixture(scope="module")
def site(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The registry is down for as long as these tests run."""
    nodes.make(Spec(NODE))
    made = Site(nodes, tmp_path_factory.mktemp("site"))
    nodes.lab.stop_registry()
    try:
        yield made
    finally:
        nodes.lab.start_registry()
        nodes.lab.remove(NODE)


def all_there(site: Site) -> None:
    """Each image is there once, under the name and digest of the lock; nothing else of a load is."""
    digests = site.repo_digests()
    for name in FORMATS:
        (found,) = [ids for ids in digests.values() if site.reference(name) in ids]
        assert f"{site.lock[name]['repository']}@{site.lock[name]['platform_digest']}" in found
        told = json.loads(site.shell(f"podman image inspect {site.reference(name)}"))[0]["RepoDigests"]
        assert site.reference(name) in told
    assert len(digests) == len(FORMATS)
    assert site.staged() == []


def manifest_images(site: Site) -> set[str]:
    return set(json.loads(site.shell("cat /var/lib/vllm-node/manifest.json"))["images"])


def test_check_mode_says_so_and_changes_nothing(site: Site) -> None:
    before = site.nodes.tree(NODE)
    assert site.load("--check").host(NODE)["counts"]["changed"] > 0
    assert site.nodes.tree(NODE) == before


def test_a_node_without_registry_and_images_is_refused_before_anything_is_changed(site: Site) -> None:
    before = site.nodes.tree(NODE)
    run = site.up()
    assert run.code == 3
    assert run.findings(NODE) == {"image.unloaded"}
    assert site.nodes.tree(NODE) == before


def test_a_bundle_that_is_not_whole_stays_where_it_is(site: Site) -> None:
    path = site.bundle / "images/blobs/sha256" / site.lock["grafana"]["platform_digest"].removeprefix("sha256:")
    before = site.nodes.tree(NODE)
    bundles.flip(path)
    try:
        run = bundles.process("load", site.bundle, "-i", "inventories/lab", "-l", NODE, env=site.nodes.environment())
        said = run.communicate(timeout=120)[0]
    finally:
        bundles.flip(path)
    assert run.returncode == 3, said
    assert "is not what its maker made; nothing was done" in said
    assert site.nodes.tree(NODE) == before


def test_an_image_that_the_bundle_does_not_have_is_told_before_anything_is_sent(site: Site) -> None:
    other = "sha256:" + "1" * 64
    lock = {**site.lock, **{name: {**site.lock[name], "digest": other} for name in ("grafana", "alertmanager")}}
    failure = site.load(code=4, images_lock=lock).host(NODE)["failure"]["message"]
    assert [f"image {name}: {site.bundle} does not have {other}" in failure for name in ("grafana", "alertmanager")] == [True, True]
    assert site.repo_digests() == {}
    assert site.staged() == []


MOMENTS: dict[str, Callable[[Site], bool]] = {
    "while blobs are sent": lambda site: len(site.staged()) > 1,
    "while podman unpacks": lambda site: bool(site.shell("systemctl list-units --plain --no-legend 'vllm-node-pull-*'").strip()),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_load_that_is_killed_is_finished_by_the_next_one(site: Site, moment: str) -> None:
    words = ("load", site.bundle, "-i", "inventories/lab", "-l", NODE, "--no-verify", "-e", json.dumps(site.variables))
    # Slowly, so that there is something to be in the middle of.
    running = bundles.process(*words, "-e", "image_load_bandwidth=40m", env=site.nodes.environment())
    bundles.kill_when(running, lambda: MOMENTS[moment](site), limit_s=120)
    end_what_the_killed_one_left(site.bundle)
    assert site.staged() != []


def end_what_the_killed_one_left(bundle: Path) -> None:
    """Ansible and its rsync have lost who asked for them; they would go on, and may."""
    end = time.monotonic() + 10
    while bundles.programs_in(bundle) and time.monotonic() < end:
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if int(entry.name) != os.getpid() and f"{bundle}/".encode() in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), 9)
        time.sleep(0.2)


def test_images_are_there_under_their_locked_digests(site: Site) -> None:
    result = site.load().host(NODE)
    all_there(site)
    assert manifest_images(site) == {site.reference(name) for name in FORMATS}
    assert result["counts"]["failed"] == 0


def test_a_second_load_sends_and_changes_nothing(site: Site) -> None:
    before = site.nodes.tree(NODE)
    assert site.load("--no-verify").host(NODE)["counts"]["changed"] == 0
    assert site.nodes.tree(NODE) == before


def test_a_bring_up_asks_no_registry(site: Site) -> None:
    before = site.repo_digests()
    run = site.up()
    assert run.code == 0, run.document
    assert site.repo_digests() == before
    running = json.loads(site.shell("podman ps --format json"))
    assert {one["Image"] for one in running} == {site.reference(name) for name in FORMATS}
    assert site.up().host(NODE)["counts"]["changed"] == 0
    # The same where the registry has a name, and nobody answers by it: it is told, and not in the way.
    run = site.up(container_host_registry_address=HOST)
    assert run.code == 0, run.document
    assert "registry.unreachable" in run.findings(NODE, "warn")


def test_one_that_is_missing_is_brought_alone_by_a_bring_up(site: Site) -> None:
    site.shell(f"systemctl stop grafana; podman rm -f grafana; podman rmi {site.reference('grafana')}")
    run = site.up(image_load_bundle=str(site.bundle))
    assert run.code == 0, run.document
    all_there(site)


def test_teardown_leaves_nothing(site: Site) -> None:
    run = site.nodes.run("down", limit=NODE, variables=site.variables)
    assert run.code == 0, run.document
    assert site.repo_digests() == {}
    assert {path for path in site.nodes.tree(NODE) if "vllm-node" in path} == set()


def test_a_first_node_comes_up_from_a_bundle_that_is_served(site: Site, tmp_path: Path) -> None:
    """Where the real registry is still to come: by the names of the lock, and what serve says is all that is needed."""
    lab = site.nodes.lab
    member = lab.member(NODE)
    assert member is not None
    words = ("serve", site.bundle, "--address", lab.place(member).gateway, "--port", "5001", "--no-verify")
    env = {"PATH": f"{program.install(tmp_path)}:{os.environ['PATH']}", "XDG_STATE_HOME": str(tmp_path)}
    served = bundles.process(*words, env=env)
    assert served.stdout is not None
    try:
        said = list(iter(served.stdout.readline, "Ctrl-C ends it.\n"))
        told = yaml.safe_load("".join(said[said.index("In the inventory:\n") + 1 :]))
        run = site.up(**told)
        assert run.code == 0, run.document
        all_there(site)
        assert site.up(**told).host(NODE)["counts"]["changed"] == 0
    finally:
        served.send_signal(signal.SIGINT)
        assert served.wait(30) == 0
        served.stdout.close()
    assert site.nodes.run("down", limit=NODE, variables=site.variables).code == 0


def test_a_spoilt_blob_is_not_taken_and_not_kept(site: Site) -> None:
    _config, layer = Image(site.nodes.lab.inventory()["all"]["vars"]["images_lock"]["grafana"], DOCKER, index=True).layers
    path = site.bundle / "images/blobs/sha256" / layer.removeprefix("sha256:")
    bundles.flip(path)
    failure = site.load("--no-verify", code=4).host(NODE)["failure"]["message"]
    assert "image grafana cannot be loaded" in failure
    assert f"what was sent is damaged, and is removed: {path.name}" in failure
    assert site.reference("grafana") not in [one for ids in site.repo_digests().values() for one in ids]
    assert path.name not in site.staged()
    bundles.flip(path)
    site.load("--no-verify")
    all_there(site)
    # What a load has left half done goes with a teardown as well.
    site.shell(f"mkdir -p {PLACE}/images; touch {PLACE}/images/x")
    assert site.nodes.run("down", "--keep", "images", limit=NODE, variables=site.variables).code == 0
    assert site.shell(f"ls -d {PLACE} 2>/dev/null || true") == ""
    assert site.nodes.run("down", limit=NODE, variables=site.variables).code == 0


def test_podman_as_it_will_be_takes_the_same(site: Site) -> None:
    site.nodes.lab.start_registry()  # without it a lab counts as one that has ended
    site.nodes.remake(Spec(NODE, podman="5.8"))
    site.nodes.lab.stop_registry()
    site.load("--no-verify")
    all_there(site)
    assert site.nodes.run("down", limit=NODE, variables=site.variables).code == 0
    assert site.repo_digests() == {}
