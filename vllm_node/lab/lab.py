"""One lab: a bridge, a registry and nodes, described by a state file so that any later run finds and ends them."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vllm_node.lab import disk, images, network, node, registry, vllm_cpu
from vllm_node.lab.cache import lock
from vllm_node.lab.command import run
from vllm_node.lab.errors import LabError
from vllm_node.lab.process import Process
from vllm_node.paths import project_root, state_dir

# The bridge's name is `vn-` and this, within the kernel's 15 characters.
_NAME = re.compile(r"[a-z][a-z0-9-]{0,11}")
GROUP = "gpu_nodes"


def default_name() -> str:
    """Name of this checkout's own lab: two clones get two labs."""
    return "lab-" + hashlib.sha256(str(project_root()).encode()).hexdigest()[:4]


@dataclass
class Member:
    """A node of the lab: `number` gives its address, `process` is its machine while it runs."""

    spec: node.Spec
    number: int
    host_key: str
    process: Process | None = None


@dataclass
class Lab:
    """A lab by name; `Lab.find` gives the one that exists."""

    name: str
    subnet: str
    registry_password: str
    images_lock: dict[str, dict[str, str]]
    registry_process: Process | None = None
    members: list[Member] = field(default_factory=list)
    next_number: int = 0

    @property
    def folder(self) -> Path:
        """Everything of this lab lies here."""
        return _folder(self.name)

    @property
    def registry_address(self) -> str:
        """`host:port` as the nodes know it."""
        return f"{registry.HOST}:{registry.PORT}"

    @property
    def upstream(self) -> dict[str, str]:
        """How this machine reaches the same registry, as the side that makes bundles: options of `bundle create`."""
        return {"authfile": str(self.folder / "upstream/auth.json"), "ca": str(self.folder / "upstream/ca")}

    @property
    def ca(self) -> str:
        """PEM of the authority that signed the registry's certificate."""
        return (self.folder / "registry/tls/ca.crt").read_text()

    @classmethod
    def find(cls, name: str) -> Lab | None:
        """The lab of that name, or None."""
        path = _folder(name) / "state.json"
        if not path.exists():
            return None
        data = json.loads(path.read_text())
        members = [
            Member(node.Spec(**m["spec"]), m["number"], m["host_key"], _process(m["process"]))
            for m in data.pop("members")
        ]
        return cls(**{**data, "registry_process": _process(data["registry_process"])}, members=members)

    @classmethod
    def up(cls, name: str, specs: Sequence[node.Spec]) -> Lab:
        """Bring the lab up with these nodes; nodes that it already has, and that run, stay as they are.

        Raises:
            LabError: a part of it could not be made; what was made is recorded and goes with `down`.
        """
        if not _NAME.fullmatch(name):
            raise LabError(f"a lab's name is up to 12 of a-z, 0-9 and -, beginning with a letter; not {name!r}")
        with lock(f"lab-{name}"):
            lab = cls.find(name)
            if lab is not None and not lab.running:
                lab.down()
                lab = None
            lab = lab or cls._create(name)
            for spec in specs:
                known = lab.member(spec.name)
                if known is None:
                    lab._add(spec)
                elif known.spec != spec:
                    raise LabError(f"node {spec.name} of lab {name} is another kind: {known.spec}; remove it first")
            lab._wait()
        return lab

    @classmethod
    def _create(cls, name: str) -> Lab:
        # Whatever is slow or can fail for want of a package comes before anything that has to be cleaned up.
        locked = images.ensure()
        vllm_cpu.model()
        folder = _folder(name)
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "registry").mkdir(parents=True, mode=0o700)
        for path in (folder, folder.parent):
            path.chmod(0o700)
        subnet = network.free_subnet(name)
        address = network.address(subnet, 1)
        password = registry.prepare(folder / "registry", registry.HOST, address)
        registry.write_access(folder / "upstream", folder / "registry", f"{address}:{registry.PORT}", password)
        lab = cls(name, subnet, password, locked)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"lab {name}", "-f", folder / "id"])
        lab._save()
        network.up(name, subnet)
        lab.start_registry()
        return lab

    @property
    def running(self) -> bool:
        """Whether the registry and every node still run (after a reboot of the host, none does)."""
        processes = [self.registry_process, *(member.process for member in self.members)]
        return all(process is not None and process.alive for process in processes)

    def member(self, name: str) -> Member | None:
        """The node of that name, or None."""
        return next((member for member in self.members if member.spec.name == name), None)

    def place(self, member: Member) -> node.Place:
        """Where that node lives."""
        return node.place(self.name, self.folder, member.spec.name, self.subnet, member.number)

    def ssh(self, name: str) -> list[str]:
        """The words that run a command on node `name`: append the command.

        Raises:
            LabError: the lab has no such node.
        """
        member = self.member(name)
        if member is None:
            names = ", ".join(member.spec.name for member in self.members) or "none"
            raise LabError(f"lab {self.name} has no node {name}; it has: {names}")
        return ["ssh", *self._ssh_options(), f"root@{self.place(member).address}"]

    def start_registry(self) -> None:
        """Start the registry again after a test has stopped it."""
        if self.registry_process is None or not self.registry_process.alive:
            self.registry_process = registry.serve(self.folder / "registry", network.address(self.subnet, 1))
            self._save()

    def stop_registry(self) -> None:
        """Stop the registry; the storage stays."""
        if self.registry_process is not None:
            self.registry_process.end()

    def attach_disk(self, name: str, at: str) -> None:
        """Give node `name` a small disk, mounted at `at`."""
        member = self.member(name)
        if member is not None:
            disk.attach(self.place(member).folder, self.ssh(name), at)

    def remove(self, name: str) -> None:
        """End one node and remove all that was its own."""
        member = self.member(name)
        if member is not None:
            node.destroy(self.place(member), member.process)
            self.members.remove(member)
            self._save()

    def down(self) -> None:
        """End the lab and remove everything that it made, whatever state it is in."""
        for member in list(self.members):
            self.remove(member.spec.name)
        if self.registry_process is not None:
            self.registry_process.kill()
        network.down(self.name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def inventory(self) -> dict[str, Any]:
        """What `ansible-inventory` expects from a script: hosts, how to reach them, and what only this lab knows."""
        return {
            GROUP: {"hosts": [member.spec.name for member in self.members]},
            "all": {
                "vars": {
                    "ansible_user": "root",
                    "ansible_ssh_private_key_file": str(self.folder / "id"),
                    "ansible_ssh_common_args": " ".join(self._ssh_options(key=False)),
                    "images_lock": {
                        name: {
                            **image,
                            "repository": f"{self.registry_address}/{image['repository']}",
                            "source": f"{network.address(self.subnet, 1)}:{registry.PORT}/{image['repository']}",
                        }
                        for name, image in self.images_lock.items()
                    },
                    "lab_upstream": self.upstream,
                    "container_host_registry_address": self.registry_address,
                    "container_host_registry_ca": self.ca,
                    "container_host_registry_username": registry.USERNAME,
                    "container_host_registry_password": self.registry_password,
                }
            },
            "_meta": {
                "hostvars": {
                    member.spec.name: {"ansible_host": self.place(member).address} for member in self.members
                }
            },
        }

    def _add(self, spec: node.Spec) -> None:
        # An address is not used again at once: connections that are kept open would lead to the node before.
        taken = {member.number for member in self.members}
        number = next(n % 200 for n in range(self.next_number, self.next_number + 200) if n % 200 not in taken)
        self.next_number = number + 1
        member = Member(spec, number, "")
        self.members.append(member)
        self._save()  # before anything exists, so that an interrupted creation is found and undone
        place = self.place(member)
        gateway = {network.address(self.subnet, 1): registry.HOST}
        public_key = (self.folder / "id.pub").read_text()
        member.host_key = node.create(spec, place, public_key, gateway, vllm_cpu.model())
        member.process = node.boot(spec, place)
        self._save()

    def _wait(self) -> None:
        def wait(member: Member) -> None:
            assert member.process is not None
            node.wait(self.place(member), member.process, self.ssh(member.spec.name))

        with ThreadPoolExecutor() as pool:
            list(pool.map(wait, self.members))

    def _ssh_options(self, *, key: bool = True) -> list[str]:
        return [
            *(("-i", str(self.folder / "id")) if key else ()),
            *("-o", f"UserKnownHostsFile={self.folder / 'known_hosts'}", "-o", "StrictHostKeyChecking=yes"),
            *("-o", "ConnectTimeout=5", "-o", "LogLevel=ERROR", "-o", "IdentitiesOnly=yes"),
        ]

    def _save(self) -> None:
        keys = (f"{self.place(member).address} {member.host_key}\n" for member in self.members if member.host_key)
        (self.folder / "known_hosts").write_text("".join(keys))
        for name, data in (("state.json", asdict(self)), ("inventory.json", self.inventory())):
            path = self.folder / f".{name}"
            path.touch(mode=0o600)
            path.write_text(json.dumps(data, indent=1))
            path.rename(self.folder / name)


def names() -> list[str]:
    """Names of all labs of this user."""
    return sorted(path.parent.name for path in (state_dir() / "labs").glob("*/state.json"))


def _folder(name: str) -> Path:
    return state_dir() / "labs" / name


def _process(data: dict[str, int] | None) -> Process | None:
    return Process(**data) if data else None
