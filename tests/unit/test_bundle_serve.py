"""The folder that a registry serves a bundle from, and names of places."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.registry import tiny
from tests.unit import site_bundles
from vllm_node.bundle import registry_storage
from vllm_node.bundle.layout import BundleError, Manifest, Part
from vllm_node.bundle.serve import host_of, is_everywhere, joined

ROOT = "docker/registry/v2"


def test_every_blob_is_there_by_a_link_and_once(tmp_path: Path) -> None:
    images = {"oci": tiny.two_platforms("a"), "same": tiny.two_platforms("a"), "docker": tiny.one_platform(kinds=tiny.DOCKER)}
    bundle = site_bundles.write(tmp_path / "bundle", images)
    offered = registry_storage.fill(tmp_path / "storage", bundle, Manifest.read(bundle).images())
    assert {path: set(digests) for path, digests in offered.items()} == {
        f"x/{name}": {image.digest, *image.manifests} for name, image in images.items()
    }
    blobs = {path.parent.name: path for path in (tmp_path / "storage" / ROOT / "blobs").rglob("data")}
    assert set(blobs) == {path.name for path in (bundle / "images/blobs/sha256").iterdir()}
    assert all(path.resolve() == (bundle / "images/blobs/sha256" / name).resolve() for name, path in blobs.items())
    for name, image in images.items():
        own = tmp_path / "storage" / ROOT / "repositories/x" / name
        assert (own / "_manifests/tags/1/current/link").read_text() == image.digest
        for digest in image.blobs:
            assert (own / "_layers/sha256" / digest[7:] / "link").read_text() == digest
        for digest in (*image.manifests, image.digest):
            assert (own / "_manifests/revisions/sha256" / digest[7:] / "link").read_text() == digest


@pytest.mark.parametrize("repository", ["grafana/grafana", "{{ registry }}/grafana", "registry.site.example:5000", "r.example/../x", "r.example/a//b"])
def test_a_repository_that_a_registry_cannot_have(repository: str) -> None:
    part = Part("image", "it", "images", 1, 1, "made by a test", {"repository": repository})
    with pytest.raises(BundleError, match="write HOST/PATH"):
        registry_storage.repository_path(part)


def test_a_tag_that_leads_elsewhere(tmp_path: Path) -> None:
    bundle = site_bundles.write(tmp_path / "bundle", {"it": tiny.one_platform()})
    (part,) = Manifest.read(bundle).images()
    part = replace(part, details={**part.details, "tag": "../../../../../out"})
    with pytest.raises(BundleError, match="the tag of it"):
        registry_storage.fill(tmp_path / "storage", bundle, [part])
    assert not list(tmp_path.rglob("out"))


@pytest.mark.parametrize(
    ("address", "port", "text"),
    [("10.0.0.1", 5000, "10.0.0.1:5000"), ("fd00::1", 5000, "[fd00::1]:5000"), ("first.site.example", 443, "first.site.example:443")],
)
def test_places(address: str, port: int, text: str) -> None:
    assert joined(address, port) == text
    assert host_of(text) == address


def test_a_place_without_a_port_is_its_host() -> None:
    assert host_of("registry.site.example") == "registry.site.example"


@pytest.mark.parametrize(("address", "everywhere"), [("0.0.0.0", True), ("::", True), ("", True), ("10.0.0.1", False), ("first", False)])
def test_an_address_that_nodes_cannot_use(address: str, everywhere: bool) -> None:
    assert is_everywhere(address) == everywhere
