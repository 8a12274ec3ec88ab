"""What every Quadlet unit of ours must be like; each rule gives a sentence for what breaks it."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Native keys of [Container] that podman 5.4, the floor, knows and that we use. An unknown one drops the whole unit.
KNOWN = {
    "AddCapability", "AddDevice", "ContainerName", "DropCapability", "Environment", "Exec", "HealthCmd",
    "HealthInterval", "HealthOnFailure", "HealthRetries", "HealthStartPeriod", "HealthTimeout", "Image",
    "Label", "LogDriver", "Network", "NoNewPrivileges", "PidsLimit", "PodmanArgs", "Pull", "ReadOnly",
    "RunInit", "Secret", "ShmSize", "StopTimeout", "Tmpfs", "Volume",
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
FORBIDDEN = ("label=disable", "SecurityLabelDisable", "--privileged", ":latest", "--ipc", "Notify=healthy", "0.0.0.0")
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
    return [*_values(parse(text)), *_image(parse(text), images), *_volumes(parse(text)), *_rest(text, parse(text))]


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
