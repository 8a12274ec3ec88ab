"""What runs on the nodes now: units from systemd, containers and digests from podman, against the unit files.

Asking changes nothing: on a node where nothing was installed not even podman is called, since it would create
its storage there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

import podman
import podman.errors
import requests.exceptions
from rich.console import Console
from rich.text import Text

from vllm_node.exit_codes import ExitCode
from vllm_node.remote import Connection, RemoteError, Target, connect, service_script, service_socket
from vllm_node.summary import print_table, short_digest

SCHEMA = 1
QUADLET_DIR = "/etc/containers/systemd"
TARGET_UNIT = "vllm-node.target"
CDI_UNIT = "gpu-cdi-ready.service"
_OUR_LABEL = "io.vllm-node.component"
_READ_TIMEOUT_S = 20.0
_PODMAN_TIMEOUT_S = 15.0
_PARALLEL = 16
_SHOWN = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "NRestarts",
    "ActiveEnterTimestamp",
)

Connector = Callable[[Target], AbstractContextManager[Connection]]


class State(StrEnum):
    """One word for a node."""

    RUNNING = "running"
    ATTENTION = "attention"
    NOT_INSTALLED = "not installed"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True)
class UnitFile:
    """What a `.container` file says. `digest` None: its image is not pinned."""

    service: str
    container: str
    component: str | None
    image: str | None
    digest: str | None


@dataclass(frozen=True)
class Unit:
    """A unit as systemd has it. `restarts` and `active_for_s` None: systemd does not say."""

    name: str
    load: str
    active: str
    sub: str
    result: str
    restarts: int | None
    active_for_s: float | None


@dataclass(frozen=True)
class Container:
    """A container as podman has it, against its unit file. None: not observable.

    `drift`: True when the image that runs does not have the digest of the unit file.
    """

    name: str
    unit: str
    component: str | None
    state: str | None = None
    health: str | None = None
    restarts: int | None = None
    image: str | None = None
    digest_wanted: str | None = None
    digest_running: str | None = None
    drift: bool | None = None


@dataclass(frozen=True)
class Note:
    """Something to know about a node, and what to do about it."""

    seen: str
    next_step: str


@dataclass(frozen=True)
class NodeStatus:
    """All that is known about one node."""

    host: str
    address: str
    state: State
    podman: str | None = None
    units: list[Unit] = field(default_factory=list)
    containers: list[Container] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


@dataclass(frozen=True)
class Reading:
    """What the one shell script on the node told."""

    now_s: float
    podman: str | None
    files: list[UnitFile]
    units: list[Unit]
    unreadable: bool


def read_all(
    targets: Sequence[Target], inventory: Sequence[str], connector: Connector = connect
) -> list[NodeStatus]:
    """Ask all nodes at once. Order as given; a node that does not answer does not keep the others."""
    with ThreadPoolExecutor(max_workers=_PARALLEL, thread_name_prefix="status") as pool:
        return list(pool.map(lambda target: read_node(target, inventory, connector), targets))


def read_node(
    target: Target, inventory: Sequence[str], connector: Connector = connect, quadlet_dir: str = QUADLET_DIR
) -> NodeStatus:
    """Ask one node. Never raises for what the node does."""
    up = shlex.join(
        ["vllm-node", "up", *(word for one in inventory for word in ("-i", one)), "--limit", target.host]
    )
    status = NodeStatus(target.host, target.address, State.UNREACHABLE)
    try:
        with connector(target) as connection:
            reading = parse_reading(connection.run(reading_script(quadlet_dir), _READ_TIMEOUT_S))
            installed = any(one.component for one in reading.files) or any(
                unit.name == TARGET_UNIT and unit.load != "not-found" for unit in reading.units
            )
            status = replace(status, podman=reading.podman, units=reading.units)
            if not installed:
                return replace(
                    status, state=State.NOT_INSTALLED, units=[], notes=[_nothing_there(reading, up)]
                )
            containers, notes = _containers(connection, reading)
            notes = [*_judge(reading, containers, up), *notes]
            state = State.ATTENTION if notes else State.RUNNING
            return replace(status, state=state, containers=containers, notes=notes)
    except RemoteError as error:
        return replace(status, notes=[Note(error.seen, error.next_step)])


def reading_script(quadlet_dir: str = QUADLET_DIR) -> str:
    """Shell script that prints all that `parse_reading` reads. It changes nothing."""
    folder = shlex.quote(quadlet_dir)
    return f"""
export LC_ALL=C
echo "@@now $(date +%s)"
command -v podman >/dev/null 2>&1 && echo "@@podman $(podman --version)"
[ -d {folder} ] && [ ! -r {folder} ] && echo "@@unreadable"
units="{TARGET_UNIT} {CDI_UNIT}"
for file in {folder}/*.container; do
    [ -f "$file" ] || continue
    name=$(basename "$file" .container)
    units="$units $name.service"
    echo "@@file $name"
    grep -E '^[[:space:]]*(Image|ContainerName|Label)[[:space:]]*=' "$file"
done
echo "@@units"
systemctl show --timestamp=unix --property={",".join(_SHOWN)} -- $units
echo "@@end"
"""


def parse_reading(text: str) -> Reading:
    """Read the script's output. Raises RemoteError when it is not whole."""
    if not text.rstrip().endswith("@@end"):
        raise RemoteError(f"The node's answer is not whole: {text[-200:]!r}", "Run the same command again.")
    now_s, podman_version, unreadable = 0.0, None, False
    files: list[UnitFile] = []
    units: list[Unit] = []
    for section in re.split(r"^@@", text, flags=re.MULTILINE)[1:]:
        head, _, body = section.partition("\n")
        word, _, rest = head.partition(" ")
        if word == "now":
            now_s = float(rest)
        elif word == "podman":
            podman_version = rest.strip().rpartition(" ")[2] or None
        elif word == "unreadable":
            unreadable = True
        elif word == "file":
            files.append(parse_unit_file(rest.strip(), body))
        elif word == "units":
            units = parse_units(body, now_s)
    return Reading(now_s, podman_version, files, units, unreadable)


def parse_unit_file(name: str, text: str) -> UnitFile:
    """Image, container name and component of a `.container` file; `name` without the suffix."""
    image = container = component = None
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition("="))
        if key == "Image":
            image = value
        elif key == "ContainerName":
            container = value
        elif key == "Label":
            for label in shlex.split(value):
                left, _, right = label.partition("=")
                component = right if left == _OUR_LABEL else component
    digest = image.partition("@")[2] or None if image else None
    # Without a name of its own Quadlet calls the container after the unit.
    return UnitFile(f"{name}.service", container or f"systemd-{name}", component, image, digest)


def parse_units(text: str, now_s: float) -> list[Unit]:
    """Units from `systemctl show --timestamp=unix`, one block each."""
    units: list[Unit] = []
    for block in re.split(r"\n\s*\n", text.strip()):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" not in values:
            continue
        since = values.get("ActiveEnterTimestamp", "").removeprefix("@")
        is_active = values.get("ActiveState") == "active"
        restarts = values.get("NRestarts", "")
        units.append(
            Unit(
                name=values["Id"],
                load=values.get("LoadState", ""),
                active=values.get("ActiveState", ""),
                sub=values.get("SubState", ""),
                result=values.get("Result", ""),
                restarts=int(restarts) if restarts.isdigit() else None,
                active_for_s=now_s - float(since) if is_active and since.isdigit() else None,
            )
        )
    return units


def read_containers(base_url: str, files: Sequence[UnitFile]) -> list[Container]:
    """Containers of these unit files through a podman service. Raises podman's and requests' errors."""
    with podman.PodmanClient(base_url=base_url, timeout=_PODMAN_TIMEOUT_S) as client:
        return [_read_container(client, file) for file in files]


def _read_container(client: Any, file: UnitFile) -> Container:
    wanted = Container(
        file.container, file.service, file.component, image=file.image, digest_wanted=file.digest
    )
    try:
        attributes: Mapping[str, Any] = client.containers.get(file.container).attrs
    except podman.errors.NotFound:
        return wanted
    digests = [attributes["ImageDigest"]] if attributes.get("ImageDigest") else []
    try:
        image: Mapping[str, Any] = client.images.get(attributes["Image"]).attrs
    except podman.errors.NotFound:
        image = {}
    # An image pulled by the digest of an index has that one and the one of its own manifest.
    digests += [str(name).partition("@")[2] for name in image.get("RepoDigests") or []]
    same = file.digest in digests if file.digest and digests else None
    running = file.digest if same else (digests[0] if digests else None)
    state: Mapping[str, Any] = attributes.get("State") or {}
    health: Mapping[str, Any] = state.get("Health") or state.get("Healthcheck") or {}
    return replace(
        wanted,
        state=state.get("Status"),
        health=health.get("Status") or None,
        restarts=attributes.get("RestartCount"),
        digest_running=running,
        drift=None if same is None else not same,
    )


def _containers(connection: Connection, reading: Reading) -> tuple[list[Container], list[Note]]:
    unseen = [
        Container(one.container, one.service, one.component, image=one.image, digest_wanted=one.digest)
        for one in reading.files
    ]
    if reading.podman is None:
        return unseen, [
            Note("podman is not installed", "Install podman, or remove the unit files: vllm-node down")
        ]
    if not unseen:
        return [], []
    path = service_socket()
    try:
        with connection.hold(service_script(path), _READ_TIMEOUT_S), connection.bring(path) as local:
            return read_containers(f"unix://{local}", reading.files), []
    except RemoteError as error:
        return unseen, [Note(f"containers were not seen: {error.seen}", error.next_step)]
    except (podman.errors.PodmanError, requests.exceptions.RequestException, OSError) as error:
        reason = f"containers were not seen: podman's service said: {error}"
        return unseen, [Note(reason, "Run `podman ps` on the node, and this command again.")]


def _nothing_there(reading: Reading, up: str) -> Note:
    if reading.unreadable:
        return Note(
            f"{QUADLET_DIR} cannot be read by this user", "Let ansible_user be root, or set ansible_become."
        )
    podman_there = f"podman {reading.podman} is there" if reading.podman else "podman is not installed either"
    return Note(f"nothing of vllm-node is installed ({podman_there})", up)


def _judge(reading: Reading, containers: Sequence[Container], up: str) -> list[Note]:
    notes: list[Note] = []
    ours = {one.service for one in reading.files if one.component} | {TARGET_UNIT}
    for unit in reading.units:
        log = f"journalctl -u {unit.name} -n 50 on the node, then: {up}"
        if unit.name == CDI_UNIT:
            if unit.active == "failed":
                notes.append(Note(f"{unit.name} is failed ({unit.result})", log))
        elif unit.name not in ours:
            continue
        elif unit.load == "not-found":
            notes.append(Note(f"{unit.name} is not known to systemd", up))
        elif unit.active in ("activating", "reloading", "deactivating"):
            notes.append(Note(f"{unit.name} is {unit.active} ({unit.sub})", "Wait, and ask again."))
        elif unit.active != "active":
            notes.append(Note(f"{unit.name} is {unit.active} ({unit.result})", log))
    for one in containers:
        if one.component is None:
            continue
        if one.health not in (None, "healthy"):
            notes.append(
                Note(f"{one.name} is {one.health}", f"podman healthcheck run {one.name} on the node")
            )
        if one.drift:
            notes.append(
                Note(f"{one.name} runs {one.digest_running}, its unit file says {one.digest_wanted}", up)
            )
        if one.digest_wanted is None:
            notes.append(Note(f"{one.unit} names an image without a digest: {one.image}", up))
    return notes


def exit_code(nodes: Sequence[NodeStatus]) -> ExitCode:
    """5 when a node did not answer, else 4 when one needs attention. A node with nothing on it is fine."""
    states = {node.state for node in nodes}
    if State.UNREACHABLE in states:
        return ExitCode.UNREACHABLE
    return ExitCode.TASK_FAILED if State.ATTENTION in states else ExitCode.OK


def document(nodes: Sequence[NodeStatus]) -> dict[str, Any]:
    """The same for a machine. Null: not observable."""
    code = exit_code(nodes)
    return {
        "schema": SCHEMA,
        "verb": "status",
        "exit_code": int(code),
        "outcome": code.word,
        "hosts": {node.host: asdict(node) for node in nodes},
    }


def print_status(console: Console, nodes: Sequence[NodeStatus]) -> None:
    """The same for a person: a line a node, a table of its units, and what to do about the rest."""
    for node in nodes:
        style = {State.RUNNING: "bold green", State.NOT_INSTALLED: "bold"}.get(node.state, "bold red")
        version = f", podman {node.podman}" if node.podman else ""
        console.print(
            Text(f"{node.host} ({node.address}): {node.state}{version}", style=style), soft_wrap=True
        )
        by_unit = {one.unit: one for one in node.containers}
        # A node without GPUs for us has no need of that unit.
        shown = [unit for unit in node.units if unit.name != CDI_UNIT or unit.load != "not-found"]
        rows = [_row(unit, by_unit.get(unit.name)) for unit in shown]
        if rows:
            head = ["unit", "state", "for", "restarts", "container", "health", "digest", "as in unit file"]
            print_table(console, head, rows)
        for note in node.notes:
            console.print(Text(f"  {note.seen}"), soft_wrap=True)
            console.print(Text(f"    → {note.next_step}"), soft_wrap=True)


def _row(unit: Unit, container: Container | None) -> list[str]:
    state = unit.load if unit.load == "not-found" else f"{unit.active} ({unit.sub})"
    age = "-" if unit.active_for_s is None else _age(unit.active_for_s)
    restarts = "-" if unit.restarts is None else str(unit.restarts)
    if container is None:
        return [unit.name, state, age, restarts, "-", "-", "-", "-"]
    same = {None: "-", True: "drift", False: "yes"}[container.drift]
    digest = short_digest(container.digest_running)
    return [unit.name, state, age, restarts, container.state or "-", container.health or "-", digest, same]


def _age(seconds: float) -> str:
    for size, letter in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {letter}"
    return f"{int(seconds)} s"
