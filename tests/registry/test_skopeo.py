"""skopeo and a real registry: bytes as they are, digests that stay, and every way to fail."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.registry import tiny
from tests.registry.conftest import Registry, Silent
from vllm_node.images import skopeo
from vllm_node.images.skopeo import Access, SkopeoError


def failure(call: Callable[[], object]) -> SkopeoError:
    with pytest.raises(SkopeoError) as caught:
        call()
    return caught.value


def test_a_manifest_comes_byte_for_byte(site: Registry) -> None:
    pushed = site.push(tiny.two_platforms(), "bytes/index", "1")
    repository = f"{site.address}/bytes/index"
    assert skopeo.raw_manifest(skopeo.docker(repository, tag="1"), site.access) == pushed.top
    assert skopeo.raw_manifest(skopeo.docker(repository, digest=pushed.digest), site.access) == pushed.top


def test_a_configuration_comes_byte_for_byte(site: Registry) -> None:
    pushed = site.push(tiny.one_platform("arm64"), "bytes/config", "1")
    config = skopeo.raw_config(skopeo.docker(f"{site.address}/bytes/config", digest=pushed.digest), site.access)
    assert config in pushed.blobs.values()
    assert json.loads(config)["architecture"] == "arm64"


@pytest.mark.parametrize("kinds", [tiny.OCI, tiny.DOCKER], ids=["OCI", "Docker"])
@pytest.mark.parametrize("way", ["oci", "dir"])
def test_a_copy_out_and_in_again_keeps_every_digest(site: Registry, tmp_path: Path, way: str, kinds: dict[str, str]) -> None:
    pushed = site.push(tiny.two_platforms(way, kinds), f"copies/{way}", "1")
    there = f"oci:{tmp_path / 'it'}:it" if way == "oci" else f"dir:{tmp_path / 'it'}"
    source, target = (skopeo.docker(f"{site.address}/copies/{name}", tag="1") for name in (way, f"{way}-back"))
    if (way, kinds) == ("oci", tiny.DOCKER):
        error = failure(lambda: skopeo.copy(source, there, site.access))
        assert "preserve digests" in error.said
        return
    skopeo.copy(source, there, site.access)
    lines: list[str] = []
    skopeo.copy(there, target, target_access=site.access, on_line=lines.append)
    assert any(line.startswith("Copying blob") for line in lines)
    for digest, content in {**pushed.manifests, pushed.digest: pushed.top}.items():
        found = skopeo.raw_manifest(skopeo.docker(f"{site.address}/copies/{way}-back", digest=digest), site.access)
        assert found == content


def test_an_oci_layout_written_elsewhere_is_pushed_as_it_is(site: Registry, tmp_path: Path) -> None:
    made = tiny.two_platforms("layout")
    target = skopeo.docker(f"{site.address}/copies/layout", tag="1")
    skopeo.copy(made.write_layout(tmp_path / "layout"), target, target_access=site.access)
    assert skopeo.raw_manifest(target, site.access) == made.top


def test_only_one_platform_when_asked_for(site: Registry, tmp_path: Path) -> None:
    pushed = site.push(tiny.two_platforms("one"), "copies/one", "1")
    skopeo.copy(skopeo.docker(f"{site.address}/copies/one", tag="1"), f"dir:{tmp_path / 'it'}", site.access, every_platform=False)
    assert skopeo.digest_of((tmp_path / "it/manifest.json").read_bytes()) in pushed.manifests


def test_what_is_not_there(site: Registry) -> None:
    site.push(tiny.one_platform(), "there/it", "1")
    for name in ("there/it:2", "nowhere/it:1"):
        reference = f"docker://{site.address}/{name}"
        error = failure(partial(skopeo.raw_manifest, reference, site.access))
        assert (error.kind, error.registry) == ("absent", "registry/2.0")
        assert error.asked == f"manifest of {reference}"
        assert str(error).startswith(error.asked)
        assert "level=" not in str(error)


def test_a_manifest_that_was_changed_in_the_registry(site: Registry) -> None:
    pushed = site.push(tiny.one_platform("s390x"), "changed", "1")
    value = pushed.digest.removeprefix("sha256:")
    stored = site.folder / "storage/docker/registry/v2/blobs/sha256" / value[:2] / value / "data"
    stored.write_bytes(stored.read_bytes().replace(b'"size"', b'"sizf"', 1))
    reference = skopeo.docker(f"{site.address}/changed", digest=pushed.digest)
    assert "does not match" in failure(lambda: skopeo.raw_manifest(reference, site.access)).said


def test_credentials_that_are_wrong_or_missing(site: Registry, tmp_path: Path) -> None:
    reference = skopeo.docker(f"{site.address}/a", tag="1")
    for authfile in (site.authfile("wrong"), None):
        error = failure(partial(skopeo.raw_manifest, reference, Access(authfile, site.ca_dir)))
        assert (error.kind, error.said.endswith("authentication required")) == ("refused", True)
        assert error.registry == "registry/2.0"
    source = tiny.one_platform().write_dir(tmp_path / "it")
    assert failure(lambda: skopeo.copy(source, reference, target_access=Access(None, site.ca_dir))).kind == "refused"


def test_an_authority_that_is_not_known(site: Registry) -> None:
    error = failure(lambda: skopeo.raw_manifest(skopeo.docker(f"{site.address}/a", tag="1"), Access(site.access.authfile)))
    assert (error.kind, error.registry) == ("tls", None)
    assert "x509" in error.said


def test_without_verification_it_is_not_asked_for(site: Registry) -> None:
    pushed = site.push(tiny.one_platform(), "insecure", "1")
    found = skopeo.raw_manifest(skopeo.docker(f"{site.address}/insecure", tag="1"), Access(site.access.authfile, tls_verify=False))
    assert found == pushed.top


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nobody.invalid"])
def test_nobody_answers(site: Registry, address: str) -> None:
    error = failure(lambda: skopeo.raw_manifest(skopeo.docker(f"{address}/a", tag="1")))
    assert (error.kind, error.registry) == ("unreachable", None)


def test_a_call_ends_at_its_limit(site: Registry, silent: Silent) -> None:
    began = time.monotonic()
    error = failure(lambda: skopeo.raw_manifest(skopeo.docker(f"{silent.address}/a", tag="1"), limit_s=0.5))
    assert (error.kind, error.said) == ("unreachable", "nothing came within 0.5 s")
    assert time.monotonic() - began < 15


def test_calls_are_stopped_from_another_thread(site: Registry, silent: Silent) -> None:
    def stop() -> None:
        silent.wait()
        skopeo.stop()

    threading.Thread(target=stop, daemon=True).start()
    error = failure(lambda: skopeo.raw_manifest(skopeo.docker(f"{silent.address}/a", tag="1"), limit_s=60))
    assert error.kind == "stopped"


def test_the_version_is_told(site: Registry) -> None:
    assert skopeo.version().split(".")[0].isdigit()
