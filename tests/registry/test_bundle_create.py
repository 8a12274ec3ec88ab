"""Bundles with images out of a real registry: made, interrupted, spoilt, verified."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.registry import tiny
from tests.registry.conftest import Registry
from tests.registry.tiny import Tiny
from tests.unit import bundles, model_folders
from tests.unit.bundles import call, verify
from vllm_node.bundle import oci
from vllm_node.images import skopeo


@dataclass
class Maker:
    """An inventory of images that lie in the registry, and how `bundle create` is called for it."""

    site: Registry
    folder: Path
    images: dict[str, Tiny] = field(default_factory=dict)

    def add(self, name: str, image: Tiny) -> Tiny:
        self.images[name] = self.site.push(image, f"bundle/{name}", "1")
        return image

    @property
    def inventory(self) -> Path:
        entries = {}
        for name, image in self.images.items():
            platform = next((digest for digest in image.manifests if digest != image.digest), image.digest)
            entries[name] = {
                "repository": f"registry.site.example:5000/x/{name}",
                "source": f"{self.site.address}/bundle/{name}",
                "tag": "1",
                "digest": image.digest,
                "platform_digest": platform,
                "architecture": "amd64",
            }
        return bundles.inventory(self.folder / "inventory", entries)

    def words(self, output: Path, *more: str | Path) -> list[str | Path]:
        access = self.site.access
        assert access.authfile is not None
        assert access.cert_dir is not None
        return ["create", "-i", self.inventory, "--output", output, "--authfile", access.authfile, "--ca", access.cert_dir, *more]

    def create(self, output: Path, *more: str | Path, code: int = 0) -> str:
        return call(*self.words(output, *more), code=code).output


@pytest.fixture
def maker(site: Registry, tmp_path: Path) -> Maker:
    return Maker(site, tmp_path)


IMAGES: dict[str, Callable[[], Tiny]] = {
    "oci": lambda: tiny.two_platforms("bundle"),
    "docker": lambda: tiny.two_platforms("bundle", tiny.DOCKER),
    "single": tiny.one_platform,
    "docker_single": lambda: tiny.one_platform(kinds=tiny.DOCKER),
}


@pytest.fixture(scope="module")
def made(site: Registry, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of images in all formats; tests work on copies."""
    folder = tmp_path_factory.mktemp("made")
    maker = Maker(site, folder)
    for name, image in IMAGES.items():
        maker.add(name, image())
    maker.create(folder / "bundle", "--only", "images")
    return folder / "bundle"


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "bundle"))


def test_images_of_every_format_are_there_with_all_platforms(made: Path) -> None:
    assert verify(made) == []
    assert bundles.sha256sum_agrees(made)
    for name, make in IMAGES.items():
        image = make()
        for digest in (image.digest, *image.manifests, *image.blobs):
            assert (made / "images/blobs/sha256" / digest.removeprefix("sha256:")).is_file(), (name, digest)
    parts = {part["name"]: part for part in json.loads((made / "bundle.json").read_text())["parts"]}
    assert sorted(parts) == sorted(IMAGES)
    assert parts["docker"]["digest"] == IMAGES["docker"]().digest
    assert not (made / ".partial").exists()


def test_nothing_is_there_that_no_image_needs(made: Path) -> None:
    """Docker's images are fetched by way of converted manifests; none of these may stay."""
    images = [make() for make in IMAGES.values()]
    wanted = {one.removeprefix("sha256:") for image in images for one in (image.digest, *image.manifests, *image.blobs)}
    assert {path.name for path in (made / "images/blobs/sha256").iterdir()} == wanted


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_leaves_the_bundle_with_its_digest(site: Registry, made: Path, tmp_path: Path, name: str) -> None:
    image = IMAGES[name]()
    source = oci.directory_view(made / "images", image.digest, tmp_path / "view")
    target = f"{site.address}/bundle/back-{name}"
    skopeo.copy(source, skopeo.docker(target, tag="1"), target_access=site.access)
    assert skopeo.raw_manifest(skopeo.docker(target, tag="1"), site.access) == image.top
    if "docker" not in name:
        skopeo.copy(f"oci:{made / 'images'}:{name}", skopeo.docker(target, tag="2"), target_access=site.access)
        assert skopeo.raw_manifest(skopeo.docker(target, tag="2"), site.access) == image.top


def test_a_second_create_asks_no_registry_and_changes_no_file(maker: Maker, tmp_path: Path) -> None:
    maker.add("oci", tiny.two_platforms("again"))
    output = tmp_path / "bundle"
    maker.create(output, "--only", "images")
    before = bundles.stamps(output / "images")
    maker.site = replace(maker.site, access=replace(maker.site.access, authfile=maker.site.authfile("wrong")))
    maker.create(output, "--only", "images")
    assert bundles.stamps(output / "images") == before
    assert verify(output) == []


def test_an_image_that_is_not_wanted_any_more_goes_and_a_new_one_comes(maker: Maker, tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    maker.add("stays", tiny.two_platforms("stays"))
    maker.add("moves", tiny.two_platforms("old"))
    maker.create(output, "--only", "images")
    before = bundles.stamps(output / "images/blobs")
    maker.add("moves", tiny.two_platforms("new", tiny.DOCKER))
    maker.create(output, "--only", "images")
    assert verify(output) == []
    after = bundles.stamps(output / "images/blobs")
    kept = {path for path in after if path in before}
    assert {path: after[path] for path in kept} == {path: before[path] for path in kept}
    assert {path.removeprefix("sha256/") for path in after} == {
        one.removeprefix("sha256:") for image in maker.images.values() for one in (image.digest, *image.manifests, *image.blobs)
    }


def test_layers_that_are_not_compressed_stay_as_they_are(maker: Maker, tmp_path: Path) -> None:
    """skopeo compresses them on the way into an OCI layout when it may; then the other way is taken."""
    image = Tiny({**tiny.DOCKER, "layer": "application/vnd.docker.image.rootfs.diff.tar"})
    layer = tiny._tar(b"plain")
    config = {"os": "linux", "architecture": "amd64", "config": {}, "rootfs": {"type": "layers", "diff_ids": [tiny.digest(layer)]}}
    image._manifest(json.dumps(config).encode(), [("layer", layer)])
    maker.add("plain", image)
    maker.create(tmp_path / "bundle", "--only", "images")
    assert verify(tmp_path / "bundle") == []
    assert (tmp_path / "bundle/images/blobs/sha256" / tiny.digest(layer).removeprefix("sha256:")).read_bytes() == layer


def test_all_images_that_cannot_be_had_are_told_before_anything_is_fetched(maker: Maker, tmp_path: Path) -> None:
    maker.add("fine", tiny.two_platforms("fine"))
    maker.images["absent"] = tiny.two_platforms("nobody has pushed this")
    maker.images["gone"] = tiny.one_platform("s390x")
    said = maker.create(tmp_path / "bundle", "--only", "images", code=4)
    assert "  absent: manifest of" in said
    assert "  gone: manifest of" in said
    assert "fine:" not in said
    assert list((tmp_path / "bundle").rglob("blobs")) == []


def test_a_platform_that_the_image_does_not_have_is_refused(maker: Maker, tmp_path: Path) -> None:
    maker.add("other", tiny.two_platforms("other"))
    words = maker.words(tmp_path / "bundle", "--only", "images")
    lock = maker.folder / "inventory/group_vars/all/images.lock.yml"
    bundles.edit(lock, lambda said: said["images_lock"]["other"].update(platform_digest="sha256:" + "1" * 64))
    assert "which the lock names" in call(*words, code=4).output


def blob(bundle: Path, name: str, kind: str) -> Path:
    """A blob of an image: its top manifest, a platform's manifest, a configuration, a layer."""
    image = IMAGES[name]()
    manifest = next(iter(image.manifests.values()))
    said = json.loads(manifest)
    digests = {
        "top": image.digest,
        "manifest": tiny.digest(manifest),
        "config": said["config"]["digest"],
        "layer": said["layers"][0]["digest"],
    }
    return bundle / "images/blobs/sha256" / str(digests[kind]).removeprefix("sha256:")


@pytest.mark.parametrize("name", ["oci", "docker"])
@pytest.mark.parametrize("kind", ["top", "manifest", "config", "layer"])
@pytest.mark.parametrize("how", ["flip", "drop", "cut"])
def test_a_blob_that_is_not_what_it_was(bundle: Path, name: str, kind: str, how: str) -> None:
    path = blob(bundle, name, kind)
    if how == "flip":
        bundles.flip(path)
    elif how == "drop":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    found = verify(bundle, code=3)
    assert ("missing" if how == "drop" else "changed", path.relative_to(bundle).as_posix()) in found
    assert any(problem[0] == "image" for problem in found)
    # Sums that were written anew hide nothing: names of blobs and manifests tell.
    bundles.reseal(bundle)
    assert any(problem[0] == "image" for problem in verify(bundle, code=3))


@pytest.mark.parametrize("place", ["images/index.json", "images/oci-layout", "bundle.json", "sbom.cdx.json", "SHA256SUMS"])
def test_one_byte_of_the_bundles_own_files(bundle: Path, place: str) -> None:
    bundles.flip(bundle / place)
    assert not bundles.sha256sum_agrees(bundle)
    found = verify(bundle, code=3)
    if place == "SHA256SUMS":
        assert {kind for kind, _path in found} & {"changed", "sums", "missing"}
    else:
        assert ("changed", place) in found


def swap_names(bundle: Path) -> None:
    def change(said: Any) -> None:
        one, other = said["manifests"][:2]
        one["annotations"], other["annotations"] = other["annotations"], one["annotations"]

    bundles.edit(bundle / "images/index.json", change)


def swap_digests(bundle: Path) -> None:
    def change(said: Any) -> None:
        parts = {part["name"]: part for part in said["parts"]}
        one, other = parts["oci"], parts["docker"]
        one["digest"], other["digest"] = other["digest"], one["digest"]

    bundles.edit(bundle / "bundle.json", change)


def swap_blobs(bundle: Path) -> None:
    one, other = blob(bundle, "oci", "top"), blob(bundle, "docker", "top")
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def rename_image(bundle: Path) -> None:
    bundles.edit(bundle / "images/index.json", lambda said: said["manifests"][0]["annotations"].update({oci.REF_NAME: "another"}))


def drop_part(bundle: Path) -> None:
    bundles.edit(bundle / "bundle.json", lambda said: said["parts"].pop(0))


def other_platform(bundle: Path) -> None:
    """Nodes would take the image of another architecture: everything is there, and nothing of it runs."""
    image = IMAGES["oci"]()

    def change(said: Any) -> None:
        part = next(part for part in said["parts"] if part["name"] == "oci")
        part["platform_digest"] = list(image.manifests)[1]

    bundles.edit(bundle / "bundle.json", change)


@pytest.mark.parametrize("sealed", [False, True], ids=["as it is", "with sums that fit"])
@pytest.mark.parametrize("change", [swap_names, swap_digests, swap_blobs, rename_image, drop_part, other_platform])
def test_images_that_were_swapped(bundle: Path, change: Callable[[Path], None], sealed: bool) -> None:
    change(bundle)
    if sealed:
        bundles.reseal(bundle)
    found = {kind for kind, _path in verify(bundle, code=3)}
    assert found & ({"image", "manifest"} if sealed else {"changed"})


def test_all_problems_are_told_at_once(bundle: Path) -> None:
    flipped = blob(bundle, "oci", "layer")
    dropped = blob(bundle, "docker", "config")
    bundles.flip(flipped)
    dropped.unlink()
    (bundle / "images/stowaway").write_text("x")
    (bundle / "models").mkdir()
    (bundle / "models/link").symlink_to("/etc/hostname")
    found = verify(bundle, code=3)
    paths = [flipped.relative_to(bundle).as_posix(), dropped.relative_to(bundle).as_posix(), "images/stowaway", "models/link"]
    wanted = zip(("changed", "missing", "extra", "special"), paths, strict=True)
    assert set(wanted) <= set(found)
    said = call("verify", bundle, code=3).output
    assert all(path in said for path in paths)


def large(text: str, kinds: dict[str, str]) -> Tiny:
    """An image whose layers take a while."""
    image = Tiny(kinds)
    layers = [("layer", gzip.compress(random.Random(f"{text}{number}").randbytes(24 << 20), 0, mtime=0)) for number in range(2)]
    config = {"os": "linux", "architecture": "amd64", "config": {}, "rootfs": {"type": "layers", "diff_ids": []}}
    image._manifest(json.dumps(config).encode(), layers)
    return image


@pytest.fixture(scope="module")
def slow(site: Registry, tmp_path_factory: pytest.TempPathFactory) -> Maker:
    maker = Maker(site, tmp_path_factory.mktemp("slow"))
    maker.add("large", large("oci", tiny.OCI))
    maker.add("old", large("docker", tiny.DOCKER))
    model_folders.model(maker.folder / "model", size=24 << 20)
    return maker


def _blobs(output: Path) -> int:
    return len(list(output.glob("images/blobs/sha256/*")))


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "before anything is fetched": lambda output: (output / ".partial/lock").exists(),
    "while a layer is fetched": lambda output: any(output.glob(".partial/*-oci/oci-put-blob*")),
    "between layers": lambda output: _blobs(output) > 0,
    "in the second image": lambda output: '"name": "large"' in read(output / ".partial/journal.jsonl"),
    "while a model is copied": lambda output: any(output.glob(".partial/*-copy")),
    "just before the end": lambda output: (output / "bundle.json").exists(),
}


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_create_that_is_killed_goes_on_and_loses_nothing(slow: Maker, tmp_path: Path, moment: str) -> None:
    output = tmp_path / "bundle"
    words = slow.words(output, "--only", "images", "--only", "models", "--model", f"it={slow.folder / 'model'}")
    bundles.kill(lambda: bundles.process(*words), lambda: MOMENTS[moment](output), lambda: shutil.rmtree(output))
    assert ("unfinished", "SHA256SUMS") in verify(output, code=3)
    lines = [json.loads(line) for line in read(output / ".partial/journal.jsonl").splitlines()[:-1] if line]
    whole = {line["path"] for line in lines if "sha256" in line}
    before = {path: stamp for path, stamp in bundles.stamps(output).items() if path in whole}
    call(*words)
    assert bundles.programs_in(output) == [], "what the killed run had started is still at work"
    assert verify(output) == []
    assert bundles.sha256sum_agrees(output)
    after = bundles.stamps(output)
    # These tell the time of the run. Manifests that skopeo had converted are gone.
    again = {path for path in before if path in after and after[path] != before[path]}
    assert again <= {"bundle.json", "sbom.cdx.json", "models/it.json"}


@pytest.mark.parametrize("name", ["oci", "docker"])
@pytest.mark.parametrize("kind", ["top", "manifest", "config", "layer"])
def test_half_a_blob_that_was_left_is_not_taken_for_the_blob(maker: Maker, tmp_path: Path, name: str, kind: str) -> None:
    """skopeo writes manifests in place, and takes what has a blob's name for the blob."""
    maker.add(name, IMAGES[name]())
    output = tmp_path / "bundle"
    path = blob(output, name, kind)
    path.parent.mkdir(parents=True)
    (output / ".partial").mkdir()
    path.write_bytes(b"{}")
    maker.create(output, "--only", "images")
    assert verify(output) == []


def test_two_creates_in_one_folder(slow: Maker, tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    words = slow.words(output, "--only", "images")
    first = bundles.process(*words)
    while not (output / ".partial/lock").exists():
        assert first.poll() is None
    try:
        said = call(*words, code=4).output
        assert f"(process {first.pid}) is at work" in said
    finally:
        told, _nothing = first.communicate(timeout=60)
    assert first.returncode == 0, told
    assert verify(output) == []
