"""Status: what systemd and podman print becomes records, and records become words and exit codes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from vllm_node import status
from vllm_node.exit_codes import ExitCode
from vllm_node.remote import Connection, RemoteError, Target, connect
from vllm_node.status import Container, NodeStatus, Note, State, Unit, UnitFile

A = "sha256:" + "a" * 64
B = "sha256:" + "b" * 64
INDEX = "sha256:" + "c" * 64

UNIT_FILE = f"""
ContainerName=vllm-tiny
Image=registry.lab.internal:5000/vllm@{A}
Label=io.vllm-node.component=vllm io.vllm-node.inputs=abc
  Label = other=1
"""

SHOW = """Id=vllm-node.target
LoadState=loaded
ActiveState=active
SubState=active
ActiveEnterTimestamp=@1700000000

NRestarts=3
Result=exit-code
Id=vllm-tiny.service
LoadState=loaded
ActiveState=failed
SubState=failed
ActiveEnterTimestamp=@1700000000

Id=gpu-cdi-ready.service
LoadState=not-found
ActiveState=inactive
SubState=dead
Result=success
NRestarts=0
ActiveEnterTimestamp=
"""

# A node: `systemctl` prints what it was told to, and `podman` serves its API from a folder of documents.
SYSTEMCTL = '#!/bin/sh\necho "$@" >"$NODE/systemctl.args"\ncat "$NODE/show"\n'
PODMAN = """#!{python}
import http.server, os, socketserver, sys
if sys.argv[1] == "--version":
    print("podman version 5.4.2")
    sys.exit()
open(os.environ["NODE"] + "/served", "a").write("x")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        kind, name = self.path.partition("/libpod/")[2].split("/")[:2]
        path = os.path.join(os.environ["NODE"], kind, name.replace("%3A", ":") + ".json")
        found = os.path.exists(path)
        body = open(path, "rb").read() if found else b'{{"cause": "no such", "message": "no such"}}'
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def address_string(self):
        return "-"
    def log_message(self, *_):
        pass
class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
Server(sys.argv[-1].removeprefix("unix://"), Handler).serve_forever()
"""


class Node:
    """A node of stand-ins, asked through a local connection."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.quadlets = folder / "systemd"
        self.bin = folder / "bin"
        for name in ("systemd", "bin", "containers", "images"):
            (folder / name).mkdir()
        self.program("systemctl", SYSTEMCTL)
        self.program("podman", PODMAN.format(python=sys.executable))
        self.show()

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text, encoding="utf-8")
        (self.bin / name).chmod(0o755)

    def show(self, *units: tuple[str, str, str]) -> None:
        blocks = [
            f"Id={name}\nLoadState={load}\nActiveState={active}\nSubState=x\nResult=exit-code\nNRestarts=0\n"
            for name, load, active in (units or ((status.TARGET_UNIT, "not-found", "inactive"),))
        ]
        (self.folder / "show").write_text("\n".join(blocks), encoding="utf-8")

    def install(self, active: str = "active") -> None:
        (self.quadlets / "vllm-tiny.container").write_text(f"[Container]{UNIT_FILE}", encoding="utf-8")
        self.show((status.TARGET_UNIT, "loaded", "active"), ("vllm-tiny.service", "loaded", active))

    def run(self, digests: list[str], health: str | None = "healthy") -> None:
        state: dict[str, Any] = {"Status": "running"}
        if health:
            state["Health"] = {"Status": health}
        container = {
            "Id": "1234",
            "Name": "vllm-tiny",
            "Image": "5678",
            "ImageDigest": digests[0],
            "RestartCount": 2,
            "State": state,
        }
        image = {"Id": "5678", "RepoDigests": [f"registry.lab.internal:5000/vllm@{one}" for one in digests]}
        (self.folder / "containers" / "vllm-tiny.json").write_text(json.dumps(container), encoding="utf-8")
        (self.folder / "images" / "5678.json").write_text(json.dumps(image), encoding="utf-8")

    def read(self) -> NodeStatus:
        target = Target("n1", "n1", local=True)
        return status.read_node(target, ["inv"], connect, str(self.quadlets))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path)
    monkeypatch.setenv("NODE", str(tmp_path))
    monkeypatch.setenv("PATH", f"{made.bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(status, "service_socket", lambda: str(tmp_path / "service.sock"))
    return made


def notes(answer: NodeStatus) -> str:
    return "\n".join(f"{note.seen} -> {note.next_step}" for note in answer.notes)


def test_unit_files_are_read() -> None:
    assert status.parse_unit_file("vllm-tiny", UNIT_FILE) == UnitFile(
        "vllm-tiny.service", "vllm-tiny", "vllm", f"registry.lab.internal:5000/vllm@{A}", A
    )
    assert status.parse_unit_file("other", "Image=docker/x:latest\n") == UnitFile(
        "other.service", "systemd-other", None, "docker/x:latest", None
    )


def test_systemd_is_read_and_what_it_does_not_say_is_none() -> None:
    target, service, cdi = status.parse_units(SHOW, 1_700_000_060)
    assert target == Unit("vllm-node.target", "loaded", "active", "active", "", None, 60.0)
    assert service == Unit("vllm-tiny.service", "loaded", "failed", "failed", "exit-code", 3, None)
    assert (cdi.load, cdi.restarts, cdi.active_for_s) == ("not-found", 0, None)


def test_half_an_answer_is_not_taken_for_a_whole_one() -> None:
    with pytest.raises(RemoteError, match="not whole"):
        status.parse_reading("@@now 1\n@@units\nId=x\n")


def test_a_node_where_all_is_well(node: Node) -> None:
    node.install()
    node.run([A])
    answer = node.read()
    assert answer.state is State.RUNNING, notes(answer)
    assert answer.podman == "5.4.2"
    assert answer.containers == [
        Container(
            "vllm-tiny",
            "vllm-tiny.service",
            "vllm",
            "running",
            "healthy",
            2,
            f"registry.lab.internal:5000/vllm@{A}",
            A,
            A,
            False,
        )
    ]
    asked = (node.folder / "systemctl.args").read_text().split()
    assert asked[-3:] == ["vllm-node.target", "gpu-cdi-ready.service", "vllm-tiny.service"]
    assert not (node.folder / "service.sock").exists()


def test_an_index_digest_in_the_unit_file_is_no_drift(node: Node) -> None:
    """Such an image also has the digest of its own manifest, and that one is podman's ImageDigest."""
    node.install()
    text = (node.quadlets / "vllm-tiny.container").read_text().replace(A, INDEX)
    (node.quadlets / "vllm-tiny.container").write_text(text)
    node.run([B, INDEX])
    (container,) = node.read().containers
    assert (container.drift, container.digest_running) == (False, INDEX)


def test_another_image_than_in_the_unit_file_is_drift(node: Node) -> None:
    node.install()
    node.run([B])
    answer = node.read()
    assert answer.state is State.ATTENTION
    assert answer.containers[0].drift is True
    assert answer.containers[0].digest_running == B
    assert f"runs {B}, its unit file says {A} -> vllm-node up -i inv --limit n1" in notes(answer)


def test_a_container_without_a_health_check_is_not_called_healthy(node: Node) -> None:
    node.install()
    node.run([A], health=None)
    (container,) = node.read().containers
    assert container.health is None


def test_an_unhealthy_container_needs_attention(node: Node) -> None:
    node.install()
    node.run([A], health="unhealthy")
    assert "vllm-tiny is unhealthy" in notes(node.read())


def test_a_failed_unit_without_a_container(node: Node) -> None:
    node.install(active="failed")
    answer = node.read()
    assert answer.state is State.ATTENTION
    assert "vllm-tiny.service is failed (exit-code) -> journalctl -u vllm-tiny.service" in notes(answer)
    (container,) = answer.containers
    assert (container.state, container.digest_running, container.drift) == (None, None, None)


def test_an_image_without_a_digest_is_told(node: Node) -> None:
    node.install()
    text = (node.quadlets / "vllm-tiny.container").read_text().replace(f"@{A}", ":latest")
    (node.quadlets / "vllm-tiny.container").write_text(text)
    node.run([A])
    answer = node.read()
    assert "names an image without a digest" in notes(answer)
    assert answer.containers[0].drift is None


def test_a_bare_node_is_not_touched_by_podman(node: Node) -> None:
    """Podman creates its storage when it is first asked for anything."""
    answer = node.read()
    assert answer.state is State.NOT_INSTALLED
    assert "nothing of vllm-node is installed (podman 5.4.2 is there) -> vllm-node up" in notes(answer)
    assert not (node.folder / "served").exists()


def test_units_of_others_are_not_ours(node: Node) -> None:
    (node.quadlets / "theirs.container").write_text("[Container]\nImage=docker/x:latest\n")
    assert node.read().state is State.NOT_INSTALLED


def test_a_node_without_podman_still_shows_its_units(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.install(active="failed")
    (node.bin / "podman").unlink()
    if subprocess.run(["sh", "-c", "command -v podman"], capture_output=True, check=False).returncode == 0:
        tools = node.folder / "tools"
        tools.mkdir()
        for name in ("sh", "date", "grep", "basename", "cat", "echo"):
            (tools / name).symlink_to(f"/bin/{name}")
        monkeypatch.setenv("PATH", f"{node.bin}{os.pathsep}{tools}")
    answer = node.read()
    assert "podman is not installed" in notes(answer)
    assert [unit.name for unit in answer.units] == ["vllm-node.target", "vllm-tiny.service"]


def test_a_podman_that_does_not_answer_leaves_the_units(node: Node) -> None:
    node.install()
    node.program("podman", '#!/bin/sh\n[ "$1" = --version ] && echo "podman version 5.4.2"\nexit 1\n')
    answer = node.read()
    assert "containers were not seen: podman did not open its socket" in notes(answer)
    assert answer.units
    assert answer.containers[0].digest_wanted == A
    assert answer.containers[0].digest_running is None


def test_podman_errors_are_told_and_not_raised(node: Node) -> None:
    node.install()
    (node.folder / "containers" / "vllm-tiny.json").write_text("this is no JSON", encoding="utf-8")
    assert "containers were not seen" in notes(node.read())


def test_a_silent_node_does_not_keep_the_others() -> None:
    @contextmanager
    def connector(target: Target) -> Iterator[Connection]:
        if target.host == "dead":
            raise RemoteError("No route to host", "Look whether it is up.")
        yield Bare()

    class Bare:
        def run(self, script: str, timeout_s: float) -> str:
            return "@@now 1\n@@units\n@@end\n"

        def hold(self, script: str, timeout_s: float) -> Any:
            raise AssertionError("nothing is there to be asked")

        def bring(self, remote_socket: str) -> Any:
            raise AssertionError("nothing is there to be asked")

    answers = status.read_all([Target("dead", "10.0.0.9"), Target("n1", "10.0.0.1")], ["inv"], connector)
    assert [answer.state for answer in answers] == [State.UNREACHABLE, State.NOT_INSTALLED]
    assert answers[0].notes == [Note("No route to host", "Look whether it is up.")]


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ([State.RUNNING, State.NOT_INSTALLED], ExitCode.OK),
        ([State.RUNNING, State.ATTENTION], ExitCode.TASK_FAILED),
        ([State.ATTENTION, State.UNREACHABLE], ExitCode.UNREACHABLE),
    ],
)
def test_exit_codes(states: list[State], code: ExitCode) -> None:
    assert status.exit_code([NodeStatus("n", "n", state) for state in states]) is code


def test_the_document_says_null_for_what_was_not_seen(node: Node) -> None:
    node.install(active="failed")
    document = json.loads(json.dumps(status.document([node.read()])))
    host = document["hosts"]["n1"]
    assert host["state"] == "attention"
    assert host["containers"][0]["digest_running"] is None
    assert document["exit_code"] == 4


def test_people_get_one_table_a_node_and_the_next_step(node: Node) -> None:
    node.install()
    node.run([B])
    out = io.StringIO()
    status.print_status(Console(file=out, width=40), [node.read()])
    lines = out.getvalue().splitlines()
    assert lines[0] == "n1 (n1): attention, podman 5.4.2"
    (row,) = [line for line in lines if line.startswith("vllm-tiny.service")]
    assert row.split() == [
        "vllm-tiny.service",
        "active",
        "(x)",
        "-",
        "0",
        "running",
        "healthy",
        "sha256:bbbbbbbbbbbb",
        "drift",
    ]
    assert lines[-1] == "    → vllm-node up -i inv --limit n1"
