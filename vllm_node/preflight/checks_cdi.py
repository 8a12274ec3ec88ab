"""CDI specs: there, readable for this podman, fresh, and naming what instances ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_node.preflight import tables
from vllm_node.preflight.devices import aliases
from vllm_node.preflight.findings import Finding, Level, fail, finding, warn
from vllm_node.preflight.reading import Snapshot, at, listed, rows, text, version, words
from vllm_node.preflight.wanted import Wanted

KIND = "nvidia.com/gpu"
# gpu-cdi-ready.service makes these before our units start.
_MADE_LATER = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


def _specs(snapshot: Snapshot) -> list[Mapping[str, Any]]:
    return [
        spec for spec in rows(snapshot, "cdi", "specs") if spec.get("kind") == KIND and not spec.get("error")
    ]


def _folder(spec: Mapping[str, Any]) -> str:
    return str(spec.get("path")).rpartition("/")[0]


def _searched(snapshot: Snapshot) -> tuple[str, ...]:
    release = version(at(snapshot, "podman", "version"))
    return tables.cdi_folders(release) if release else ("/etc/cdi", "/run/cdi")


def _can_generate(snapshot: Snapshot, wanted: Wanted) -> bool:
    return (
        wanted.generates_cdi and wanted.cdi_source != "site" and text(snapshot, "cdi", "toolkit") is not None
    )


def _level(spec: Mapping[str, Any], snapshot: Snapshot, wanted: Wanted) -> Level:
    """A defect of a spec stops the bring-up, unless gpu_runtime is told to replace this one."""
    replaced = str(spec.get("path")).endswith("/nvidia.yaml")
    return (
        "warn" if replaced and wanted.cdi_source == "generate" and _can_generate(snapshot, wanted) else "fail"
    )


def present(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """A spec that this podman looks at, or the means to make one."""
    if not wanted.gpu_instances or at(snapshot, "cdi", "specs") is None:
        return
    specs, searched = _specs(snapshot), _searched(snapshot)
    can_generate = _can_generate(snapshot, wanted)
    if not specs and not can_generate:
        reason = (
            "gpu_runtime_cdi_source is site" if wanted.cdi_source == "site" else "nvidia-ctk is not installed"
        )
        yield fail(
            "cdi.missing",
            f"no CDI spec for {KIND} in {listed(searched)}, and {reason}",
            "Containers get GPUs by their names in a CDI spec only.",
            "Install nvidia-container-toolkit, or provide a spec (nvidia-ctk cdi generate "
            "--output=/etc/cdi/nvidia.yaml).",
        )
    if specs and not any(_folder(spec) in searched for spec in specs):
        yield finding(
            "warn" if can_generate else "fail",
            "cdi.folder",
            f"podman {at(snapshot, 'podman', 'version')} does not look into {_folder(specs[0])}",
            "podman 5.5 reads /etc/cdi only, and the toolkit's refresh unit writes to /run/cdi.",
            "Update podman to 5.6 or later, or generate the spec into /etc/cdi.",
        )


def readable(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Specs that cannot be parsed."""
    for spec in rows(snapshot, "cdi", "specs"):
        if spec.get("error"):
            yield finding(
                "warn" if _can_generate(snapshot, wanted) else "fail",
                "cdi.unreadable",
                f"{spec.get('path')}: {spec['error']}",
                "podman passes over a spec that it cannot read without a word.",
                "Regenerate it with nvidia-ctk, or remove the file.",
            )


def loadable(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Specs newer than podman's library."""
    podman = version(at(snapshot, "podman", "version"))
    highest = tables.cdi_max(podman) if podman else None
    if not wanted.gpu_instances or highest is None:
        return
    for spec in _specs(snapshot):
        release = version(spec.get("cdi_version"))
        if release and release > highest:
            yield finding(
                _level(spec, snapshot, wanted),
                "cdi.version",
                f"{spec.get('path')} has cdiVersion {spec.get('cdi_version')}; podman "
                f"{at(snapshot, 'podman', 'version')} reads up to {tables.dotted(highest)}",
                "podman drops the whole spec without a word, and every device in it is then unresolvable.",
                "Regenerate it with "
                "NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS=no-additional-gids-for-device-nodes, "
                "or update podman.",
            )


def fresh(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Specs made for another driver, or naming files that are gone."""
    if not wanted.gpu_instances:
        return
    loaded = text(snapshot, "gpu", "driver", "loaded")
    mend = (
        "Run nvidia-ctk cdi generate again, or restart the unit that wrote it (nvidia-cdi-refresh or "
        "gpu-cdi-ready); "
        "gpu_runtime_cdi_source: generate has it done."
    )
    for spec in _specs(snapshot):
        made_for = words(spec, "driver_versions")
        gone = [path for path in words(spec, "missing_paths") if path not in _MADE_LATER]
        if loaded and made_for and loaded not in made_for:
            yield finding(
                _level(spec, snapshot, wanted),
                "cdi.stale",
                f"{spec.get('path')} is made for driver {listed(made_for)}, loaded is {loaded}",
                "It mounts libraries of another driver than the one that runs.",
                mend,
            )
        elif gone:
            yield finding(
                _level(spec, snapshot, wanted),
                "cdi.stale",
                f"{spec.get('path')} names what is not there: {listed(gone)}",
                "A container does not start when one of the spec's paths is gone.",
                mend,
            )


def names(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Every name that an instance asks for is in a spec."""
    specs = [spec for spec in _specs(snapshot) if _folder(spec) in _searched(snapshot)]
    if not specs:
        return
    known = {name for spec in specs for name in words(spec, "devices")}
    on_node = aliases(snapshot)
    for instance in wanted.gpu_instances:
        unknown = [
            gpu
            for gpu in instance.gpus
            # A name of no device at all has a finding of its own.
            if gpu not in known and (gpu == "all" or not on_node or gpu in on_node)
        ]
        if unknown:
            yield finding(
                _level(specs[0], snapshot, wanted),
                "cdi.device",
                f"instance {instance.name} asks for {KIND}={listed(unknown)}; the spec has "
                f"{listed(sorted(known), 12)}",
                "podman refuses to start a container with an unresolvable device.",
                "Correct gpus of the instance, or regenerate the spec after a change of GPUs or MIG devices.",
            )


def duplicates(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """One device in two specs of one folder."""
    if not wanted.gpu_instances:
        return
    for folder in _searched(snapshot):
        here = [spec for spec in _specs(snapshot) if _folder(spec) == folder]
        count = Counter(name for spec in here for name in set(words(spec, "devices")))
        twice = sorted(name for name, times in count.items() if times > 1)
        if twice:
            yield fail(
                "cdi.duplicate",
                f"{listed(spec.get('path') for spec in here)} both name {listed(twice)}",
                "A device that two specs of one folder name counts as unresolvable.",
                "Remove one of the two files.",
            )


def toolkit(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Version of the NVIDIA container toolkit and state of its refresh unit."""
    release = version(at(snapshot, "cdi", "toolkit"))
    if not wanted.gpu_instances:
        return
    if release and release < tables.TOOLKIT_GOOD:
        too_old = release < tables.TOOLKIT_FLOOR
        yield finding(
            "fail" if too_old else "warn",
            "cdi.toolkit",
            f"NVIDIA container toolkit {at(snapshot, 'cdi', 'toolkit')}",
            f"Below {tables.dotted(tables.TOOLKIT_FLOOR)} its hooks let a container break out; "
            f"{tables.dotted(tables.TOOLKIT_GOOD)} closes more and mends the refresh unit.",
            f"Update nvidia-container-toolkit to {tables.dotted(tables.TOOLKIT_GOOD)} or later.",
        )
    if "multi-user.target" in words(snapshot, "cdi", "refresh_unit", "after"):
        yield warn(
            "cdi.refresh_order",
            "nvidia-cdi-refresh.service is ordered after multi-user.target",
            "A service that waits for the spec and belongs to that target makes an ordering cycle at boot.",
            f"Update nvidia-container-toolkit to {tables.dotted(tables.TOOLKIT_GOOD)} or later.",
        )
    if "failed" in (at(snapshot, "cdi", "refresh_unit", key) for key in ("active", "path_unit_active")):
        yield warn(
            "cdi.refresh_failed",
            "nvidia-cdi-refresh has failed",
            "The spec in /run/cdi may be missing or old after the next boot.",
            "Look at `journalctl -u nvidia-cdi-refresh`, then `systemctl reset-failed` and start it again.",
        )


CHECKS = (present, readable, loadable, fresh, names, duplicates, toolkit)
