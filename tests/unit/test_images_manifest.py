"""Manifests as bytes: which platform is taken, what a node fetches, and what is refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vllm_node.images.manifest import Index, Manifest, ManifestError, check_config, parse

DIGESTS = ["sha256:" + f"{number:x}" * 64 for number in range(10)]
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
ZSTD = {"io.github.containers.compression.zstd": "true"}


def child(number: int, platform: str | None, **more: Any) -> dict[str, Any]:
    """A descriptor in an index; `platform` as in linux/arm64/v8."""
    keys = ("os", "architecture", "variant")
    told = {} if platform is None else {"platform": dict(zip(keys, platform.split("/"), strict=False))}
    return {"mediaType": OCI_MANIFEST, "digest": DIGESTS[number], "size": 7, **told, **more}


def index(*children: dict[str, Any], **more: Any) -> Index:
    found = parse(json.dumps({"schemaVersion": 2, "manifests": children, **more}).encode())
    assert isinstance(found, Index)
    return found


def image(**changes: Any) -> bytes:
    said = {
        "schemaVersion": 2,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": DIGESTS[0], "size": 10},
        "layers": [{"digest": DIGESTS[1], "size": 200}, {"digest": DIGESTS[2], "size": 3000}],
    }
    return json.dumps({**said, **changes}).encode()


def refusal(raw: bytes) -> ManifestError:
    with pytest.raises(ManifestError) as caught:
        parse(raw)
    return caught.value


@pytest.mark.parametrize(
    ("architecture", "platforms", "taken"),
    [
        ("amd64", ["linux/arm64", "linux/amd64"], 1),
        ("amd64", ["windows/amd64", "linux/amd64"], 1),
        ("amd64", ["linux/amd64/v3", "linux/amd64"], 1),  # what was built for newer processors need not run
        ("amd64", ["linux/amd64", "linux/amd64"], 0),
        ("arm64", ["linux/arm64/v9", "linux/arm64", "linux/arm64/v8"], 2),
        ("arm64", ["linux/arm64/v9", "linux/arm64"], 1),
        ("amd64", ["unknown/unknown", None, "linux/amd64"], 2),
    ],
)
def test_the_platform_that_podman_takes(architecture: str, platforms: list[str | None], taken: int) -> None:
    found = index(*(child(number, platform) for number, platform in enumerate(platforms)))
    assert found.pick(architecture) == DIGESTS[taken]


def test_of_two_compressions_podman_takes_zstd() -> None:
    found = index(child(0, "linux/amd64"), child(1, "linux/amd64", annotations=ZSTD), child(2, "linux/amd64"))
    assert found.pick("amd64") == DIGESTS[1]


@pytest.mark.parametrize(
    ("platforms", "told"),
    [
        (["linux/amd64", "linux/arm64/v8", "linux/amd64", "unknown/unknown"], "it has linux/amd64, linux/arm64/v8"),
        (["linux/s390x/v1"], "it has linux/s390x/v1"),
        (["unknown/unknown", None], "it has no platform at all"),
        ([], "it has no platform at all"),
    ],
)
def test_an_index_without_the_platform_names_those_it_has(platforms: list[str | None], told: str) -> None:
    with pytest.raises(ManifestError) as caught:
        index(*(child(number, platform) for number, platform in enumerate(platforms))).pick("s390x")
    assert caught.value.seen == f"it has no linux/s390x; {told}"


def test_an_index_in_an_index_is_no_platform() -> None:
    nested = child(0, "linux/amd64") | {"mediaType": "application/vnd.oci.image.index.v1+json"}
    assert index(nested, child(1, "linux/amd64")).pick("amd64") == DIGESTS[1]


def test_what_a_node_fetches_counts_each_blob_once() -> None:
    twice = json.loads(image())["layers"]
    assert parse(image()) == Manifest(3210)
    assert parse(image(layers=[*twice, twice[0]])) == Manifest(3210)
    assert parse(image(layers=[])) == Manifest(10)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"schemaVersion": 1, "fsLayers": [], "history": []}',
        b'{"mediaType": "application/vnd.docker.distribution.manifest.v1+prettyjws"}',
    ],
)
def test_schema_1_is_refused_by_name(raw: bytes) -> None:
    assert "schema 1" in refusal(raw).seen


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"<html>", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[]", "no manifest"),
        (b"{}", "neither an index nor an image (no mediaType)"),
        (image(manifests=[]), "an index and an image at once"),
        (image(config={"mediaType": "application/vnd.cncf.helm.config.v1+json", "digest": DIGESTS[0], "size": 1}), "helm"),
        (image(layers=[{"digest": "sha512:00", "size": 1}]), "is no SHA-256 digest"),
        (image(layers=[{"digest": DIGESTS[0].upper(), "size": 1}]), "is no SHA-256 digest"),
        (image(layers=[{"digest": DIGESTS[0], "size": -1}]), "-1 is no size"),
        (image(layers=[{"digest": DIGESTS[0], "size": True}]), "True is no size"),
        (image(layers=[{"digest": DIGESTS[0]}]), "KeyError: 'size'"),
        (image(layers=5), "cannot be read"),
        (image(config=[]), "cannot be read"),
        (b'{"manifests": [5]}', "cannot be read"),
        (b'{"manifests": {}}', None),
    ],
)
def test_what_is_no_image_is_refused_with_a_reason(raw: bytes, told: str | None) -> None:
    if told is None:
        assert parse(raw) == Index(())
    else:
        assert told in refusal(raw).seen


def test_an_image_tells_its_platform_itself() -> None:
    check_config(b'{"os": "linux", "architecture": "amd64"}', "amd64")
    for raw, told in (
        (b'{"os": "linux", "architecture": "arm64"}', "is for linux/arm64, not for linux/amd64"),
        (b'{"os": "windows", "architecture": "amd64"}', "is for windows/amd64"),
        (b"{}", "does not tell a platform"),
        (b"[]", "does not tell a platform"),
        (b"", "does not tell a platform"),
    ):
        with pytest.raises(ManifestError) as caught:
            check_config(raw, "amd64")
        assert told in caught.value.seen
