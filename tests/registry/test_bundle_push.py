"""Images of a bundle on their way into a real registry: digests that stay, every refusal, and a push that is killed."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.registry import tiny
from tests.registry.conftest import Registry
from tests.registry.tiny import Tiny
from tests.unit import bundles, site_bundles
from tests.unit.bundles import call
from vllm_node.bundle.refusals import next_step
from vllm_node.images import skopeo
from vllm_node.images.skopeo import Access, SkopeoError
from vllm_node.lab import registry

IMAGES: dict[str, Callable[[str], Tiny]] = {
    "oci": lambda text: tiny.two_platforms(text),
    "docker": lambda text: tiny.two_platforms(text, tiny.DOCKER),
    "single": lambda text: single(text, tiny.OCI),
    "docker_single": lambda text: single(text, tiny.DOCKER),
}


def single(text: str, kinds: dict[str, str]) -> Tiny:
    image = Tiny(kinds)
    image.platform("amd64", text)
    return image


def words(site: Registry, bundle: Path, *more: str | Path, access: Access | None = None) -> list[str | Path]:
    used = access or site.access
    given: list[str | Path] = ["push", bundle, "--registry", site.address]
    given += ["--authfile", used.authfile] if used.authfile else []
    given += ["--cert-dir", used.cert_dir] if used.cert_dir else []
    return [*given, *more]


def push(site: Registry, bundle: Path, *more: str | Path, code: int = 0, access: Access | None = None) -> dict[str, dict[str, Any]]:
    """What `bundle push --json` says of each image."""
    found = json.loads(call(*words(site, bundle, "--json", *more, access=access), code=code).stdout)
    assert found["ok"] == (code == 0)
    return {one["name"]: one for one in found["images"]}


def in_registry(site: Registry, repository: str, image: Tiny, tag: str = "1") -> None:
    """The registry gives every manifest of the image byte for byte, and the tag names it."""
    for digest, content in {**image.manifests, image.digest: image.top}.items():
        assert skopeo.raw_manifest(skopeo.docker(f"{site.address}/{repository}", digest=digest), site.access) == content
    assert skopeo.raw_manifest(skopeo.docker(f"{site.address}/{repository}", tag=tag), site.access) == image.top


def test_images_of_every_format_arrive_with_every_digest(site: Registry, tmp_path: Path) -> None:
    images = {name: make("arrive") for name, make in IMAGES.items()}
    bundle = site_bundles.write(tmp_path / "bundle", images)
    found = push(site, bundle, "--prefix", "arrive")
    for name, image in images.items():
        in_registry(site, f"arrive/x/{name}", image)
        assert found[name]["state"] == "pushed"
        assert found[name]["repository"] == f"{site.address}/arrive/x/{name}"
        assert (found[name]["digest"], found[name]["platform_digest"]) == (image.digest, site_bundles.platform_of(image))
    said = call(*words(site, bundle, "--prefix", "arrive")).output
    assert f"{site.address}/arrive/x/oci@{images['oci'].digest} (tag 1)" in said
    assert said.endswith("4 present\n")


def test_the_locks_own_name_is_kept_where_it_lies_on_this_registry(site: Registry, tmp_path: Path) -> None:
    image = tiny.two_platforms("own name")
    bundle = site_bundles.write(tmp_path / "bundle", {"own": image}, host=site.address)
    assert push(site, bundle, "--prefix", "elsewhere")["own"]["repository"] == f"{site.address}/x/own"
    in_registry(site, "x/own", image)


def stored_blobs(site: Registry) -> dict[str, tuple[int, int]]:
    return bundles.stamps(site.folder / "storage/docker/registry/v2/blobs")


def test_what_is_there_is_not_sent_again(site: Registry, tmp_path: Path) -> None:
    bundle = site_bundles.write(tmp_path / "bundle", {name: make("again") for name, make in IMAGES.items()})
    push(site, bundle, "--prefix", "again")
    before = bundles.stamps(site.folder / "storage")
    assert {one["state"] for one in push(site, bundle, "--prefix", "again").values()} == {"present"}
    assert bundles.stamps(site.folder / "storage") == before


def test_an_index_whose_child_is_gone_is_sent_again(site: Registry, tmp_path: Path) -> None:
    image = tiny.two_platforms("child")
    bundle = site_bundles.write(tmp_path / "bundle", {"it": image})
    push(site, bundle, "--prefix", "child")
    gone = list(image.manifests)[1].removeprefix("sha256:")
    manifests = site.folder / "storage/docker/registry/v2/repositories/child/x/it/_manifests/revisions/sha256"
    shutil.rmtree(manifests / gone)
    assert push(site, bundle, "--prefix", "child")["it"]["state"] == "pushed"
    in_registry(site, "child/x/it", image)


def test_only_what_is_named(site: Registry, tmp_path: Path) -> None:
    bundle = site_bundles.write(tmp_path / "bundle", {name: make("only") for name, make in IMAGES.items()})
    found = push(site, bundle, "--prefix", "only", "--only", "docker", "--only", "oci")
    assert sorted(found) == ["docker", "oci"]
    said = call(*words(site, bundle, "--only", "nobody"), code=4).output
    assert "has no image nobody; it has docker, docker_single, oci, single" in said


def test_a_tag_that_names_another_image_stays_as_it_is(site: Registry, tmp_path: Path) -> None:
    before = site.push(tiny.two_platforms("before"), "taken/x/it", "1")
    image = tiny.two_platforms("after")
    bundle = site_bundles.write(tmp_path / "bundle", {"it": image})
    for state in ("pushed", "present"):
        found = push(site, bundle, "--prefix", "taken")["it"]
        assert (found["state"], found["tag"]) == (state, f"1-{image.digest[7:19]}")
    in_registry(site, "taken/x/it", before)
    in_registry(site, "taken/x/it", image, found["tag"])


def test_what_the_registry_does_not_give_afterwards_is_not_pushed(site: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_source: str, _target: str, *, target_access: Access, on_start: Callable[[int], None]) -> None:
        on_start(os.getpid())

    monkeypatch.setattr(skopeo, "copy", lost)
    bundle = site_bundles.write(tmp_path / "bundle", {"it": tiny.two_platforms("lost")})
    found = push(site, bundle, "--prefix", "lost", code=4)["it"]
    assert (found["state"], "unknown" in found["error"]) == ("failed", True)


def test_a_wrong_password_and_no_password(site: Registry, tmp_path: Path) -> None:
    bundle = site_bundles.write(tmp_path / "bundle", {"one": tiny.two_platforms("a"), "two": tiny.one_platform()})
    for authfile in (site.authfile("wrong"), None):
        access = Access(authfile, site.ca_dir)
        found = push(site, bundle, "--prefix", "refused", code=4, access=access)
        assert {one["state"] for one in found.values()} == {"failed"}
        assert all("(the registry is registry/2.0). Next: give an account that may push" in one["error"] for one in found.values())


def test_an_authority_that_nobody_knows(site: Registry, tmp_path: Path) -> None:
    bundle = site_bundles.write(tmp_path / "bundle", {"it": tiny.one_platform()})
    found = push(site, bundle, code=4, access=Access(site.access.authfile))
    assert "x509" in found["it"]["error"]
    assert "--cert-dir" in found["it"]["error"]


def test_nobody_answers(site: Registry, tmp_path: Path) -> None:
    bundle = site_bundles.write(tmp_path / "bundle", {"it": tiny.one_platform()})
    said = call("push", bundle, "--registry", "127.0.0.1:1", code=4).output
    assert "it is not in 127.0.0.1:1/x/it: " in said
    assert "connection refused" in said


@contextmanager
def another(site: Registry, folder: Path, storage: Path, *, read_only: bool = False) -> Iterator[Registry]:
    """A second registry of the same authority and password, over another storage."""
    shutil.copytree(site.folder / "tls", folder / "tls")
    shutil.copy(site.folder / "htpasswd", folder)
    port = registry._free_port()
    server = registry._start(folder, registry._secured(f"127.0.0.1:{port}"), storage, read_only=read_only, auth=registry._AUTH)
    try:
        context = ssl.create_default_context(cafile=str(site.ca_dir / "ca.crt"))
        registry._wait_for(f"https://localhost:{port}/v2/", context, server, folder)
        yield replace(site, address=f"localhost:{port}", access=Access(account(site, f"localhost:{port}", folder), site.ca_dir))
    finally:
        server.end()


def account(site: Registry, address: str, folder: Path) -> Path:
    """The right password, for another address."""
    assert site.access.authfile is not None
    (known,) = json.loads(site.access.authfile.read_text())["auths"].values()
    path = folder / "auth.json"
    path.write_text(json.dumps({"auths": {address: known}}))
    return path


def test_a_registry_that_is_read_only(site: Registry, tmp_path: Path) -> None:
    there = site_bundles.write(tmp_path / "there", {"there": tiny.two_platforms("there")})
    push(site, there, "--prefix", "readonly")
    images = {"there": tiny.two_platforms("there"), "oci": tiny.two_platforms("ro"), "docker": tiny.two_platforms("ro", tiny.DOCKER)}
    bundle = site_bundles.write(tmp_path / "bundle", images)
    with another(site, tmp_path, site.folder / "storage", read_only=True) as closed:
        found = push(closed, bundle, "--prefix", "readonly", code=4)
    # What can be had is told all the same, and every failure is.
    assert {name: one["state"] for name, one in found.items()} == {"there": "present", "oci": "failed", "docker": "failed"}
    for name in ("oci", "docker"):
        assert "(the registry is registry/2.0). Next: it takes nothing: it is switched to read-only" in found[name]["error"]


@contextmanager
def little_room(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_registry_whose_disk_is_full(site: Registry, tmp_path: Path) -> None:
    bundle = site_bundles.write(tmp_path / "bundle", {"small": tiny.one_platform(), "large": large("full", 1, 4 << 20)})
    with little_room(tmp_path / "small", "2m") as storage, another(site, tmp_path, storage) as full:
        push(full, bundle, "--only", "small")
        found = push(full, bundle, code=4)
    assert {name: one["state"] for name, one in found.items()} == {"small": "present", "large": "failed"}
    assert "500 Internal Server Error" in found["large"]["error"]
    assert "Next: look at the registry's own log: its storage may be full" in found["large"]["error"]


def large(text: str, layers: int, size: int) -> Tiny:
    """An image that takes a while."""
    image = Tiny()
    made = [("layer", gzip.compress(random.Random(f"{text}{one}").randbytes(size), 0, mtime=0)) for one in range(layers)]
    config = {"os": "linux", "architecture": "amd64", "config": {}, "rootfs": {"type": "layers", "diff_ids": []}}
    image._manifest(json.dumps(config).encode(), made)
    return image


def repository(site: Registry, name: str) -> Path:
    return site.folder / "storage/docker/registry/v2/repositories" / name


MOMENTS: dict[str, Callable[[Registry, str], bool]] = {
    "at once": lambda site, name: True,
    "while a layer is sent": lambda site, name: any(repository(site, f"{name}/x/large").glob("_uploads/*/data")),
    "between layers": lambda site, name: any(repository(site, f"{name}/x/large").glob("_layers/sha256/*")),
    "in the second image": lambda site, name: any(repository(site, f"{name}/x/small").glob("_manifests/tags/*/current/link")),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_push_that_is_killed_is_finished_by_the_next_one(site: Registry, tmp_path: Path, moment: str) -> None:
    images = {"small": tiny.two_platforms(moment), "large": large(moment, 4, 24 << 20)}
    bundle = site_bundles.write(tmp_path / "bundle", images)
    prefix = f"killed/{list(MOMENTS).index(moment)}"
    running = bundles.process(*words(site, bundle, "--prefix", prefix, "--no-verify"), env={"TMPDIR": str(tmp_path)})
    bundles.kill_when(running, lambda: MOMENTS[moment](site, prefix))
    end_what_reads(tmp_path)
    whole = stored_blobs(site)
    push(site, bundle, "--prefix", prefix)
    for name, image in images.items():
        in_registry(site, f"{prefix}/x/{name}", image)
    assert stored_blobs(site).items() >= whole.items(), "a blob that was there was sent again"


def end_what_reads(folder: Path) -> None:
    """SIGKILL to what the killed push has left at work, as when the whole machine goes."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"dir:{folder}/".encode() in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)


def test_an_interrupt_ends_it_soon_and_leaves_nothing_at_work(site: Registry, tmp_path: Path) -> None:
    bundle = site_bundles.write(tmp_path / "bundle", {"large": large("interrupt", 4, 24 << 20)})
    running = bundles.process(*words(site, bundle, "--prefix", "interrupt", "--no-verify"), env={"TMPDIR": str(tmp_path)})
    while not any(repository(site, "interrupt/x/large").glob("_uploads/*/data")):
        assert running.poll() is None, running.communicate()[0]
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=10)
    assert running.returncode == 130
    assert list(tmp_path.glob("vllm-node-push-*")) == []
    assert push(site, bundle, "--prefix", "interrupt")["large"]["state"] == "pushed"


def test_a_bundle_that_is_not_whole_is_not_pushed(site: Registry, tmp_path: Path) -> None:
    images = {"one": tiny.two_platforms("one"), "two": tiny.two_platforms("two")}
    bundle = site_bundles.write(tmp_path / "bundle", images)

    def swap(said: Any) -> None:
        one, other = said["parts"]
        one["digest"], other["digest"] = other["digest"], one["digest"]

    bundles.edit(bundle / "bundle.json", swap)
    bundles.reseal(bundle)
    said = call(*words(site, bundle, "--prefix", "swapped"), code=3).output
    assert "is not what its maker made; nothing was done" in said
    assert f"bundle.json says {images['two'].digest}" in said
    assert not repository(site, "swapped").exists()


def test_what_is_spoilt_is_refused_also_when_nobody_looks_before(site: Registry, tmp_path: Path) -> None:
    images = {"spoilt": tiny.two_platforms("spoilt"), "fine": tiny.two_platforms("fine")}
    bundle = site_bundles.write(tmp_path / "bundle", images)
    child = json.loads(next(iter(images["spoilt"].manifests.values())))
    bundles.flip(bundle / "images/blobs/sha256" / child["layers"][0]["digest"].removeprefix("sha256:"))
    found = push(site, bundle, "--prefix", "spoilt", "--no-verify", code=4)
    assert (found["spoilt"]["state"], found["fine"]["state"]) == ("failed", "pushed")
    with pytest.raises(SkopeoError) as caught:
        skopeo.raw_manifest(skopeo.docker(f"{site.address}/spoilt/x/spoilt", tag="1"), site.access)
    assert caught.value.kind == "absent"


def test_an_index_without_what_it_names_is_refused_and_told(site: Registry, tmp_path: Path) -> None:
    """A registry that loses children: what it says of the index then is turned into a next step."""
    image = tiny.two_platforms("orphan")
    request = urllib.request.Request(
        f"https://{site.address}/v2/orphan/it/manifests/1",
        data=image.top,
        method="PUT",
        headers={"Content-Type": tiny.OCI["index"], "Authorization": f"Basic {secret(site)}"},
    )
    context = ssl.create_default_context(cafile=str(site.ca_dir / "ca.crt"))
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, context=context, timeout=10)
    said = json.load(caught.value)["errors"][0]
    error = SkopeoError("copy", f"uploading manifest: {said['code']}: {said['message']}", "other", "registry/2.0")
    assert "it refuses an index because it does not find what the index names" in next_step(error)


def secret(site: Registry) -> str:
    assert site.access.authfile is not None
    (known,) = json.loads(site.access.authfile.read_text())["auths"].values()
    return str(known["auth"])
