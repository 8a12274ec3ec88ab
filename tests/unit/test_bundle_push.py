"""Where images go, what a refusal means, and how far a push is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_node.bundle import reading
from vllm_node.bundle.layout import BundleError, Part
from vllm_node.bundle.push import Request, chosen, destination, push
from vllm_node.bundle.reading import Readers
from vllm_node.bundle.refusals import next_step
from vllm_node.bundle.reporter import Reporter
from vllm_node.images.skopeo import SkopeoError
from vllm_node.images.skopeo_words import kind_of

REGISTRY = "registry.site.example:5000"


@pytest.mark.parametrize(
    ("repository", "prefix", "wanted"),
    [
        (f"{REGISTRY}/vllm/vllm-openai", "", f"{REGISTRY}/vllm/vllm-openai"),
        (f"{REGISTRY}/vllm/vllm-openai", "mirror", f"{REGISTRY}/vllm/vllm-openai"),
        ("other.site.example/a/b", "", f"{REGISTRY}/a/b"),
        ("other.site.example/a/b", "mirror/upstream", f"{REGISTRY}/mirror/upstream/a/b"),
        ("other.site.example:5000/a", "", f"{REGISTRY}/a"),
        ("localhost/a", "", f"{REGISTRY}/a"),
        ("grafana/grafana", "mirror", f"{REGISTRY}/mirror/grafana/grafana"),
        ("grafana", "", f"{REGISTRY}/grafana"),
    ],
)
def test_where_an_image_goes(repository: str, prefix: str, wanted: str) -> None:
    assert destination(repository, REGISTRY, prefix) == wanted


@pytest.mark.parametrize("repository", ["{{ site_registry }}/grafana", "", "other.site.example/", "a//b", "a:1", "../a"])
def test_a_repository_that_names_no_place(repository: str) -> None:
    with pytest.raises(BundleError, match="names no place"):
        destination(repository, REGISTRY)


def part(name: str) -> Part:
    return Part("image", name, "images", 1, 1, "made by a test")


def test_images_are_chosen_by_name() -> None:
    parts = [part("a"), part("b")]
    assert chosen(parts, ()) == parts
    assert chosen(parts, {"b"}) == [parts[1]]
    with pytest.raises(BundleError, match="no image c, d; it has a, b"):
        chosen(parts, {"d", "c", "a"})
    with pytest.raises(BundleError, match="no images in this bundle"):
        chosen([], ())


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request("https://registry.site.example"), "write HOST:PORT"),
        (Request(f"{REGISTRY}/mirror"), "write HOST:PORT"),
        (Request("registry"), "write HOST:PORT"),
        (Request(REGISTRY, "Mirror"), "--prefix Mirror"),
        (Request(REGISTRY, "a//b"), "--prefix a//b"),
    ],
)
def test_a_call_that_cannot_be_meant(tmp_path: Path, request_: Request, words: str) -> None:
    (tmp_path / "bundle.json").write_text(
        '{"schema": 1, "created_at": "", "toolkit_version": "", "parts": [{"kind": "image", "name": "a", "path": "images", '
        f'"files": 1, "bytes": 1, "origin": "", "repository": "{REGISTRY}/a", "architecture": "amd64", '
        f'"digest": "sha256:{"1" * 64}", "platform_digest": "sha256:{"1" * 64}"}}]}}'
    )
    with pytest.raises(BundleError, match=words):
        push(tmp_path, request_, Reporter())


# What skopeo hands on; the first two and the last were seen with distribution, the others are from public reports.
@pytest.mark.parametrize(
    ("said", "step"),
    [
        ("writing blob: initiating layer upload to /v2/a/blobs/uploads/ in r: StatusCode: 405, Method not allowed", "read-only"),
        ("writing blob: uploading layer chunked: received unexpected HTTP status: 500 Internal Server Error", "may be full"),
        ("denied: adding 30 MiB of storage resource, which will exceed the configured upper limit of 1 GiB", "a quota"),
        ("uploading manifest latest to r: manifest blob unknown: blob unknown to registry", "what the index names"),
        ("uploading manifest latest to r: manifest invalid: mediaType in manifest should be 'x' not 'y'", "kind of manifest"),
        ("writing manifest: StatusCode: 415, unsupported media type", "kind of manifest"),
        ("writing blob: uploading layer to r: StatusCode: 413, <html>Request Entity Too Large", "client_max_body_size"),
        ("denied: 'latest' is immutable and cannot be overwritten", "may not be moved"),
        ("unauthorized: authentication required", "--authfile"),
        ("requested access to the resource is denied", "--authfile"),
        ("pinging container registry r: Get https://r/v2/: x509: certificate signed by unknown authority", "--cert-dir"),
        ("pinging container registry r: Get https://r/v2/: dial tcp 127.0.0.1:1: connect: connection refused", "way to it"),
        ("something that nobody has seen", "registry's own log"),
    ],
)
def test_a_refusal_has_a_next_step(said: str, step: str) -> None:
    assert step in next_step(SkopeoError("copy", said, kind_of(said)))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_POLL_S", 0.01)


READER = """
import os, sys
for path, count in zip(sys.argv[1::2], sys.argv[2::2]):
    file = os.open(path, os.O_RDONLY)
    assert len(os.read(file, int(count))) == int(count)
    print(path, flush=True)
    sys.stdin.readline()
    os.close(file)
print("end", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A program that reads 600 of 1000 bytes of one file, and all of another by way of a link."""
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(os.urandom(1000))
    (tmp_path / "link").symlink_to(tmp_path / "two")
    words = [str(tmp_path / "one"), "600", str(tmp_path / "link"), "1000"]
    with subprocess.Popen([sys.executable, "-c", READER, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        yield running
        running.kill()


def go_on(program: subprocess.Popen[str]) -> str:
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write("\n")
    program.stdin.flush()
    return program.stdout.readline()


def wait_for(told: list[int], total: int) -> None:
    for _ in range(500):
        if sum(told) == total:
            return
        time.sleep(0.01)
    raise AssertionError((told, total))


def test_open_files_tell_how_far_a_program_is(quick: None, program: subprocess.Popen[str]) -> None:
    told: list[int] = []
    assert program.stdout is not None
    program.stdout.readline()
    with Readers(told.append) as readers:
        readers.add(program.pid, {"one": 1000, "two": 1000, "three": 500})
        wait_for(told, 600)
        go_on(program)
        # The first one is closed: it was read to its end.
        wait_for(told, 2000)
        readers.end(program.pid, 2500)
        assert sum(told) == 2500
        readers.end(None, 70)
        assert sum(told) == 2570


def test_what_a_program_has_read_that_failed_does_not_count(quick: None, program: subprocess.Popen[str]) -> None:
    told: list[int] = []
    assert program.stdout is not None
    program.stdout.readline()
    with Readers(told.append) as readers:
        readers.add(program.pid, {"one": 1000})
        wait_for(told, 600)
        readers.forget(program.pid)
        assert sum(told) == 0
        readers.forget(None)
        program.kill()
        program.wait()
        readers.add(program.pid, {"one": 1000})
        readers.end(program.pid, 0)
    assert sum(told) == 0
