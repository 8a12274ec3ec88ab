"""What a node is sent of an image, how podman finds it there, and what is done when it does not come to be."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.registry import tiny
from tests.registry.tiny import DOCKER, OCI, Tiny
from tests.unit import site_bundles
from tests.unit.role_code import load, run_module
from vllm_node.bundle import oci
from vllm_node.bundle.load import Image, LoadError, Loading, Settings, plan
from vllm_node.transfer import Reach

needs_rsync = pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed")
IMAGES: dict[str, Callable[[], Tiny]] = {
    "oci": lambda: tiny.two_platforms("load"),
    "docker": lambda: tiny.two_platforms("load", DOCKER),
    "single": tiny.one_platform,
    "docker_single": lambda: tiny.one_platform(kinds=DOCKER),
}


def lock(**images: Tiny) -> dict[str, dict[str, Any]]:
    return {
        name: {"repository": f"{site_bundles.HOST}/x/{name}", "digest": image.digest, "architecture": "amd64"}
        for name, image in images.items()
    }


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return site_bundles.write(tmp_path / "bundle", {name: make() for name, make in IMAGES.items()})


def planned(bundle: Path, name: str, **changed: Any) -> Image:
    (image,) = plan(bundle, {name: {**lock(**{name: IMAGES[name]()})[name], **changed}})
    return image


@pytest.mark.parametrize("name", IMAGES)
def test_only_what_a_node_needs_is_sent(bundle: Path, name: str) -> None:
    made, image = IMAGES[name](), planned(bundle, name)
    platform = site_bundles.platform_of(made)
    said = json.loads(made.manifests[platform])
    wanted = {made.digest, platform, said["config"]["digest"], *(one["digest"] for one in said["layers"])}
    assert {f"sha256:{one}" for one in image.blobs} == wanted
    assert all((bundle / "images/blobs/sha256" / one).stat().st_size == size for one, size in image.blobs.items())
    assert image.bytes == sum(image.blobs.values())
    assert image.reference == f"{site_bundles.HOST}/x/{name}@{made.digest}"


def test_an_entry_without_platform_digest_takes_its_architectures(bundle: Path) -> None:
    index = IMAGES["oci"]()
    other = planned(bundle, "oci", architecture="arm64")
    assert set(other.blobs) != set(planned(bundle, "oci").blobs)
    named = planned(bundle, "oci", platform_digest=list(index.manifests)[1])
    assert named.blobs == other.blobs


@pytest.mark.parametrize(("name", "kinds"), [("oci", OCI), ("single", OCI)])
def test_an_image_in_ocis_format_is_named_as_it_is(bundle: Path, name: str, kinds: dict[str, str]) -> None:
    image, made = planned(bundle, name), IMAGES[name]()
    assert (image.entry.digest, image.entry.size, image.made) == (made.digest, len(made.top), {})
    assert image.entry.media_type == kinds["index" if name == "oci" else "manifest"]


def test_a_list_of_docker_is_called_an_index(bundle: Path) -> None:
    image = planned(bundle, "docker")
    assert (image.entry.digest, image.entry.media_type, image.made) == (IMAGES["docker"]().digest, oci.OCI_INDEX, {})


def test_a_lone_manifest_of_docker_gets_an_index_that_names_it(bundle: Path) -> None:
    image = planned(bundle, "docker_single")
    ((name, text),) = image.made.items()
    assert hashlib.sha256(text.encode()).hexdigest() == name
    assert (image.entry.digest, image.entry.size, image.entry.media_type) == (f"sha256:{name}", len(text), oci.OCI_INDEX)
    (child,) = oci.parse(text.encode()).children
    assert (child.digest, child.media_type, child.platform) == (IMAGES["docker_single"]().digest, DOCKER["manifest"], "linux/amd64")


def test_everything_that_a_bundle_does_not_have_is_told_at_once(bundle: Path, tmp_path: Path) -> None:
    wanted = lock(oci=IMAGES["oci"](), gone=tiny.two_platforms("gone"), docker=IMAGES["docker"]())
    wanted["docker"]["platform_digest"] = "sha256:" + "1" * 64
    wanted["oci"]["architecture"] = "s390x"
    with pytest.raises(LoadError) as caught:
        plan(bundle, wanted)
    lines = str(caught.value).splitlines()
    assert [line.partition(":")[0] for line in lines[:-1]] == ["image docker", "image gone", "image oci"]
    assert "does not have" in lines[1]
    assert "it has linux/amd64, linux/arm64/v8" in lines[2]
    assert lines[-1].startswith("make the bundle anew")
    with pytest.raises(LoadError, match="is no bundle"):
        plan(tmp_path / "nowhere", wanted)


class Node:
    """This machine as a node: the layout's own module, and a podman of which only the answers are known."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.state_dir, self.capsys = folder / "state", capsys
        self.module = load("roles/image_load/library/image_layout.py")
        self.module.STORE = str(folder / "containers")
        self.present: list[str] = []
        self.failing: dict[str, str] = {}
        self.slow = 0
        self.late: set[str] = set(IMAGES)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.told: list[str] = []
        self.seen: dict[str, set[str]] = {}

    @property
    def layout(self) -> Path:
        return self.state_dir / "load/images"

    def step(self, module: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((module, arguments))
        if module == "image_layout":
            return run_module(self.module, self.capsys, **arguments)
        names = [image["name"] for image in arguments["images"]]
        if arguments["parallel"] == 0:
            return {"present": [name for name in names if name in self.present], "failed_images": {}, "pulling": {}}
        for image in arguments["images"]:
            assert image["source"] == f"oci:{self.layout}:{image['reference']}"
            self.seen.setdefault(image["name"], {path.name for path in self.layout.glob("blobs/sha256/*")})
        begun = names if arguments["wait_s"] == 0 else [name for name in names if self.slow > 0 and name in self.late]
        self.slow -= arguments["wait_s"] > 0
        failed = {name: self.failing[name] for name in names if name in self.failing and name not in begun}
        self.present += [name for name in names if name not in failed and name not in begun]
        return {"present": [], "failed_images": failed, "pulling": dict.fromkeys(begun, "started")}

    def run(self, bundle: Path, wanted: dict[str, dict[str, Any]], *, dry: bool = False, limit_s: float = 100) -> Any:
        settings = Settings(str(self.state_dir), limit_s=limit_s, dry=dry)
        return Loading(bundle, wanted, settings, Reach, self.step, self.told.append).run()

    def steps(self) -> list[str]:
        return [str(arguments.get("state") or ("pull" if arguments["parallel"] else "ask")) for _, arguments in self.asked]


@pytest.fixture
def node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Node:
    (tmp_path / "containers").mkdir()
    return Node(tmp_path, capsys)


@needs_rsync
def test_each_image_is_whole_before_podman_is_asked_for_it(node: Node, bundle: Path) -> None:
    wanted = lock(oci=IMAGES["oci"](), docker_single=IMAGES["docker_single"]())
    node.slow = 1
    outcome = node.run(bundle, wanted)
    assert (outcome.changed, outcome.loaded, outcome.present) == (True, ["docker_single", "oci"], ["docker_single", "oci"])
    for name in wanted:
        image = planned(bundle, name)
        assert node.seen[name] >= {*image.blobs, *image.made}
    assert node.steps() == ["ask", "present", "pull", "pull", "pull", "pull", "absent"]
    assert not node.layout.parent.exists()
    assert (node.state_dir / "manifest.json").is_file()
    assert node.told[-1] == "unpacking for 0 s: docker_single started, oci started"
    assert outcome.sent_bytes >= planned(bundle, "oci").bytes


@needs_rsync
def test_the_layout_names_every_image_by_its_reference(node: Node, bundle: Path) -> None:
    node.failing = dict.fromkeys(IMAGES, "Error: it is only to stay")
    with pytest.raises(LoadError):
        node.run(bundle, lock(**{name: make() for name, make in IMAGES.items()}))
    named = dict(oci.read_index(node.layout))
    assert set(named) == {f"{site_bundles.HOST}/x/{name}@{make().digest}" for name, make in IMAGES.items()}
    for image in named.values():
        assert hashlib.sha256(oci.blob_path(node.layout, image.digest).read_bytes()).hexdigest() == image.hex
    assert (node.layout / "oci-layout").read_text() == oci.LAYOUT_TEXT


def test_what_is_there_is_not_sent(node: Node, bundle: Path) -> None:
    wanted = lock(oci=IMAGES["oci"]())
    node.present = ["oci"]
    outcome = node.run(bundle, wanted)
    assert (outcome.changed, outcome.loaded, outcome.present) == (False, [], ["oci"])
    assert node.steps() == ["ask", "absent"]
    # What an interrupted run has left goes as well.
    node.layout.mkdir(parents=True)
    assert node.run(bundle, wanted).changed is True
    assert not node.layout.parent.exists()


def test_check_mode_asks_and_does_nothing(node: Node, bundle: Path) -> None:
    assert node.run(bundle, lock(oci=IMAGES["oci"]()), dry=True).changed is True
    node.present = ["oci"]
    assert node.run(bundle, lock(oci=IMAGES["oci"]()), dry=True).changed is False
    assert node.steps() == ["ask", "ask"]


@needs_rsync
def test_an_image_that_fails_keeps_the_others_from_nothing(node: Node, bundle: Path) -> None:
    wanted = lock(oci=IMAGES["oci"](), docker=IMAGES["docker"]())
    node.failing = {"docker": "Error: no space left on device"}
    node.slow, node.late = 2, {"oci"}
    with pytest.raises(LoadError) as caught:
        node.run(bundle, wanted)
    # The node has told of it once, and would begin anew if it was asked again.
    waits = [arguments["images"] for _, arguments in node.asked if arguments.get("wait_s")]
    assert [[image["name"] for image in images] for images in waits] == [["docker", "oci"], ["oci"], ["oci"]]
    assert str(caught.value).splitlines() == [
        "image docker cannot be loaded: Error: no space left on device",
        "run this again: it goes on where it stopped",
    ]
    assert node.present == ["oci"]
    kept = set(planned(bundle, "docker").blobs)
    assert {path.name for path in node.layout.glob("blobs/sha256/*")} >= kept
    node.failing, node.asked = {}, []
    outcome = node.run(bundle, wanted)
    assert (outcome.loaded, outcome.sent_bytes) == (["docker"], 0)


@needs_rsync
def test_a_trust_policy_that_refuses_is_explained(node: Node, bundle: Path) -> None:
    # podman 5.4 says it so.
    node.failing = {"oci": "Error: Source image rejected: Running image oci:/x:y is rejected by policy."}
    with pytest.raises(LoadError, match="has no rule that takes images of the transport oci"):
        node.run(bundle, lock(oci=IMAGES["oci"]()))


@needs_rsync
def test_a_blob_that_is_damaged_on_the_node_is_sent_again(node: Node, bundle: Path) -> None:
    wanted = lock(oci=IMAGES["oci"]())
    node.failing = {"oci": "Error: digest did not match"}
    with pytest.raises(LoadError):
        node.run(bundle, wanted)
    layer = max(planned(bundle, "oci").blobs, key=lambda name: (node.layout / "blobs/sha256" / name).stat().st_size)
    path = node.layout / "blobs/sha256" / layer
    there = path.stat()
    path.write_bytes(bytes(there.st_size))
    # With the size and time of the source, so that rsync would take it for the same.
    shutil.copystat(bundle / "images/blobs/sha256" / layer, path)
    with pytest.raises(LoadError, match=f"what was sent is damaged, and is removed: {layer}"):
        node.run(bundle, wanted)
    assert not path.exists()
    node.failing = {}
    assert node.run(bundle, wanted).loaded == ["oci"]


@needs_rsync
def test_a_begun_blob_is_completed(node: Node, tmp_path: Path) -> None:
    image = Tiny()
    layer = bytes(range(256)) * 4096
    config = {"os": "linux", "architecture": "amd64", "config": {}, "rootfs": {"type": "layers", "diff_ids": []}}
    image._manifest(json.dumps(config).encode(), [("layer", layer)])
    bundle = site_bundles.write(tmp_path / "large", {"it": image})
    begun = node.layout / "blobs/sha256" / hashlib.sha256(layer).hexdigest()
    begun.parent.mkdir(parents=True)
    begun.write_bytes(layer[:1_000_000])
    outcome = node.run(bundle, lock(it=image))
    assert outcome.sent_bytes < len(layer) / 4


@needs_rsync
def test_podman_that_does_not_come_to_an_end_is_not_waited_for_without_end(node: Node, bundle: Path) -> None:
    node.slow = 100
    with pytest.raises(LoadError, match=r"still unpacking after 20 s \(image_load_limit_s\)"):
        node.run(bundle, lock(oci=IMAGES["oci"]()), limit_s=20)


def test_a_lock_without_digest_is_told(node: Node, bundle: Path) -> None:
    with pytest.raises(LoadError, match="is not pinned"):
        node.run(bundle, {"oci": {"repository": "r/x", "tag": "1", "digest": ""}})
    assert node.asked == []


@needs_rsync
def test_a_node_without_room_is_left_as_it_is(node: Node, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.module, "free_bytes", lambda folder: 2**29)
    with pytest.raises(LoadError) as caught:
        node.run(bundle, lock(oci=IMAGES["oci"]()))
    assert "has 0.50 GiB free, and 1.00 GiB are needed (0.00 GiB as they come, 0.00 GiB unpacked" in str(caught.value)
    assert not node.state_dir.exists()


def test_a_node_without_rsync_says_what_to_install(node: Node, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.module.shutil, "which", lambda _name: None)
    with pytest.raises(LoadError, match="dnf install rsync"):
        node.run(bundle, lock(oci=IMAGES["oci"]()))
    assert not node.state_dir.exists()


def needs(node: Node, blobs: dict[str, int]) -> str:
    with pytest.raises(ValueError) as caught:
        node.module.check_room(str(node.state_dir), blobs)
    return str(caught.value)


def test_room_is_looked_for_where_images_are_sent_and_where_they_are_unpacked(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.module, "free_bytes", lambda folder: 0)
    assert "3.00 GiB" not in needs(node, {})
    assert "and 8.00 GiB are needed (2.00 GiB as they come, 5.00 GiB unpacked, and 1 GiB to spare)" in needs(node, {"a": 2**31})
    folder = node.layout / "blobs/sha256"
    folder.mkdir(parents=True)
    # What was sent before takes its room already.
    monkeypatch.setattr(node.module, "allocated", lambda path: 2**30)
    assert "and 7.00 GiB are needed" in needs(node, {"a": 2**31})
    monkeypatch.setattr(node.module, "device", str)
    assert needs(node, {"a": 2**31}).count("GiB free") == 2


@needs_rsync
def test_blobs_of_another_time_are_not_kept(node: Node) -> None:
    folder = node.layout / "blobs/sha256"
    folder.mkdir(parents=True)
    for name in ("old", "begun"):
        (folder / name).write_text(name)
    node.step("image_layout", {"state": "present", "state_dir": str(node.state_dir), "files": {"index.json": "{}"}, "blobs": {"begun": 5}})
    assert [path.name for path in folder.iterdir()] == ["begun"]
    assert (node.layout / "index.json").read_text() == "{}"
