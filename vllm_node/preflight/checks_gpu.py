"""GPUs, driver, fabric and what else uses them. Silent where no instance asks for a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_node.preflight.devices import aliases, meant
from vllm_node.preflight.findings import Finding, fail, warn
from vllm_node.preflight.reading import Snapshot, at, listed, number, rows, text, unseen
from vllm_node.preflight.wanted import Wanted

_REBOOT = (
    "Reboot the node (do not unload the modules by hand); afterwards lock driver and fabric manager versions."
)
_DCGM_PORT = 5555


def present(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """There is a GPU, and a driver that answers."""
    if not wanted.gpu_instances or at(snapshot, "gpu") is None:
        return
    loaded = text(snapshot, "gpu", "driver", "loaded")
    if not at(snapshot, "gpu", "devices") and not at(snapshot, "gpu", "pci_gpus") and loaded is None:
        names = listed(each.name for each in wanted.gpu_instances)
        yield fail(
            "gpu.missing",
            "the node has no NVIDIA GPU",
            f"These instances ask for one: {names}.",
            "Set gpus: [] for an instance that shall run without, or put the node into another group.",
        )
    elif loaded is None and not unseen(snapshot, "gpu.driver"):
        yield from _not_loaded(snapshot)
    else:
        yield from _mismatch(snapshot, loaded)


def _not_loaded(snapshot: Snapshot) -> Iterator[Finding]:
    if at(snapshot, "gpu", "nouveau"):
        return  # `nouveau` says why
    signer = text(snapshot, "gpu", "module_signer")
    if at(snapshot, "secure_boot") and at(snapshot, "gpu", "driver", "module_present"):
        yield fail(
            "gpu.secure_boot",
            f"Secure Boot is on and the NVIDIA module ({'signed by ' + signer if signer else 'not signed'}) "
            "is not loaded",
            "The firmware's keys do not cover the module's signature, so the kernel refuses it.",
            "Enrol the signer's certificate (mokutil --import, then reboot), or install a module signed with "
            "an enrolled key.",
        )
        return
    there = at(snapshot, "gpu", "driver", "module_present")
    yield fail(
        "gpu.driver_missing",
        "the NVIDIA kernel module is not loaded"
        + (" and there is none for this kernel" if there is False else ""),
        "Without it no container can use the GPUs.",
        "Install the driver for the running kernel and reboot; `modprobe nvidia` and `dmesg` tell what is "
        "wrong.",
    )


def _mismatch(snapshot: Snapshot, loaded: str | None) -> Iterator[Finding]:
    library, module = (text(snapshot, "gpu", "driver", key) for key in ("library", "module"))
    error = text(snapshot, "gpu", "error")
    if loaded and library and loaded != library:
        yield fail(
            "gpu.driver_mismatch",
            f"kernel module {loaded} is loaded, but the libraries are {library}",
            "The driver was updated under a running kernel module: every CUDA program fails now.",
            _REBOOT,
        )
    elif error:
        yield fail(
            "gpu.nvidia_smi",
            f"nvidia-smi fails: {error}",
            "vLLM would fail in the same way.",
            "Look at `dmesg | grep -i -e nvrm -e xid`; a GPU that has fallen off the bus needs a power "
            "cycle.",
        )
    elif loaded and module and loaded != module:
        yield warn(
            "gpu.driver_update",
            f"kernel module {loaded} is loaded, {module} is installed",
            "The next boot brings another driver than the one that is tried now.",
            "Reboot first if the new driver shall be used.",
        )


def nouveau(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """The free driver holds the GPU."""
    if wanted.gpu_instances and at(snapshot, "gpu", "nouveau"):
        yield fail(
            "gpu.nouveau",
            "the nouveau driver is loaded",
            "It holds the GPU, and NVIDIA's driver cannot take it over.",
            "Blacklist nouveau in /etc/modprobe.d, rebuild the initramfs (dracut -f) and reboot.",
        )


def fabric(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """On NVSwitch systems: the fabric manager runs, fits the driver, and the fabric is up."""
    switches = number(snapshot, "gpu", "nvswitches")
    if not wanted.gpu_instances or not switches:
        return
    why = "On NVSwitch systems CUDA fails with error 802 (system not yet initialized), even on a single GPU."
    active, release = (text(snapshot, "gpu", "fabric_manager", key) for key in ("active", "version"))
    loaded = text(snapshot, "gpu", "driver", "loaded")
    if active != "active" and not unseen(snapshot, "units"):
        yield fail(
            "gpu.fabric_manager",
            f"{switches:.0f} NVSwitches, and nvidia-fabricmanager is {active or 'not installed'}",
            why,
            f"Install nvidia-fabricmanager {loaded or 'of the version of the driver'}, then "
            "`systemctl enable --now nvidia-fabricmanager`.",
        )
    if release and loaded and release != loaded:
        yield fail(
            "gpu.fabric_manager_version",
            f"fabric manager {release}, driver {loaded}",
            "Both must have the same version: " + why,
            f"Install nvidia-fabricmanager {loaded} and reboot.",
        )
    waiting = [
        f"GPU {gpu.get('index')}: {gpu.get('fabric_state')} / {gpu.get('fabric_status')}"
        for gpu in rows(snapshot, "gpu", "devices")
        if (gpu.get("fabric_state") or "Completed") != "Completed"
        or (gpu.get("fabric_status") or "Success") != "Success"
    ]
    if waiting:
        yield fail(
            "gpu.fabric_state",
            f"fabric not ready: {listed(waiting)}",
            why,
            "Wait until `nvidia-smi -q` shows state Completed, status Success; if it stays, reboot. Do not "
            "restart "
            "the fabric manager alone.",
        )


def next_boot(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """The kernel of the next boot has the module too."""
    if wanted.gpu_instances and at(snapshot, "kernel", "next_boot_has_nvidia") is False:
        yield warn(
            "gpu.next_boot",
            f"the next boot takes kernel {at(snapshot, 'kernel', 'next_boot')}, which has no NVIDIA module",
            "After a reboot there would be no GPU.",
            "Install the driver's module for that kernel, or choose the running one with `grubby "
            "--set-default`.",
        )


def nodes(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Device nodes that CUDA needs and nvidia-smi does not make; the daemon that keeps the driver awake."""
    if not wanted.gpu_instances or text(snapshot, "gpu", "driver", "loaded") is None:
        return
    there = at(snapshot, "gpu", "device_nodes")
    if isinstance(there, list) and "/dev/nvidia-uvm" not in there:
        yield warn(
            "gpu.uvm",
            "/dev/nvidia-uvm is not there",
            "nvidia-smi works without it, CUDA does not; gpu-cdi-ready.service makes it before our units "
            "start.",
            "Nothing; for other users of the GPU load nvidia-uvm at boot (modules-load.d).",
        )
    if text(snapshot, "gpu", "persistenced") != "active" and not unseen(snapshot, "units"):
        yield warn(
            "gpu.persistenced",
            f"nvidia-persistenced is {at(snapshot, 'gpu', 'persistenced') or 'not installed'}",
            "The driver starts anew for each program, which takes seconds, and settings of the GPUs are "
            "lost.",
            "Enable nvidia-persistenced before the CDI spec is generated, and leave it running.",
        )
    if (text(snapshot, "gpu", "driver", "loaded") or "").startswith("565."):
        yield warn(
            "gpu.driver_known",
            f"driver {at(snapshot, 'gpu', 'driver', 'loaded')}",
            "With this branch nvidia-ctk can crash while it generates the CDI spec.",
            "Use another branch, or set NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS=disable-nvsandboxutils.",
        )


def _asked_for(snapshot: Snapshot, wanted: Wanted) -> list[Mapping[str, Any]]:
    """The GPUs that instances will use."""
    names = aliases(snapshot) or {}
    indices = {device[0] for each in wanted.gpu_instances for device in meant(names, each.gpus)}
    return [gpu for gpu in rows(snapshot, "gpu", "devices") if number(gpu, "index") in indices]


def health(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Memory errors of the GPUs that are asked for."""
    for gpu in _asked_for(snapshot, wanted):
        name = f"GPU {gpu.get('index')} ({gpu.get('uuid')})"
        if gpu.get("remap_failure"):
            yield fail(
                "gpu.remap_failure",
                f"{name}: a row of its memory could not be remapped",
                "The GPU has a defect that it can no longer work around.",
                "Have it replaced; leave it out of gpus meanwhile.",
            )
        if gpu.get("remap_pending"):
            yield warn(
                "gpu.remap_pending",
                f"{name}: rows of its memory wait to be remapped",
                "Errors may come back until the GPU is reset.",
                "Stop everything on it and reset it (nvidia-smi --gpu-reset -i N), or reboot.",
            )
        if number(gpu, "ecc_volatile_uncorrectable"):
            yield warn(
                "gpu.ecc",
                f"{name}: {gpu['ecc_volatile_uncorrectable']} uncorrectable memory errors since the driver "
                "started",
                "Programs on it were killed or computed with wrong data.",
                "Reset the GPU or reboot; run a memory test (dcgmi diag) when it happens again.",
            )
        if gpu.get("recovery_action") not in (None, "None"):
            yield warn(
                "gpu.recovery",
                f"{name}: the driver asks for: {gpu['recovery_action']}",
                "The GPU does not work as it should until that is done.",
                "Do it before the trial.",
            )


def busy(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Somebody else computes on the GPUs that are asked for."""
    asked = _asked_for(snapshot, wanted)
    uuids = {text(device, "uuid") for gpu in asked for device in (gpu, *rows(gpu, "mig"))} - {None}
    others = [
        f"{process.get('name')} (pid {process.get('pid')}, {process.get('unit') or 'no unit'})"
        for process in rows(snapshot, "gpu", "processes")
        if text(process, "gpu_uuid") in uuids and text(process, "unit") not in wanted.components
    ]
    if others:
        yield fail(
            "gpu.busy",
            f"other processes use the GPUs: {listed(others)}",
            "vLLM takes nearly all memory of a GPU at start, and fails when it is not free.",
            "Stop them, or leave their GPUs out of gpus.",
        )


def dcgm(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """A DCGM host engine of the node's own."""
    if not wanted.gpu_instances:
        return
    active = text(snapshot, "units", "watched", "nvidia-dcgm.service", "active") == "active"
    listening = any(
        row.get("port") == _DCGM_PORT and row.get("protocol") == "tcp" for row in rows(snapshot, "ports")
    )
    if active or listening:
        yield warn(
            "gpu.dcgm",
            "nvidia-dcgm.service is active" if active else f"something listens on DCGM's port {_DCGM_PORT}",
            "The exporter brings its own engine, and two engines do not get all metrics.",
            "Stop and disable nvidia-dcgm.service for the trial.",
        )


CHECKS = (present, nouveau, fabric, next_boot, nodes, health, busy, dcgm)
