"""Reading nodes: the inventory, ssh's life, the podman service. `ssh` is a stand-in that works here."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from vllm_node import remote
from vllm_node.remote import (
    InventoryError,
    RemoteError,
    Target,
    connect,
    read_inventory,
    service_script,
    service_socket,
    targets,
)
from vllm_node.runner import RunError

INVENTORY = """
all:
  vars:
    ansible_user: root
    ansible_ssh_private_key_file: "{{ inventory_dir }}/keys/{{ key_name }}"
    key_name: id_lab
    ansible_ssh_common_args: >-
      -o UserKnownHostsFile={{ inventory_dir }}/known_hosts -o 'ProxyCommand=nc %h %p'
  hosts:
    n1: {ansible_host: 10.0.0.1, ansible_port: 2222, ansible_ssh_extra_args: -v}
    n2: {ansible_connection: local, ansible_become: true}
    plain:
"""

# Answers like OpenSSH as far as this project uses it: -O forward links the socket, -O anything else succeeds,
# and a remote command is handed to a shell as sshd does.
STANDIN_SSH = """#!/usr/bin/env python3
import os, subprocess, sys
args = sys.argv[1:]
with open(os.environ["SSH_LOG"], "a") as log:
    log.write(repr(args) + "\\n")
if os.environ.get("SSH_REFUSES"):
    sys.stderr.write(os.environ["SSH_REFUSES"] + "\\n")
    sys.exit(255)
if "-O" in args:
    if args[args.index("-O") + 1] == "forward":
        if os.environ.get("SSH_NO_FORWARD"):
            sys.exit("mux_client_forward: forwarding request failed")
        local, there = args[args.index("-L") + 1].split(":")
        os.symlink(there, local)
    sys.exit(0)
sys.exit(subprocess.run(["sh", "-c", args[-1]]).returncode)
"""

# Opens a socket until it is ended, as the real one does.
STANDIN_PODMAN = """#!/usr/bin/env python3
import os, signal, socket, sys, time
assert sys.argv[1:3] == ["system", "service"], sys.argv
path = sys.argv[-1].removeprefix("unix://")
open(os.environ["PODMAN_PID"], "w").write(str(os.getpid()))
if os.environ.get("PODMAN_BROKEN"):
    sys.exit(125)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
time.sleep(60)
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins of ssh and podman on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("ssh", STANDIN_SSH), ("podman", STANDIN_PODMAN)):
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SSH_LOG", str(tmp_path / "ssh.log"))
    monkeypatch.setenv("PODMAN_PID", str(tmp_path / "podman.pid"))
    return tmp_path


def calls(folder: Path) -> list[list[str]]:
    lines = (folder / "ssh.log").read_text(encoding="utf-8").splitlines()
    return [json.loads(json.dumps(eval(line))) for line in lines]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_inventory_says_how_to_reach_each_host(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(INVENTORY, encoding="utf-8")
    n1, n2, plain = read_inventory([str(tmp_path / "hosts.yml")])
    assert n1 == Target(
        host="n1",
        address="10.0.0.1",
        port=2222,
        user="root",
        key=f"{tmp_path}/keys/id_lab",
        args=("-o", f"UserKnownHostsFile={tmp_path}/known_hosts", "-o", "ProxyCommand=nc %h %p", "-v"),
    )
    assert (n2.local, n2.become) == (True, True)
    assert (plain.host, plain.address, plain.port) == ("plain", "plain", None)


def test_a_folder_is_an_inventory_and_limit_is_ansibles(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(INVENTORY, encoding="utf-8")
    (only,) = read_inventory([str(tmp_path)], limit="n*:!n2")
    assert (only.host, only.key) == ("n1", f"{tmp_path}/keys/id_lab")


def test_a_broken_inventory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("all: [", encoding="utf-8")
    with pytest.raises(InventoryError, match="No inventory was parsed"):
        read_inventory([str(tmp_path / "hosts.yml")])
    with pytest.raises(RunError, match="no inventory"):
        read_inventory([str(tmp_path / "nowhere")])


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("{{ lookup('pipe', 'date') }}", "only Ansible can fill"),
        ("{{ not_there }}", "only Ansible can fill"),
        ({"__ansible_vault": "x"}, "encrypted"),
    ],
)
def test_a_value_that_cannot_be_read_is_told_and_not_guessed(value: object, problem: str) -> None:
    document = {"_meta": {"hostvars": {"n1": {"ansible_host": value}}}}
    (target,) = targets(document, Path("/x/hosts.yml"))
    with pytest.raises(RemoteError, match=problem), connect(target):
        pass


def test_values_from_the_environment_are_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_HOST", "10.9.9.9")
    document = {"_meta": {"hostvars": {"n1": {"ansible_host": "{{ lookup('env', 'LAB_HOST') }}"}}}}
    assert targets(document, Path("/x/hosts.yml"))[0].address == "10.9.9.9"


TARGET = Target("n1", "10.0.0.1", 2222, "admin", "/key", ("-o", "A=b"), become=True)


def test_all_goes_through_one_connection_that_ends(programs: Path) -> None:
    with connect(Target("n1", "10.0.0.1", 2222, "admin", "/key", ("-o", "A=b"))) as connection:
        assert connection.run("echo one; echo \"two 'quoted'\"; exit 3", 5) == "one\ntwo 'quoted'\n"
        assert connection.run("echo $((20+2))", 5) == "22\n"
    master, *others = calls(programs)
    assert "-M" in master
    assert all("-M" not in call for call in others)
    control = {call[call.index("-S") + 1] for call in [master, *others]}
    assert len(control) == 1
    assert not Path(control.pop()).parent.exists()
    for call in [master, *others]:
        where = ["-o", "A=b", "-p", "2222", "-i", "/key", "-l", "admin", "10.0.0.1"]
        assert call[-len(where) - 1 : -1] == where
        assert "BatchMode=yes" in call


def test_a_user_that_is_not_root_goes_through_sudo(programs: Path) -> None:
    (programs / "bin" / "sudo").write_text('#!/bin/sh\n[ "$1" = -n ] && shift; SUDO=yes exec "$@"\n')
    (programs / "bin" / "sudo").chmod(0o755)
    with connect(TARGET) as connection:
        assert connection.run("echo $SUDO", 5) == "yes\n"


def test_a_refusing_sudo_is_told(programs: Path) -> None:
    (programs / "bin" / "sudo").write_text("#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n")
    (programs / "bin" / "sudo").chmod(0o755)
    with connect(TARGET) as connection, pytest.raises(RemoteError) as caught:
        connection.run("true", 5)
    assert "a password is required" in caught.value.seen
    assert "without a password" in caught.value.next_step


@pytest.mark.parametrize(
    ("said", "step"),
    [
        ("Host key verification failed.", "compare the key: ssh -p 2222"),
        ("root@n1: Permission denied (publickey).", "key that the node accepts"),
        ("ssh: connect to host n1 port 22: Connection refused", "whether the node is up"),
    ],
)
def test_a_host_that_does_not_answer_says_why_and_what_next(
    programs: Path, monkeypatch: pytest.MonkeyPatch, said: str, step: str
) -> None:
    monkeypatch.setenv("SSH_REFUSES", said)
    with pytest.raises(RemoteError) as caught, connect(Target("n1", "n1", 2222)):
        pass
    assert caught.value.seen == said
    assert step in caught.value.next_step


def test_a_command_that_hangs_is_given_up(programs: Path) -> None:
    with connect(Target("n1", "n1")) as connection, pytest.raises(RemoteError, match="within 0 s"):
        connection.run("exec sleep 5", 0.3)


@pytest.mark.parametrize("local", [True, False])
def test_the_podman_service_lives_as_long_as_the_call(programs: Path, local: bool) -> None:
    path = str(programs / "p.sock")
    with connect(Target("n1", "n1", local=local)) as connection:
        with connection.hold(service_script(path), 10), connection.bring(path) as here:
            assert Path(here).is_socket()
            pid = int((programs / "podman.pid").read_text())
            assert alive(pid)
        assert not alive(pid)
        assert not Path(path).exists()


def test_the_podman_service_ends_when_our_side_is_killed(programs: Path) -> None:
    """No chance to tidy up on our side: the node has to see the end of its input."""
    path = str(programs / "p.sock")
    shell = subprocess.Popen(
        ["sh", "-c", service_script(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert shell.stdout is not None
    assert shell.stdin is not None
    assert shell.stdout.readline() == b"vllm-node-ready\n"
    pid = int((programs / "podman.pid").read_text())
    shell.stdin.close()
    assert shell.wait(5) == 0
    assert not alive(pid)
    assert not Path(path).exists()
    shell.stdout.close()


def test_a_podman_that_does_not_serve_is_told_at_once(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PODMAN_BROKEN", "1")
    begun = time.monotonic()
    script = service_script(str(programs / "p.sock"))
    with (
        connect(Target("n1", "n1")) as connection,
        pytest.raises(RemoteError, match="podman did not open its socket"),
        connection.hold(script, 10),
    ):
        pass
    assert time.monotonic() - begun < 5


def test_a_forbidden_forward_names_the_setting(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_NO_FORWARD", "1")
    with (
        connect(Target("n1", "n1")) as connection,
        pytest.raises(RemoteError) as caught,
        connection.bring("/run/x.sock"),
    ):
        pass
    assert "forwarding request failed" in caught.value.seen
    assert "AllowStreamLocalForwarding" in caught.value.next_step


def test_each_call_has_a_socket_of_its_own() -> None:
    assert service_socket() != service_socket()
    assert service_socket().startswith("/run/vllm-node-status-")


def test_sockets_get_a_short_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/long" * 30)
    assert remote._short_tmp() == "/tmp"
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/short")
    assert remote._short_tmp() == "/short"
