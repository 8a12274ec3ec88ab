"""What a brought-up node has to be like from the outside: containers, the services around them, and who listens.

`assert_hardened` asks the node itself, by podman, systemd, /proc and ss; `shell` runs a command there and gives its output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Shell = Callable[[str], str]

# Exposure as `systemd-analyze security` of systemd 257 and 258 counts it, 10 is worst. Half of what is left open is the root,
# the mounts and the namespaces that podman works with; the rest of a container's walls are podman's, and asserted below.
CONTAINER_BOUND = 7.6
SERVICE_BOUND = 3.4
_SECCOMP_FILTER = "2"
# Bits of /proc/PID/status, by linux/capability.h.
_BITS = {"CAP_NET_BIND_SERVICE": 10, "CAP_SYS_MODULE": 16, "CAP_SYS_RAWIO": 17, "CAP_SYS_ADMIN": 21, "CAP_SYS_BOOT": 22}
_GONE_OUTSIDE = ("CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_BOOT")


@dataclass(frozen=True)
class Rights:
    """What the container of a component may have: `user` as `User=` says it, `writable` are volumes, beside tmpfs."""

    user: str
    writable: Collection[str] = ()
    capabilities: Collection[str] = field(default_factory=frozenset)


RIGHTS: Mapping[str, Rights] = {
    "vllm": Rights("", ("/var/cache/vllm",)),
    "gateway": Rights("101:101"),
    "dcgm-exporter": Rights("", capabilities={"CAP_SYS_ADMIN"}),
    "node-exporter": Rights("65534:65534"),
    "prometheus": Rights("65534:65534", ("/prometheus",)),
    "alertmanager": Rights("65534:65534", ("/alertmanager",)),
    "grafana": Rights("472:0", ("/var/lib/grafana",)),
}


@dataclass(frozen=True)
class Row:
    """A unit as it is: for the table of the documentation."""

    unit: str
    user: str
    capabilities: str
    writable: str
    exposure: float


def assert_hardened(
    shell: Shell, names: Collection[str], *, ports: Collection[int] = (), rights: Mapping[str, Rights] = RIGHTS
) -> list[Row]:
    """Assert that the containers `names` and gpu-cdi-ready.service are closed; `ports` may listen beyond loopback.

    `rights` overrides what a component may have, such as an exporter without profiling. Returns a row a unit.
    """
    containers = json.loads(shell("podman inspect " + " ".join(sorted(names))))
    found = [f"{one} is not there" for one in {*names} - {one["Name"] for one in containers}]
    found += [problem for one in containers for problem in container_problems(one, _rights(one, rights))]
    found += process_problems(shell, containers, rights)
    exposures = exposure(shell, [f"{name}.service" for name in sorted(names)] + ["gpu-cdi-ready.service"])
    for unit, value in exposures.items():
        bound = SERVICE_BOUND if unit == "gpu-cdi-ready.service" else CONTAINER_BOUND
        if value > bound:
            found.append(f"{unit}: exposure {value} is above {bound}")
    outside = beyond_loopback(shell("ss -H -lnt"))
    if outside != {*ports, 22}:
        found.append(f"ports {sorted(outside)} listen beyond loopback, not {sorted({*ports, 22})}")
    assert not found, "\n".join(found)
    return [*(_row(one, exposures) for one in containers), *_service_row(exposures)]


def _component(container: Mapping[str, Any]) -> str:
    return str(container["Config"]["Labels"]["io.vllm-node.component"])


def _rights(container: Mapping[str, Any], rights: Mapping[str, Rights]) -> Rights:
    return rights[_component(container)]


def container_problems(container: Mapping[str, Any], rights: Rights) -> Iterator[str]:
    """What `podman inspect` says of a container that it should not."""
    name, host = container["Name"], container["HostConfig"]
    expected = {
        "ReadonlyRootfs": (host["ReadonlyRootfs"], True),
        "Privileged": (host["Privileged"], False),
        "PidMode": (host["PidMode"], "private"),
        "UTSMode": (host["UTSMode"], "private"),
        # shareable is podman's word for an IPC namespace of the container's own.
        "IpcMode": (host["IpcMode"] in ("private", "shareable"), True),
        "SecurityOpt": ([one for one in host["SecurityOpt"] if "label=disable" in one or "unconfined" in one], []),
        "no-new-privileges": ("no-new-privileges" in host["SecurityOpt"], True),
        "User": (container["Config"]["User"], rights.user),
        "EffectiveCaps": (sorted(container["EffectiveCaps"] or ()), sorted(rights.capabilities)),
        "BoundingCaps": (sorted(container["BoundingCaps"] or ()), sorted(rights.capabilities)),
        "writable": (sorted(_writable(container["Mounts"])), sorted(rights.writable)),
    }
    for what, (is_so, should) in expected.items():
        if is_so != should:
            yield f"{name}: {what} is {is_so}, not {should}"
    for mount in container["Mounts"]:
        if mount["Type"] == "bind" and mount["RW"]:
            yield f"{name}: may write to {mount['Source']} of the node"


def _writable(mounts: Iterable[Mapping[str, Any]]) -> list[str]:
    return [mount["Destination"] for mount in mounts if mount["RW"]]


def process_problems(
    shell: Shell, containers: Iterable[Mapping[str, Any]], rights: Mapping[str, Rights]
) -> Iterator[str]:
    """What the kernel says of each container's first process, and of conmon beside it."""
    for container in containers:
        name, state = container["Name"], container["State"]
        inside, outside = (_status(shell(f"cat /proc/{state[key]}/status")) for key in ("Pid", "ConmonPid"))
        allowed = sum(1 << _BITS[one] for one in _rights(container, rights).capabilities)
        for key in ("CapBnd", "CapEff", "CapPrm"):
            if int(inside[key], 16) & ~allowed:
                yield f"{name}: {key} of its process is {inside[key]}"
        if inside["NoNewPrivs"] != "1":
            yield f"{name}: its process may get new privileges"
        if inside["Seccomp"] != _SECCOMP_FILTER:
            yield f"{name}: no filter of system calls"
        kept = [one for one in _GONE_OUTSIDE if int(outside["CapBnd"], 16) >> _BITS[one] & 1]
        if kept or outside["Seccomp"] != _SECCOMP_FILTER:
            yield f"{name}: conmon keeps {kept}, filter {outside['Seccomp']}"


def _status(text: str) -> dict[str, str]:
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}


def exposure(shell: Shell, units: Iterable[str]) -> dict[str, float]:
    """Overall exposure level of each unit."""
    text = shell("systemd-analyze security --no-pager " + " ".join(units))
    return {unit: float(value) for unit, value in re.findall(r"exposure level for (\S+): ([\d.]+)", text)}


def beyond_loopback(listening: str) -> set[int]:
    """Ports of `ss -H -lnt` that can be reached from elsewhere."""
    found = set()
    for line in listening.splitlines():
        address, _, port = line.split()[3].rpartition(":")
        if not address.startswith(("127.", "[::1]", "[::ffff:127.")):
            found.add(int(port))
    return found


def _row(container: Mapping[str, Any], exposures: Mapping[str, float]) -> Row:
    unit = f"{container['Name']}.service"
    user = container["Config"]["User"] or "root of the image"
    capabilities = ", ".join(container["EffectiveCaps"] or ()) or "none"
    return Row(unit, user, capabilities, ", ".join(_writable(container["Mounts"])) or "-", exposures[unit])


def _service_row(exposures: Mapping[str, float]) -> Iterator[Row]:
    unit = "gpu-cdi-ready.service"
    if unit in exposures:
        yield Row(unit, "root", "5 and modules", "/etc, /run", exposures[unit])
