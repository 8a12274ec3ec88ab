#!/usr/bin/python
"""Ansible module: read a node in one call. See DOCUMENTATION below for arguments and the answer."""

from __future__ import annotations

import json
import os
import platform
import socket
import tempfile
import time
from functools import partial
from typing import Any

from ansible.module_utils import (
    snapshot_cdi,
    snapshot_files,
    snapshot_firewall,
    snapshot_gpu,
    snapshot_journal,
    snapshot_links,
    snapshot_model,
    snapshot_podman,
    snapshot_ports,
    snapshot_registry,
    snapshot_store,
    snapshot_supply,
    snapshot_system,
    snapshot_units,
)
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.snapshot_host import Aside, Host, Probes, collect

DOCUMENTATION = r"""
module: node_snapshot
short_description: Reads a node in one call
description:
  - Reads operating system, kernel, SELinux, podman, GPUs, CDI, ports, mounts, units, firewall, files, models
    and the registry, side by side and each with a time limit of its own.
  - Changes nothing on the node, except that it writes the snapshot to O(keep_as) when asked to.
  - What could not be seen is listed in RV(snapshot.unseen) with the reason; its value is V(null), never zero.
options:
  disks: {description: Paths whose free space is wanted., type: list, elements: path, default: []}
  models:
    description:
      - Instances whose model is checked, as a list of mappings with C(name) and C(model), a path on the node.
      - An entry of another form is passed over, because preflight complains about it.
    type: raw
  registry:
    description: Registry to be probed; not given, none is probed.
    type: dict
    suboptions:
      address: {description: "host:port", type: str, required: true}
      ca:
        description: Certificate authority as PEM text; empty means the node's own trust store.
        type: str
        default: ""
      username: {description: User name; empty means anonymous., type: str, default: ""}
      password: {description: Password., type: str, default: ""}
  images:
    description: Image lock, names to C(repository) and C(digest). Entries of another form are passed over.
    type: raw
  keep_as: {description: File to keep this snapshot in, unless it exists already., type: path}
  time_limit_s:
    description: Limit for each command and each risky read; the module ends within twice this.
    type: float
    default: 8
"""

RETURN = r"""
snapshot:
  description: The node, schema 1.
  returned: always
  type: dict
"""

SCHEMA = 1
STATE_DIR = "/var/lib/vllm-node"


def take(host: Host, arguments: dict[str, Any]) -> dict[str, Any]:
    """The snapshot. Ends within about twice the host's time limit, whatever hangs."""
    taken_at = time.time()
    mounts = snapshot_system.mounts(host.read("/proc/self/mountinfo", 8 << 20))
    # Forked before any thread starts, so that the children hold no lock of another thread.
    files = Aside("files", partial(snapshot_files.fingerprints, host.root))
    # Always among them: podman's store, wherever the node has put it.
    paths = sorted({*arguments["disks"], snapshot_podman.configured_graph_root(host)})
    disks = {path: Aside("disks." + path, partial(snapshot_files.disk, path)) for path in paths}
    models = [
        (
            model,
            Aside("models." + model["name"], partial(snapshot_model.inspect, model["name"], model["path"])),
        )
        for model in wanted_models(arguments["models"])
    ]
    reads = Aside("models.read", partial(snapshot_store.speeds, [model["path"] for model, _ in models]))
    probes = Probes(host)
    for what, probe in _probes(host, arguments).items():
        probes.start(what, probe)
    asides = [files, *disks.values(), *(aside for _, aside in models), reads]
    collect(asides, host.started + host.time_limit_s)
    found = probes.results(host.started + 1.8 * host.time_limit_s)

    fingerprints = _value(host, files)
    speeds = _value(host, reads) or {}
    snapshot = {
        "schema": SCHEMA,
        "taken_at": taken_at,
        "hostname": socket.gethostname(),
        "root": host.is_root,
        "python": platform.python_version(),
        **_local(host, found),
        "mounts": mounts,
        "disks": [_disk(host, path, aside, mounts) for path, aside in disks.items()],
        "models": [
            {**_model(host, model, aside, mounts), "read": speeds.get(model["path"])} for model, aside in models
        ],
        "files": fingerprints,
        "registry": found.get("registry"),
        "supply": found.get("supply"),
    }
    units = found.get("units") or {"failed": None, "toolkit": None, "watched": None}
    installed = (
        None if fingerprints is None else snapshot_files.installed(fingerprints, snapshot_units.UNIT_FOLDERS)
    )
    snapshot.update(_joined(found, dict(units, installed=installed)))
    snapshot["unseen"] = host.unseen_list()
    snapshot["took_s"] = round(time.time() - taken_at, 3)
    return snapshot


def wanted_models(instances: Any) -> list[dict[str, str]]:
    """{name, path} of each instance that names an absolute path, once each."""
    found = {}
    for instance in instances if isinstance(instances, list) else []:
        path = instance.get("model") if isinstance(instance, dict) else None
        if isinstance(path, str) and path.startswith("/"):
            name = str(instance.get("name"))
            found[name] = {"name": name, "path": os.path.normpath(path)}
    return [found[name] for name in sorted(found)]


def wanted_images(lock: Any) -> list[dict[str, Any]]:
    """{name, repository, digest} of each entry of the lock that is a mapping."""
    entries = sorted(lock.items(), key=str) if isinstance(lock, dict) else []
    return [
        {"name": str(name), "repository": entry.get("repository"), "digest": entry.get("digest")}
        for name, entry in entries
        if isinstance(entry, dict)
    ]


def _probes(host: Host, arguments: dict[str, Any]) -> dict[str, Any]:
    probes: dict[str, Any] = {
        "podman": partial(snapshot_podman.probe, host),
        "gpu.devices": partial(snapshot_gpu.probe_devices, host),
        "gpu.processes": partial(snapshot_gpu.probe_processes, host),
        "units": partial(snapshot_units.probe, host),
        "ports": partial(snapshot_ports.probe, host),
        "gpu.links": partial(snapshot_links.probe_links, host),
        "gpu.driver": partial(snapshot_gpu.probe_driver, host),
        "gpu.hardware": partial(snapshot_gpu.probe_hardware, host),
        "gpu.fabric_manager.version": partial(snapshot_gpu.probe_fabric_manager, host),
        "cdi": partial(snapshot_cdi.probe, host),
        "supply": partial(snapshot_supply.probe, host),
        "kernel": partial(snapshot_system.probe_kernel, host),
        "journal": partial(snapshot_journal.probe, host),
        "firewall.ruleset_sha256": partial(snapshot_firewall.probe_ruleset, host),
        "firewall.zones": partial(snapshot_firewall.probe_zones, host),
    }
    registry = arguments["registry"]
    if registry:
        images = wanted_images(arguments["images"])
        probes["registry"] = partial(
            snapshot_registry.probe, registry, images, platform.machine(), host.time_limit_s
        )
    return probes


def _local(host: Host, found: dict[str, Any]) -> dict[str, Any]:
    """What is read from /proc and /sys without a command."""
    return {
        "os": snapshot_system.os_release(host.read("/etc/os-release")),
        "kernel": found.get("kernel")
        or {
            "release": platform.release(),
            "arch": platform.machine(),
            "next_boot": None,
            "next_boot_has_nvidia": None,
        },
        "cgroup": snapshot_system.cgroup(host),
        "journal": found.get("journal"),
        "selinux": snapshot_system.selinux(host),
        "secure_boot": snapshot_system.secure_boot(host),
        "cpu": {"count": os.cpu_count()},
        "memory": snapshot_system.memory(host.read("/proc/meminfo")),
        "swap": snapshot_system.swap(host.read("/proc/swaps")),
        "time": {"epoch": time.time(), "synchronized": snapshot_system.clock_synchronized()},
        "sysctl": snapshot_system.sysctl(host),
        "links": host.names("/sys/class/net"),
        # Names are used again; this tells one installation of a node from the next.
        "machine_id": (host.read("/etc/machine-id") or "").strip() or None,
        "as_found": host.exists(STATE_DIR + "/as-found.json"),
        "manifest": host.exists(STATE_DIR + "/manifest.json"),
    }


def _joined(found: dict[str, Any], units: dict[str, Any]) -> dict[str, Any]:
    """What several probes know together."""
    watched = units["watched"] or {}
    podman = found.get("podman") or dict.fromkeys(snapshot_podman.HELD)
    smi = found.get("gpu.devices") or {"devices": None, "error": "no answer", "smi": None, "cuda": None}
    driver = found.get("gpu.driver") or {}
    hardware = found.get("gpu.hardware") or {}
    refresh = watched.get("nvidia-cdi-refresh.service")
    cdi = found.get("cdi") or {"toolkit": None, "specs": None}
    ruleset = found.get("firewall.ruleset_sha256") or {}
    if refresh:
        path_unit = watched.get("nvidia-cdi-refresh.path") or {}
        refresh = {key: refresh[key] for key in ("load", "active", "result", "after")}
        refresh["path_unit_active"] = path_unit.get("active")
    return {
        **podman,
        "podman": podman.get("podman"),
        "gpu": {
            "driver": {
                **{key: driver.get(key) for key in ("loaded", "library", "module", "module_present")},
                "smi": smi["smi"],
                "cuda": smi["cuda"],
            },
            "devices": smi["devices"],
            "error": smi["error"],
            "processes": found.get("gpu.processes"),
            "links": found.get("gpu.links"),
            "module_signer": driver.get("signer"),
            **{key: hardware.get(key) for key in ("pci_gpus", "nvswitches", "nouveau", "device_nodes")},
            "persistenced": (watched.get("nvidia-persistenced.service") or {}).get("active"),
            "fabric_manager": {
                "active": (watched.get("nvidia-fabricmanager.service") or {}).get("active"),
                "version": found.get("gpu.fabric_manager.version"),
            },
        },
        "cdi": {**cdi, "refresh_unit": refresh},
        "ports": found.get("ports"),
        "units": units,
        "firewall": {
            "firewalld": (watched.get("firewalld.service") or {}).get("active"),
            "ruleset_sha256": ruleset.get("sha256"),
            "input_chains": ruleset.get("input_chains"),
            **(found.get("firewall.zones") or dict.fromkeys(("zones", "default_zone", "zone"))),
        },
    }


def _value(host: Host, aside: Aside) -> Any:
    try:
        return aside.value()
    except RuntimeError as error:
        host.unseen(aside.what, str(error))
        return None


def _disk(host: Host, path: str, aside: Aside, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    value = _value(host, aside) or {}
    mount = snapshot_system.mount_of(value.get("real_path") or path, mounts) or {}
    return {
        "path": path,
        "mount": mount.get("target"),
        "fstype": mount.get("fstype"),
        **{key: value.get(key) for key in ("total_bytes", "free_bytes", "free_inodes")},
    }


def _model(host: Host, model: dict[str, Any], aside: Aside, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    value = _value(host, aside)
    mount = snapshot_system.mount_of(model["path"], mounts) or {}
    if value is None:
        value = {
            "name": model["name"],
            "path": model["path"],
            "exists": None,
            "bytes": None,
            "architectures": [],
            "auto_map": None,
            "own_code": [],
            "auto_map_missing": [],
            "vocabulary_files": [],
            "config": None,
            "weights": None,
            "problems": [],
        }
    return {**value, "fstype": mount.get("fstype"), "mount": mount.get("target")}


def keep(snapshot: dict[str, Any], path: str) -> bool:
    """Write the snapshot once; True when this call wrote it. The file appears whole or not at all."""
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=".as-found.", dir=folder)
    try:
        with os.fdopen(handle, "w") as stream:
            json.dump(snapshot, stream, indent=1, sort_keys=True)
            stream.flush()
            os.fsync(stream.fileno())
        # A link, unlike a rename, never replaces what somebody else has kept in the meantime.
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(draft)
    return True


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "disks": {"type": "list", "elements": "path", "default": []},
            "models": {"type": "raw"},
            "registry": {
                "type": "dict",
                "options": {
                    "address": {"type": "str", "required": True},
                    "ca": {"type": "str", "default": ""},
                    "username": {"type": "str", "default": ""},
                    "password": {"type": "str", "default": "", "no_log": True},
                },
            },
            "images": {"type": "raw"},
            "keep_as": {"type": "path"},
            "time_limit_s": {"type": "float", "default": 8.0},
        },
        supports_check_mode=True,
    )
    host = Host(module.params["time_limit_s"])
    snapshot = take(host, module.params)
    changed = False
    path = module.params["keep_as"]
    if path and not host.exists(path):
        if not module.check_mode:
            try:
                keep(snapshot, path)
            except OSError as error:
                module.fail_json(
                    msg=f"the snapshot cannot be kept as {path}: {error.strerror}", snapshot=snapshot
                )
            snapshot["as_found"] = True
        changed = True
    module.exit_json(changed=changed, snapshot=snapshot)


if __name__ == "__main__":
    main()
