"""GPUs, driver, fabric and GPU processes, from nvidia-smi, /proc and sysfs."""

from __future__ import annotations

import glob
import os
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_LIBRARY_FOLDERS = ("/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib")
_PROCESS_FIELDS = "gpu_uuid,pid,process_name,used_memory"


def probe_devices(host: Any) -> dict[str, Any]:
    """What nvidia-smi tells: {devices, error, smi, cuda}. `devices` is None when it failed or is absent."""
    found: dict[str, Any] = {"devices": None, "error": None, "smi": None, "cuda": None}
    if not host.which("nvidia-smi"):
        return dict(found, error="nvidia-smi is not installed")
    answer = host.run("nvidia-smi", "-q", "-x")
    if not answer.ok:
        found["error"] = answer.trouble
        host.unseen("gpu.devices", answer.trouble)
        return found
    try:
        found.update(devices_from_xml(answer.out))
    except ValueError as error:
        found["error"] = str(error)
        host.unseen("gpu.devices", str(error))
        return found
    if any(device["mig"] for device in found["devices"]):
        add_mig_uuids(found["devices"], host.run("nvidia-smi", "-L").out)
    return found


def devices_from_xml(text: str) -> dict[str, Any]:
    """Devices and versions out of `nvidia-smi -q -x`. Raises ValueError when it is no such text.

    A value that the driver does not give ("N/A", a missing element) is None.
    """
    # The document names a DTD that is never fetched; an entity declaration has no place in it.
    if "<!ENTITY" in text:
        raise ValueError("nvidia-smi's XML declares entities")
    try:
        log = ElementTree.fromstring(text)  # noqa: S314 - entities are refused above
    except (ElementTree.ParseError, ValueError) as error:
        raise ValueError(f"nvidia-smi's XML cannot be read: {error}") from None
    if log.tag != "nvidia_smi_log":
        raise ValueError(f"nvidia-smi's XML starts with {log.tag}")
    return {
        "smi": _text(log, "driver_version"),
        "cuda": _text(log, "cuda_version"),
        "devices": [_device(index, gpu) for index, gpu in enumerate(log.findall("gpu"))],
    }


def _device(index: int, gpu: ElementTree.Element) -> dict[str, Any]:
    pending = _text(gpu, "remapped_rows/remapped_row_pending") or _text(
        gpu, "retired_pages/pending_retirement"
    )
    return {
        # nvidia-smi lists GPUs in the order of its own indices and prints no index in this format.
        "index": index,
        "uuid": _text(gpu, "uuid"),
        "name": _text(gpu, "product_name"),
        "pci": gpu.get("id") or _text(gpu, "pci/pci_bus_id"),
        "memory_total_bytes": _bytes(_text(gpu, "fb_memory_usage/total")),
        # What the driver keeps for itself: programs see the total without it.
        "memory_reserved_bytes": _bytes(_text(gpu, "fb_memory_usage/reserved")),
        "memory_used_bytes": _bytes(_text(gpu, "fb_memory_usage/used")),
        "mig_mode": _text(gpu, "mig_mode/current_mig"),
        "mig": [_mig(mig) for mig in gpu.findall("mig_devices/mig_device")],
        "ecc_mode": _text(gpu, "ecc_mode/current_ecc"),
        "ecc_volatile_uncorrectable": _uncorrectable(gpu, "ecc_errors/volatile"),
        "ecc_aggregate_uncorrectable": _uncorrectable(gpu, "ecc_errors/aggregate"),
        "remap_pending": _yes(pending),
        "remap_failure": _yes(_text(gpu, "remapped_rows/remapped_row_failure")),
        "recovery_action": _text(gpu, "gpu_recovery_action"),
        "fabric_state": _text(gpu, "fabric/state"),
        "fabric_status": _text(gpu, "fabric/status"),
        "persistence": _text(gpu, "persistence_mode"),
        "compute_mode": _text(gpu, "compute_mode"),
    }


def _mig(mig: ElementTree.Element) -> dict[str, Any]:
    return {
        "index": _number(_text(mig, "index")),
        "gi": _number(_text(mig, "gpu_instance_id")),
        "ci": _number(_text(mig, "compute_instance_id")),
        "uuid": _text(mig, "uuid"),
        "memory_total_bytes": _bytes(_text(mig, "fb_memory_usage/total")),
    }


def add_mig_uuids(devices: list[dict[str, Any]], listing: str) -> None:
    """Fill in the UUIDs of MIG devices, which only `nvidia-smi -L` tells on most drivers."""
    device = None
    for line in listing.splitlines():
        gpu = re.match(r"GPU (\d+):", line)
        mig = re.match(r"\s+MIG .*Device\s+(\d+):\s*\(UUID: (MIG-[^)\s]+)\)", line)
        if gpu:
            device = next((each for each in devices if each["index"] == int(gpu.group(1))), None)
        elif mig and device:
            for entry in device["mig"]:
                if entry["index"] == int(mig.group(1)):
                    entry["uuid"] = mig.group(2)


def _text(element: ElementTree.Element, path: str) -> str | None:
    value = (element.findtext(path) or "").strip()
    if value.strip("[]").strip().lower() in (
        "",
        "n/a",
        "not supported",
        "unknown error",
        "gpu requires reset",
    ):
        return None
    return None if "deprecated" in value.lower() else value


def _number(text: str | None) -> int | None:
    match = re.match(r"\d{1,18}\b", text or "")
    return int(match.group()) if match else None


def _bytes(text: str | None) -> int | None:
    match = re.match(r"(\d{1,12}) ([KMGT]?i?B)$", text or "")
    if not match or match.group(2) not in _UNITS:
        return None
    return int(match.group(1)) * _UNITS[match.group(2)]


def _yes(text: str | None) -> bool | None:
    return {"yes": True, "no": False}.get((text or "").lower())


def _uncorrectable(gpu: ElementTree.Element, path: str) -> int | None:
    # Names differ by schema: sram_uncorrectable, sram_uncorrectable_parity, double_bit/total (before Ampere).
    total = None
    for element in list(gpu.find(path) or []):
        value = None
        if "uncorrectable" in element.tag:
            value = _number((element.text or "").strip())
        elif element.tag == "double_bit":
            value = _number((element.findtext("total") or "").strip())
        if value is not None:
            total = value + (total or 0)
    return total


def probe_processes(host: Any) -> list[dict[str, Any]] | None:
    """Compute processes on the GPUs with the unit each belongs to; None when nvidia-smi gives no list."""
    if not host.which("nvidia-smi"):
        return []
    answer = host.run(
        "nvidia-smi", f"--query-compute-apps={_PROCESS_FIELDS}", "--format=csv,noheader,nounits"
    )
    if not answer.ok:
        host.unseen("gpu.processes", answer.trouble)
        return None
    found = processes_from_csv(answer.out)
    for process in found:
        process["unit"] = unit_of(host.read(f"/proc/{process['pid']}/cgroup"))
    return found


def processes_from_csv(text: str) -> list[dict[str, Any]]:
    """Processes out of nvidia-smi's CSV (`gpu_uuid, pid, name, MiB`); other lines are passed over."""
    found = []
    for line in text.splitlines():
        # The name may hold commas itself: it is what lies between the second and the last comma.
        match = re.match(r"\s*((?:GPU|MIG)-\S+?),\s*(\d{1,10}),\s*(.*),\s*([^,]*)$", line)
        if match:
            memory = _number(match.group(4).strip())
            found.append(
                {
                    "pid": int(match.group(2)),
                    "name": match.group(3).strip(),
                    "gpu_uuid": match.group(1),
                    "memory_bytes": None if memory is None else memory << 20,
                }
            )
    return sorted(found, key=lambda process: (process["gpu_uuid"], process["pid"]))


def unit_of(cgroup: str | None) -> str | None:
    """Name of the systemd unit in the text of /proc/PID/cgroup: the innermost service, else scope."""
    parts = [part for line in (cgroup or "").splitlines() for part in line.split(":", 2)[-1].split("/")]
    for ending in (".service", ".scope"):
        for part in reversed(parts):
            if part.endswith(ending):
                return part
    return None


def probe_driver(host: Any) -> dict[str, Any]:
    """Versions of the loaded module, of the module on disk and of the user-space library, and the signer."""
    found: dict[str, Any] = {
        "loaded": loaded_version(host.read("/proc/driver/nvidia/version")),
        "library": _library_version(host),
        "module": None,
        "module_present": None,
        "signer": None,
    }
    if host.which("modinfo"):
        answer = host.run("modinfo", "nvidia")
        if answer.rc is not None:
            fields = dict(re.findall(r"^(version|signer):\s*(\S.*)$", answer.out, re.M))
            found.update(module=fields.get("version"), signer=fields.get("signer"), module_present=answer.ok)
    return found


def loaded_version(text: str | None) -> str | None:
    """Version of the loaded kernel module in /proc/driver/nvidia/version, or None."""
    match = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+\.\d+(?:\.\d+)?)", text or "")
    return match.group(1) if match else None


def _library_version(host: Any) -> str | None:
    for folder in _LIBRARY_FOLDERS:
        base = host.path(folder)
        link = os.path.join(base, "libnvidia-ml.so.1")
        names = [os.path.basename(os.path.realpath(link))] if os.path.islink(link) else []
        names += sorted(os.path.basename(path) for path in glob.glob(os.path.join(base, "libnvidia-ml.so.*")))
        for name in names:
            match = re.match(r"libnvidia-ml\.so\.(\d{2,}\.\d+(?:\.\d+)?)$", name)
            if match:
                return match.group(1)
    return None


def probe_hardware(host: Any) -> dict[str, Any]:
    """What the kernel shows without the driver's help: PCI devices, modules, device nodes."""
    gpus = switches = 0
    for name in host.names("/sys/bus/pci/devices"):
        base = f"/sys/bus/pci/devices/{name}"
        if (host.read(base + "/vendor") or "").strip() != "0x10de":
            continue
        kind = (host.read(base + "/class") or "").strip()[:6]
        gpus += kind in ("0x0300", "0x0302")
        switches += kind == "0x0680"
    gpus = gpus or len(host.names("/proc/driver/nvidia/gpus"))
    switches = switches or len(host.names("/proc/driver/nvidia-nvswitch/devices"))
    nodes = glob.glob(host.path("/dev/nvidia*")) + glob.glob(host.path("/dev/nvidia-caps/*"))
    base = host.path("/")
    return {
        "pci_gpus": gpus,
        "nvswitches": switches,
        "nouveau": host.exists("/sys/module/nouveau"),
        "device_nodes": sorted(
            "/" + os.path.relpath(node, base) for node in nodes if not os.path.isdir(node)
        ),
    }


def probe_fabric_manager(host: Any) -> str | None:
    """Version of the installed fabric manager, or None when there is none."""
    if not host.which("nv-fabricmanager"):
        return None
    answer = host.run("nv-fabricmanager", "--version")
    match = re.search(r"(\d{3,}\.\d+(?:\.\d+)?)", answer.out + answer.err)
    if not match:
        host.unseen("gpu.fabric_manager.version", answer.trouble or "nv-fabricmanager names no version")
    return match.group(1) if match else None
