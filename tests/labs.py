"""Lab nodes for tests: one lab for the session, nodes made on demand, and playbooks run against them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import testinfra
from testinfra.host import Host

from vllm_node.lab import roots
from vllm_node.lab.lab import Lab
from vllm_node.lab.node import Spec
from vllm_node.paths import project_root

# What a booted Linux writes by itself, and what the toolkit cannot be asked to undo.
_MOVES_BY_ITSELF = (
    "var/log",
    "var/lib/systemd",
    "var/cache",
    "var/tmp",
    "tmp",
    "run",
    "etc/.updated",
    "var/.updated",
    "etc/ld.so.cache",
    "etc/machine-id",
    "root/.ansible",
)


@dataclass(frozen=True)
class Run:
    """How a command of the wrapper ended: its exit code, its JSON document and what it said beside it."""

    code: int
    document: Mapping[str, Any]
    said: str

    def host(self, name: str) -> Mapping[str, Any]:
        """The document's part about one host."""
        return cast("Mapping[str, Any]", self.document["hosts"][name])

    def findings(self, name: str, level: str = "fail") -> set[str]:
        """Ids of the preflight findings of one host."""
        return {one["id"] for one in self.host(name)["findings"] or [] if one["level"] == level}


class Nodes:
    """The nodes of one lab; `make` boots what is not there yet."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def lab(self) -> Lab:
        """The lab as it is recorded now."""
        found = Lab.find(self.name)
        assert found is not None, f"lab {self.name} is not up"
        return found

    def make(self, *specs: Spec) -> None:
        """Boot nodes, as far as they do not run already."""
        Lab.up(self.name, specs)

    def remake(self, spec: Spec) -> None:
        """Boot a node afresh."""
        self.lab.remove(spec.name)
        self.make(spec)

    def run(self, verb: str, *words: str, limit: str, variables: Mapping[str, Any] | None = None) -> Run:
        """Run `vllm-node VERB --json` on the lab's inventory; the verb may be of two words.

        Nothing is measured at the end of a bring-up, which takes a while, unless `variables` has `smoke_benchmark`.
        """
        if verb == "up":
            variables = {"smoke_benchmark": False, **(variables or {})}
        argv = [sys.executable, "-m", "vllm_node", *verb.split(), "-i", "inventories/lab", "--json", "--limit", limit]
        if variables:
            argv += ["-e", json.dumps(variables)]
        done = self.program(*argv, *words)
        try:
            document = json.loads(done.stdout)
        except json.JSONDecodeError:
            raise AssertionError(
                f"{verb} gave no JSON (exit code {done.returncode}):\n{done.stdout}\n{done.stderr}"
            ) from None
        return Run(done.returncode, document, done.stderr)

    def program(self, *argv: str, limit_s: float = 1200) -> subprocess.CompletedProcess[str]:
        """A finished program of this project that sees the session's lab."""
        return subprocess.run(
            argv,
            cwd=project_root(),
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )

    def interrupted(self, moment: str, *argv: str) -> str:
        """End a program by Ctrl-C as soon as it says `moment` on stderr; what it said after that."""
        with subprocess.Popen(
            argv, cwd=project_root(), env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as run:
            assert run.stderr is not None
            said = ""
            while moment not in said:
                line = run.stderr.readline()
                assert line, f"it ended before {moment!r}:\n{said}"
                said += line
            run.send_signal(signal.SIGINT)
            told, more = run.communicate(timeout=120)
        assert run.returncode == 130, said + more
        return told + more

    def environment(self) -> dict[str, str]:
        """Environment in which `inventories/lab` is this lab."""
        return {**os.environ, "VLLM_NODE_LAB": self.name}

    def host(self, name: str) -> Host:
        """The node, for testinfra."""
        member = self.lab.member(name)
        assert member is not None
        options = f"-o UserKnownHostsFile={self.lab.folder / 'known_hosts'} -o LogLevel=ERROR -o IdentitiesOnly=yes"
        return testinfra.get_host(
            f"ssh://root@{self.lab.place(member).address}",
            ssh_identity_file=str(self.lab.folder / "id"),
            ssh_extra_args=options,
        )

    def shell(self, name: str, command: str) -> str:
        """Output of a command on the node; it has to succeed."""
        done = subprocess.run(
            [*self.lab.ssh(name), command], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{name}: {command}: {done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def tunnel(self, name: str, port: int) -> Iterator[str]:
        """URL by which the node's loopback port can be asked from here."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            here = probe.getsockname()[1]
        *words, address = self.lab.ssh(name)
        forward = ["-N", "-o", "ExitOnForwardFailure=yes", "-L", f"127.0.0.1:{here}:127.0.0.1:{port}", address]
        with subprocess.Popen([*words, *forward]) as ssh:
            try:
                for _ in range(100):
                    with socket.socket() as probe:
                        if probe.connect_ex(("127.0.0.1", here)) == 0:
                            break
                    time.sleep(0.1)
                yield f"http://127.0.0.1:{here}"
            finally:
                # Not asked to end: ssh can miss a signal that comes just before it waits, and then waits for ever.
                ssh.kill()

    def tree(self, name: str) -> dict[str, str]:
        """Everything that the node has written since it was laid out, seen from outside of it.

        The node is an overlay: its upper layer holds each changed file, whether the toolkit knows of it or not.
        """
        member = self.lab.member(name)
        assert member is not None
        upper, lower = self.lab.place(member).folder / "upper", roots.node_root(member.spec.podman)
        found = {}
        for folder, folders, files in os.walk(upper):
            relative = Path(folder).relative_to(upper)
            folders[:] = [one for one in folders if str(relative / one) not in _MOVES_BY_ITSELF]
            for one in [*folders, *files]:
                path = relative / one
                state = _describe(upper / path)
                # A folder in which something was made and removed again is copied up, and is still what it was.
                if str(path) not in _MOVES_BY_ITSELF and state != _describe(lower / path):
                    found[str(path)] = state
        return found


def _describe(path: Path) -> str:
    if not os.path.lexists(path):
        return "absent"
    status = path.lstat()
    told = f"{stat.filemode(status.st_mode)} {status.st_uid}:{status.st_gid}"
    if path.is_symlink():
        return f"{told} -> {path.readlink()}"
    if path.is_file():
        return f"{told} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    return told
