"""A bundle offered by a real registry program and as RPMs: what can be had, what cannot, and nothing that stays."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.registry import program, tiny
from tests.registry.tiny import Tiny
from tests.unit import bundles, site_bundles
from vllm_node.images import skopeo
from vllm_node.images.skopeo import Access, SkopeoError
from vllm_node.lab import pki, registry

IMAGES: dict[str, Callable[[], Tiny]] = {
    "oci": lambda: tiny.two_platforms("serve"),
    "docker": lambda: tiny.two_platforms("serve", tiny.DOCKER),
    "single": tiny.one_platform,
    "docker_single": lambda: tiny.one_platform(kinds=tiny.DOCKER),
}
RPM = b"an rpm that nobody looks into"


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return program.install(tmp_path_factory.mktemp("programs"))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = site_bundles.write(tmp_path / "bundle", {name: make() for name, make in IMAGES.items()})
    (folder / "rpms/repodata").mkdir(parents=True)
    (folder / "rpms/repodata/repomd.xml").write_text("<repomd/>")
    (folder / "rpms/it-1.0-1.noarch.rpm").write_bytes(RPM)
    (folder / "rpms/way-out").symlink_to("/etc/hostname")
    return folder


@dataclass
class Server:
    """`vllm-node bundle serve` at work."""

    running: subprocess.Popen[str]
    port: int
    rpm_port: int
    scratch: Path
    said: list[str] = field(default_factory=list)

    @property
    def variables(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load("".join(self.said[self.said.index("In the inventory:\n") + 1 : -1]))
        return found

    @property
    def ca(self) -> Path:
        return Path(self.variables["container_host_registry_ca"].split("'")[3])

    def access(self, folder: Path) -> Access:
        folder.mkdir()
        (folder / "ca.crt").write_bytes(self.ca.read_bytes())
        return Access(None, folder)

    def reference(self, name: str, digest: str) -> str:
        return skopeo.docker(f"127.0.0.1:{self.port}/x/{name}", digest=digest)

    def children(self) -> list[int]:
        found = subprocess.run(["pgrep", "--parent", str(self.running.pid)], capture_output=True, text=True).stdout
        return [int(line) for line in found.split()]


Start = Callable[..., Server]


def free_port() -> int:
    return registry._free_port()


@pytest.fixture
def start(programs: Path, bundle: Path, tmp_path: Path) -> Iterator[Start]:
    servers = []
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def begin(*words: str | Path, port: int | None = None, rpms: bool = True) -> Server:
        port, rpm_port = port or free_port(), free_port()
        env = {"PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(scratch), "XDG_STATE_HOME": str(tmp_path / "state")}
        given: list[str | Path] = ["serve", bundle, "--address", "127.0.0.1", "--port", str(port), "--no-verify"]
        given += ["--rpm-port", str(rpm_port)] if rpms else []
        server = Server(bundles.process(*given, *words, env=env), port, rpm_port, scratch)
        servers.append(server)
        assert server.running.stdout is not None
        for line in server.running.stdout:
            server.said.append(line)
            if line.startswith("Ctrl-C"):
                break
        return server

    yield begin
    for server in servers:
        if server.running.poll() is None:
            server.running.send_signal(signal.SIGINT)
            server.running.wait(30)
        assert server.running.stdout is not None
        server.running.stdout.close()


def test_every_image_can_be_had_with_every_digest(start: Start, bundle: Path, tmp_path: Path) -> None:
    before = bundles.stamps(bundle)
    server = start()
    access = server.access(tmp_path / "ca")
    for name, make in IMAGES.items():
        image = make()
        for digest, content in {**image.manifests, image.digest: image.top}.items():
            assert skopeo.raw_manifest(server.reference(name, digest), access) == content
        assert skopeo.raw_manifest(skopeo.docker(f"127.0.0.1:{server.port}/x/{name}", tag="1"), access) == image.top
        skopeo.copy(server.reference(name, image.digest), f"dir:{tmp_path / name}", access)
        for digest, content in image.blobs.items():
            assert (tmp_path / name / digest.removeprefix("sha256:")).read_bytes() == content
    assert bundles.stamps(bundle) == before
    assert server.said[0] == f"registry: https://127.0.0.1:{server.port}, read-only, 4 images of {bundle}\n"


def test_the_inventory_is_told_what_to_say(start: Start) -> None:
    server = start()
    ca = server.variables["container_host_registry_ca"]
    assert server.variables == {
        "container_host_registry_address": f"127.0.0.1:{server.port}",
        "container_host_registry_ca": ca,
        "container_host_mirrors": [{"upstream": site_bundles.HOST, "mirror": f"127.0.0.1:{server.port}"}],
        "packages_repository": f"https://127.0.0.1:{server.rpm_port}/",
        "packages_repository_ca": ca,
    }
    assert ca == f"{{{{ lookup('ansible.builtin.file', '{server.ca}') }}}}"
    assert "BEGIN CERTIFICATE" in server.ca.read_text()


def test_nothing_can_be_written_and_nothing_be_deleted(start: Start, bundle: Path, tmp_path: Path) -> None:
    before = bundles.stamps(bundle)
    server = start()
    access = server.access(tmp_path / "ca")
    source = tiny.two_platforms("another").write_dir(tmp_path / "another")
    with pytest.raises(SkopeoError, match="405"):
        skopeo.copy(source, skopeo.docker(f"127.0.0.1:{server.port}/x/another", tag="1"), target_access=access, retries=0)
    for method in ("DELETE", "PUT", "POST"):
        url = f"https://127.0.0.1:{server.port}/v2/x/oci/manifests/{IMAGES['oci']().digest}"
        assert status(server, url, method) in (404, 405)
    assert bundles.stamps(bundle) == before
    skopeo.raw_manifest(server.reference("oci", IMAGES["oci"]().digest), access)


def status(server: Server, url: str, method: str = "GET") -> int:
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=str(server.ca)), timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_rpms_and_nothing_else(start: Start, bundle: Path) -> None:
    server = start()
    url = f"https://127.0.0.1:{server.rpm_port}"
    context = ssl.create_default_context(cafile=str(server.ca))
    with urllib.request.urlopen(f"{url}/it-1.0-1.noarch.rpm", context=context, timeout=10) as answer:
        assert answer.read() == RPM
    assert status(server, f"{url}/repodata/repomd.xml") == 200
    assert status(server, f"{url}/it-1.0-1.noarch.rpm", "HEAD") == 200
    for method in ("PUT", "POST", "DELETE"):
        assert status(server, f"{url}/it-1.0-1.noarch.rpm", method) == 501
    (bundle / "rpms/new").write_text("came later")
    for path in ("", "repodata", "repodata/", "way-out", "new", "it-1.0-1.noarch.rpm/", "../bundle.json"):
        assert status(server, f"{url}/{path}") == 404, path
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(f"{url}/repodata/repomd.xml", timeout=10)


@pytest.mark.parametrize("path", ["/../bundle.json", "/%2e%2e/bundle.json", "//etc/hostname", "/repodata/../../bundle.json", "/..%2fbundle.json", "\\..\\bundle.json"])
def test_no_path_leads_out(start: Start, bundle: Path, path: str) -> None:
    server = start()
    context = ssl.create_default_context(cafile=str(server.ca))
    # By hand: no client would send it as it is.
    with context.wrap_socket(socket.create_connection(("127.0.0.1", server.rpm_port), 10), server_hostname="127.0.0.1") as talk:
        talk.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: talk.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 404 "), answer


def test_one_who_says_nothing_keeps_nobody_waiting(start: Start) -> None:
    server = start()
    with socket.create_connection(("127.0.0.1", server.rpm_port), 10):
        assert status(server, f"https://127.0.0.1:{server.rpm_port}/repodata/repomd.xml") == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_when_asked_and_leaves_nothing(start: Start, number: signal.Signals) -> None:
    server = start()
    assert len(list(server.scratch.iterdir())) == 1
    server.running.send_signal(number)
    assert server.running.wait(15) == 0
    assert list(server.scratch.iterdir()) == []
    again = start(port=server.port)
    assert again.said[-1].startswith("Ctrl-C")


def test_its_registry_does_not_outlive_it(start: Start) -> None:
    server = start()
    server.running.kill()
    server.running.wait(15)
    end = time.monotonic() + 10
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", server.port)):
                return
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_registry_that_ends_by_itself_ends_the_command(start: Start) -> None:
    server = start()
    (pid,) = server.children()
    os.kill(pid, signal.SIGKILL)
    assert server.running.wait(15) == 4
    assert server.running.stdout is not None
    assert "the registry has ended with -9" in server.running.stdout.read()


def test_the_authority_is_the_same_the_next_time(start: Start, tmp_path: Path) -> None:
    first = start()
    kept = first.ca.read_bytes()
    assert oct((tmp_path / "state/vllm-node/serve").glob("*/server.key").__next__().stat().st_mode)[-3:] == "600"
    first.running.send_signal(signal.SIGINT)
    first.running.wait(15)
    assert start().ca.read_bytes() == kept


def test_the_names_of_the_lock_are_in_the_certificate(start: Start) -> None:
    server = start()
    context = ssl.create_default_context(cafile=str(server.ca))
    name = site_bundles.HOST.partition(":")[0]
    with context.wrap_socket(socket.create_connection(("127.0.0.1", server.port), 10), server_hostname=name) as talk:
        told: dict[str, Any] = dict(talk.getpeercert() or {})
    assert {value for _kind, value in told["subjectAltName"]} == {"127.0.0.1", name}


def test_a_certificate_of_the_site(start: Start, tmp_path: Path) -> None:
    pki.make(tmp_path / "tls", "127.0.0.1")
    server = start("--tls-cert", tmp_path / "tls/server.crt", "--tls-key", tmp_path / "tls/server.key", rpms=False)
    assert set(server.variables) == {"container_host_registry_address", "container_host_mirrors"}
    access = tmp_path / "ca"
    access.mkdir()
    (access / "ca.crt").write_bytes((tmp_path / "tls/ca.crt").read_bytes())
    skopeo.raw_manifest(server.reference("oci", IMAGES["oci"]().digest), Access(None, access))


def refused(server: Server, code: int = 4) -> str:
    assert server.running.wait(15) == code, server.said
    assert list(server.scratch.iterdir()) == []
    return "".join(server.said)


def test_a_port_that_is_taken(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refused(start(port=port))
    assert f"nothing can listen at 127.0.0.1:{port}: Address already in use" in said


def test_an_address_that_is_not_of_this_machine(start: Start) -> None:
    assert "Give an address of this machine" in refused(start("--address", "203.0.113.7"))
    assert "an address that leads here" in refused(start("--address", "0.0.0.0"), code=2)


def test_a_bundle_without_rpms(start: Start, bundle: Path) -> None:
    (bundle / "rpms/repodata/repomd.xml").unlink()
    assert "is no repository of RPMs; leave --rpm-port out" in refused(start())


def test_a_manifest_that_is_not_what_its_name_says(start: Start, bundle: Path) -> None:
    path = bundle / "images/blobs/sha256" / IMAGES["single"]().digest.removeprefix("sha256:")
    path.write_bytes(path.read_bytes().replace(b'"schemaVersion": 2', b'"schemaVersion" :2'))
    said = refused(start())
    assert f"x/single@{IMAGES['single']().digest}" in said


def test_a_bundle_that_is_not_whole_is_not_offered(programs: Path, bundle: Path) -> None:
    env = {"PATH": f"{programs}:{os.environ['PATH']}"}
    done = bundles.process("serve", bundle, "--address", "127.0.0.1", "--port", str(free_port()), env=env)
    said = done.communicate(timeout=60)[0]
    assert done.returncode == 3
    assert "rpms/way-out: is a symbolic link" in said


def test_the_program_is_missing(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something else that is called registry is not taken for it."""
    (tmp_path / "registry").write_text("#!/bin/sh\necho 'npm registry manager'\n")
    (tmp_path / "registry").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    said = bundles.call("serve", bundle, "--address", "127.0.0.1", "--no-verify", code=4).output
    assert "there is no registry program here: install docker-registry (Debian, Ubuntu)" in said
