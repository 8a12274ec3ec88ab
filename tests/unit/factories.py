"""A healthy node and a site that fits it. Tests break one thing at a time with `changed`."""

from __future__ import annotations

import copy
from typing import Any

from vllm_node.preflight import Finding, judge, wanted_from

GIB = 1 << 30
DRIVER = "570.124.06"
REGISTRY = "registry.site.example:5000"
IMAGES = ("vllm", "dcgm_exporter", "node_exporter", "prometheus", "alertmanager", "grafana")


def digest(name: str) -> str:
    """A made-up digest, the same for the same name."""
    return "sha256:" + (name.encode().hex() * 64)[:64]


def gpu(index: int) -> dict[str, Any]:
    return {
        "index": index,
        "uuid": f"GPU-00000000-0000-0000-0000-00000000000{index}",
        "name": "NVIDIA H100 80GB HBM3",
        "pci": f"00000000:{index + 16:02X}:00.0",
        "memory_total_bytes": 80 * GIB,
        "memory_used_bytes": 4 << 20,
        "mig_mode": "Disabled",
        "mig": [],
        "ecc_mode": "Enabled",
        "ecc_volatile_uncorrectable": 0,
        "ecc_aggregate_uncorrectable": 0,
        "remap_pending": False,
        "remap_failure": False,
        "recovery_action": None,
        "fabric_state": "Completed",
        "fabric_status": "Success",
        "persistence": "Enabled",
    }


def spec(path: str = "/run/cdi/nvidia.yaml") -> dict[str, Any]:
    return {
        "path": path,
        "cdi_version": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": ["0", "1", "2", "3", "all", *(gpu(index)["uuid"] for index in range(4))],
        "driver_versions": [DRIVER],
        "missing_paths": [],
        "error": None,
    }


def model(name: str = "llama") -> dict[str, Any]:
    return {
        "name": name,
        "path": f"/srv/models/{name}",
        "exists": True,
        "fstype": "xfs",
        "mount": "/srv",
        "bytes": 16 * GIB,
        "read": {"bytes_per_s": 2 * GIB, "past_cache": True, "why": None},
        "architectures": ["LlamaForCausalLM"],
        "auto_map": False,
        "auto_map_missing": [],
        "vocabulary_files": [],
        "problems": [],
    }


def snapshot() -> dict[str, Any]:
    """A bare RHEL 9.6 node with four H100 on NVSwitch, ready for a bring-up."""
    return {
        "schema": 1,
        "taken_at": 1_800_000_000.0,
        "hostname": "gpu1",
        "root": True,
        "python": "3.9.21",
        "unseen": [],
        "os": {
            "id": "rhel",
            "id_like": ["fedora"],
            "version_id": "9.6",
            "name": "Red Hat Enterprise Linux 9.6",
        },
        "kernel": {
            "release": "5.14.0-570.12.1.el9_6.x86_64",
            "arch": "x86_64",
            "next_boot": "5.14.0-570.12.1.el9_6.x86_64",
            "next_boot_has_nvidia": True,
        },
        "cgroup": {"version": 2, "controllers": ["cpu", "io", "memory", "pids"]},
        "selinux": {
            "mode": "enforcing",
            "booleans": {"container_use_xserver_devices": False, "virt_use_nfs": True},
        },
        "secure_boot": False,
        "cpu": {"count": 64},
        "memory": {"total_bytes": 512 * GIB, "available_bytes": 500 * GIB},
        "journal": {"cap_bytes": 4 * GIB, "keep_free_bytes": 4 * GIB, "used_bytes": GIB, "free_bytes": 60 * GIB},
        "swap": [],
        "time": {"epoch": 1_800_000_000.2, "synchronized": True, "skew_s": 0.0},
        "sysctl": {"net.ipv4.ip_forward": "0", "net.ipv4.ip_local_port_range": "32768 60999"},
        "podman": {
            "version": "5.4.0",
            "path": "/usr/bin/podman",
            "network_backend": "netavark",
            "database_backend": "sqlite",
            "cgroup_manager": "systemd",
            "oci_runtime": "crun",
            "graph_root": "/var/lib/containers/storage",
            "graph_driver": "overlay",
            "quadlet": "/usr/libexec/podman/quadlet",
            "netavark": "/usr/libexec/podman/netavark",
            "init": "/usr/libexec/podman/catatonit",
            "storage_used": True,
        },
        "containers": [],
        "images": [],
        "volumes": [],
        "networks": [{"name": "podman", "driver": "bridge"}],
        "secrets": [],
        "gpu": {
            "driver": {
                "loaded": DRIVER,
                "library": DRIVER,
                "module": DRIVER,
                "module_present": True,
                "smi": DRIVER,
                "cuda": "12.8",
            },
            "devices": [gpu(index) for index in range(4)],
            "error": None,
            "processes": [],
            "module_signer": "NVIDIA",
            "pci_gpus": 4,
            "nvswitches": 4,
            "nouveau": False,
            "device_nodes": ["/dev/nvidia0", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"],
            "persistenced": "active",
            "fabric_manager": {"active": "active", "version": DRIVER},
        },
        "cdi": {
            "toolkit": "1.19.1",
            "specs": [spec()],
            "refresh_unit": {
                "load": "loaded",
                "active": "inactive",
                "result": "success",
                "after": ["basic.target"],
                "path_unit_active": "active",
            },
        },
        "ports": [port(22, "sshd", "sshd.service", address="0.0.0.0")],
        "mounts": [{"target": "/", "source": "/dev/sda2", "fstype": "xfs", "options": ["rw"]}],
        "disks": [disk("/"), disk("/var/lib/containers/storage"), disk("/var/lib/vllm-node")],
        "units": {"failed": [], "toolkit": [], "watched": {}, "installed": []},
        "firewall": {
            "firewalld": "active",
            "ruleset_sha256": "aa",
            "input_chains": ["inet firewalld filter_INPUT"],
            "zones": {
                "public": {"target": "default", "interfaces": ["eth0"], "ports": [], "services": ["ssh"]},
                "trusted": {"target": "ACCEPT", "interfaces": [], "ports": [], "services": []},
            },
            "default_zone": "public",
            "zone": "public",
        },
        "links": ["eth0", "lo"],
        "files": {"/etc/hosts": "sha256:00 0644 0 0"},
        "models": [model()],
        "registry": {
            "address": REGISTRY,
            "reachable": True,
            "tls": "ok",
            "auth": "ok",
            "server": None,
            "error": None,
            "images": [
                {
                    "name": name,
                    "repository": f"{REGISTRY}/site/{name}",
                    "digest": digest(name),
                    "found": True,
                    "size_bytes": GIB,
                    "media_type": "application/vnd.oci.image.manifest.v1+json",
                    "architectures": [],
                    "error": None,
                }
                for name in IMAGES
            ],
        },
        "supply": {
            "policy": {
                "path": "/etc/containers/policy.json",
                "rules": {
                    "default": ["insecureAcceptAnything"],
                    "docker": {"registry.vendor.example": ["signedBy"]},
                },
                "error": None,
            },
            "registries": [
                {
                    "path": "/etc/containers/registries.conf",
                    "text": '[[registry]]\nprefix = "taken.example"\nlocation = "other.example"\n',
                }
            ],
            "dnf": {"path": "/usr/bin/dnf", "python": True, "version_locks": False},
        },
        "as_found": False,
        "manifest": False,
    }


def port(number: int, process: str | None, unit: str | None, address: str = "127.0.0.1") -> dict[str, Any]:
    return {
        "protocol": "tcp",
        "address": address,
        "port": number,
        "pid": 700 if process else None,
        "process": process,
        "unit": unit,
    }


def disk(path: str, free_bytes: int = 500 * GIB) -> dict[str, Any]:
    return {
        "path": path,
        "mount": "/",
        "fstype": "xfs",
        "total_bytes": 1000 * GIB,
        "free_bytes": free_bytes,
        "free_inodes": 50_000_000,
    }


def instance(name: str = "llama", **changes: Any) -> dict[str, Any]:
    given = {
        "name": name,
        "image": "vllm",
        "model": f"/srv/models/{name}",
        "gpus": ["0", "1"],
        "port": 8000,
        "args": {},
        "env": {},
        **changes,
    }
    # It uses all of the GPUs that it asks for; the node has four.
    gpus = 4 if given["gpus"] == ["all"] else len(given["gpus"])
    return {**given, "args": {"tensor-parallel-size": max(gpus, 1), **given["args"]}}


def variables() -> dict[str, Any]:
    """What the site wants of the healthy node."""
    return {
        "vllm_instances": [instance()],
        "images_lock": {
            name: {
                "repository": f"{REGISTRY}/site/{name}",
                "tag": "v1",
                "digest": digest(name),
                "architecture": "amd64",
            }
            for name in IMAGES
        },
        "container_host_registry_address": REGISTRY,
        "dcgm_exporter_port": 9400,
        "prometheus_port": 9091,
        "alertmanager_port": 9093,
        "node_exporter_port": 9100,
        "grafana_port": 3000,
        "vllm_shm_size": "16g",
    }


def changed(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of `data` with the value at a dotted path replaced; numbers are places in lists."""
    copied = copy.deepcopy(data)
    at: Any = copied
    *way, last = path.split("/")
    for key in way:
        at = at[int(key)] if isinstance(at, list) else at[key]
    at[int(last) if isinstance(at, list) else last] = value
    return copied


def judged(node: dict[str, Any], site: dict[str, Any] | None = None) -> list[Finding]:
    """Findings on a node for a site."""
    return judge(node, wanted_from("gpu1", variables() if site is None else site))


def ids(node: dict[str, Any], site: dict[str, Any] | None = None) -> dict[str, str]:
    """Ids of the findings with their levels."""
    return {each.id: each.level for each in judged(node, site)}
