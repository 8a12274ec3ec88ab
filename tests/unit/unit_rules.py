"""What every Quadlet unit of ours must be like; each rule gives a sentence for what breaks it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vllm_node import sandbox

# Native keys of [Container] that podman 5.4, the floor, knows and that we use. An unknown one drops the whole unit.
KNOWN = {
    "AddCapability", "AddDevice", "ContainerName", "DropCapability", "Entrypoint", "Environment", "Exec", "Group",
    "HealthCmd", "HealthInterval", "HealthOnFailure", "HealthRetries", "HealthStartPeriod", "HealthTimeout", "Image",
    "Label", "LogDriver", "Network", "NoNewPrivileges", "PidsLimit", "PodmanArgs", "Pull", "ReadOnly",
    "RunInit", "Secret", "ShmSize", "StopSignal", "StopTimeout", "Tmpfs", "User", "Volume",
}  # fmt: skip
EXACTLY = {
    "Container": {
        "Pull": "never",
        "ReadOnly": "true",
        "RunInit": "true",
        "DropCapability": "all",
        "NoNewPrivileges": "true",
        "LogDriver": "passthrough",
    },
    "Service": {"Restart": "always"},
    "Install": {"WantedBy": "vllm-node.target"},
    "Unit": {"PartOf": "vllm-node.target"},
}
PRESENT = {
    "Unit": ("Description", "StartLimitIntervalSec", "StartLimitBurst"),
    "Container": ("ContainerName", "Image", "PidsLimit", "StopTimeout"),
    "Service": ("TimeoutStartSec", "TimeoutStopSec", "TasksMax", "MemoryMax"),
}
FORBIDDEN = (
    *("label=disable", "SecurityLabelDisable", "--privileged", ":latest", "--ipc", "Notify=healthy", "0.0.0.0"),
    *("--security-opt", "--cap-add", "--pid=", "--userns", "--device", "podman.sock"),
)
# What a component may have on top of nothing, and which of them speak to this node only.
CAPABILITIES = {"dcgm-exporter": {"CAP_SYS_ADMIN"}, "gateway": {"NET_BIND_SERVICE"}}
LOOPBACK_ONLY = {"dcgm-exporter", "grafana", "node-exporter"}
# Options of systemd that break podman, or hide a container's mounts from podman's other commands.
BREAKING = re.compile(
    r"Protect\w+|Private\w+|Read\w+Paths|InaccessiblePaths|NoNewPrivileges|RestrictNamespaces|RestrictSUIDSGID|DeviceAllow"
    r"|DevicePolicy|MemoryDenyWriteExecute|UMask|User"
)
_SECRET = re.compile(r"^\"?\w*(PASSWORD|PASSWD|TOKEN|SECRET|API_KEY)(?!\w*_FILE)\w*=")
# gpu-cdi-ready.service runs on the node itself, as root.
SERVICE = {
    "CapabilityBoundingSet": "CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_FSETID CAP_MKNOD CAP_SYS_MODULE",
    "SystemCallFilter": "@system-service @module",
    "RestrictAddressFamilies": "AF_UNIX AF_NETLINK",
    "ProtectSystem": "strict",
    "ReadWritePaths": "/etc /run",
    "IPAddressDeny": "any",
    "SystemCallArchitectures": "native",
    **dict.fromkeys(
        (
            *("ProtectHome", "PrivateTmp", "ProtectControlGroups", "ProtectHostname", "ProtectKernelLogs"),
            *("ProtectKernelTunables", "RestrictNamespaces", "RestrictRealtime", "LockPersonality"),
        ),
        "true",
    ),
}
Sections = dict[str, list[tuple[str, str]]]


def parse(text: str) -> Sections:
    """`{section: [(key, value)]}` without comments."""
    sections: Sections = {}
    current: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("[") and line.endswith("]"):
            current = sections.setdefault(line[1:-1], [])
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            current.append((key, value))
    return sections


def problems(text: str, images: frozenset[str]) -> list[str]:
    """Everything that is wrong with a unit; `images` are the references of the image lock."""
    sections = parse(text)
    return [
        *(*_values(sections), *_image(sections, images), *_volumes(sections)),
        *(*_rights(text, sections), *_sandbox(sections), *_rest(text, sections)),
    ]


def service_problems(text: str) -> list[str]:
    """What is wrong with the service that describes the GPUs."""
    sections = parse(text)
    found = {key: values(sections, "Service", key) for key in SERVICE}
    return [f"{key} is {found[key]}, not {value}" for key, value in SERVICE.items() if found[key] != [value]]


def component(sections: Sections) -> str:
    """Name of a unit's component, empty where its label is missing."""
    labels = values(sections, "Container", "Label")
    return next((label.partition("component=")[2] for label in labels if "component=" in label), "")


def values(sections: Sections, section: str, key: str) -> list[str]:
    return [value for name, value in sections.get(section, []) if name == key]


def _values(sections: Sections) -> Iterator[str]:
    for section, expected in EXACTLY.items():
        for key, value in expected.items():
            if values(sections, section, key) != [value]:
                yield f"{key} is {values(sections, section, key)}, not {value}"
    for section, keys in PRESENT.items():
        yield from (f"{key} is missing" for key in keys if not values(sections, section, key))
    for key, _ in sections.get("Container", []):
        if key not in KNOWN:
            yield f"{key} is not a key that podman 5.4 is known to take"
    grace = [int(found[0]) for found in (values(sections, "Container", "StopTimeout"),) if found]
    limit = [int(found[0]) for found in (values(sections, "Service", "TimeoutStopSec"),) if found]
    if grace and limit and limit <= grace:
        yield f"TimeoutStopSec {limit[0]} is not above StopTimeout {grace[0]}"


def _image(sections: Sections, images: frozenset[str]) -> Iterator[str]:
    for image in values(sections, "Container", "Image"):
        if image not in images:
            yield f"image {image} is not one of the lock, by digest"


def _volumes(sections: Sections) -> Iterator[str]:
    for volume in values(sections, "Container", "Volume"):
        source, _, rest = volume.partition(":")
        flags = rest.partition(":")[2].split(",")
        if len({"ro", "rw"} & {*flags}) != 1:
            yield f"volume {volume} says neither ro nor rw"
        if {"z", "Z"} & {*flags} and not source.startswith("/etc/vllm-node/"):
            yield f"volume {volume} would be relabelled"
        if source.startswith("/") and "rw" in flags:
            yield f"volume {volume} lets the container write to the node"


def _rights(text: str, sections: Sections) -> Iterator[str]:
    users = values(sections, "Container", "User")
    if not users and "# No User=:" not in text:
        yield "there is neither a User nor a word why"
    if {"0", "root"} & {*users}:
        yield "User is root's"
    if users and not values(sections, "Container", "Group"):
        yield "User without Group leaves the group to the image"
    for capability in values(sections, "Container", "AddCapability"):
        if capability not in CAPABILITIES.get(component(sections), ()):
            yield f"capability {capability} is not one that {component(sections)} needs"
    for variable in values(sections, "Container", "Environment"):
        if _SECRET.match(variable):
            yield f"variable {variable.partition('=')[0]} carries a secret"


def _sandbox(sections: Sections) -> Iterator[str]:
    lines = [f"{key}={value}" for key, value in sections.get("Service", [])]
    reach = "loopback" if component(sections) in LOOPBACK_ONLY else "network"
    yield from (
        f"{line} is missing" for line in sandbox.container_sandbox(reach).splitlines() if lines.count(line) != 1
    )
    if reach == "network" and (cut := [line for line in lines if line.startswith("IPAddressDeny=")]):
        yield f"{cut[0]} cuts it off from the network"
    yield from (
        f"{key} does not go together with podman" for key, _ in sections.get("Service", []) if BREAKING.fullmatch(key)
    )


def _rest(text: str, sections: Sections) -> Iterator[str]:
    yield from (f"{word} is forbidden" for word in FORBIDDEN if word in text)
    lines = text.splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("PodmanArgs=") and not before.startswith("#"):
            yield f"{line} has no comment"
    for key in ("After", "Requires", "Wants", "BindsTo"):
        for word in " ".join(values(sections, "Unit", key)).split():
            if not word.endswith((".service", ".target")):
                yield f"{key} names {word}, which older Quadlets do not translate"
    labels = values(sections, "Container", "Label")
    if "io.vllm-node.inputs=@INPUTS@" not in labels:
        yield "the label with the hash of its inputs is missing"
    if not any(re.fullmatch(r"io\.vllm-node\.component=[a-z-]+", label) for label in labels):
        yield "the label with its component is missing"
    if not values(sections, "Container", "HealthCmd") and "# No HealthCmd=:" not in text:
        yield "there is neither a HealthCmd nor a word why"
    if values(sections, "Container", "AddDevice") and "gpu-cdi-ready.service" not in values(
        sections, "Unit", "Requires"
    ):
        yield "a unit with a GPU does not require gpu-cdi-ready.service"
    if "io.vllm-node.component=vllm" in labels:
        for section, key in (
            ("Container", "ShmSize"),
            ("Service", "LimitMEMLOCK"),
            ("Service", "LogRateLimitIntervalSec"),
        ):
            if not values(sections, section, key):
                yield f"{key} is missing"
