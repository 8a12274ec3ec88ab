"""Each check once broken and once healthy: a check that cannot fire, or always fires, fails here."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.unit.factories import (
    GIB,
    REGISTRY,
    changed,
    digest,
    disk,
    gpu,
    ids,
    instance,
    judged,
    model,
    port,
    snapshot,
    spec,
    variables,
)
from tests.unit.fit_models import LARGE, LLAMA, dense
from tests.unit.node_code import ROOT

Changes = dict[str, Any]


def test_a_healthy_node_has_no_findings() -> None:
    assert judged(snapshot()) == []


MIG = {
    **gpu(0),
    "mig_mode": "Enabled",
    "mig": [{"index": 0, "gi": 1, "ci": 0, "uuid": "MIG-a"}, {"index": 1, "gi": 2, "ci": 0, "uuid": "MIG-b"}],
}
NVIDIA_SMI_HANGS = {"gpu/devices": None, "gpu/error": "nvidia-smi did not answer within 8 s"}
BOLTDB = {"podman/database_backend": "boltdb"}
NO_DRIVER: Changes = {
    "gpu/driver/loaded": None,
    "gpu/devices": None,
    "gpu/error": "nvidia-smi is not installed",
    "cdi/specs": [],
}
OTHER_PROCESS = {
    "pid": 4,
    "name": "python3",
    "gpu_uuid": gpu(0)["uuid"],
    "memory_bytes": 1,
    "unit": "train.service",
}

DOOR: Changes = {"gateway_enabled": True, "gateway_listen_address": "0.0.0.0", "gateway_port": 8443}
# They need a node and a site that are both out of the ordinary: test_firewall.py has them.
IN_TEST_FIREWALL = {"firewall.absent", "firewall.unmanaged"}
BLOCKED = f'[[registry]]\nlocation = "{REGISTRY}"\nblocked = true\n'
KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
PACKAGES: Changes = {"packages_repository": "/srv/rpms", "packages_gpg_key": KEY, "packages_install": ["podman >= 5.4"]}

# id, level, what is changed on the node
ON_THE_NODE: list[tuple[str, str, Changes]] = [
    ("os.untested", "warn", {"os/id": "debian", "os/version_id": "13"}),
    ("os.untested", "warn", {"os/version_id": "9.4"}),
    ("kernel.old", "warn", {"kernel/release": "4.18.0-553.el8"}),
    ("cgroup.version", "fail", {"cgroup/version": 1}),
    ("python.version", "fail", {"python": "3.6.8"}),
    ("selinux.mode", "warn", {"selinux/mode": "disabled"}),
    ("selinux.mode", "warn", {"selinux/mode": "permissive"}),
    ("selinux.boolean", "fail", {"selinux/booleans": {}}),
    ("time.skew", "fail", {"time/skew_s": -31.0}),
    ("time.skew", "warn", {"time/skew_s": 2.5}),
    ("time.synchronized", "warn", {"time/synchronized": False}),
    ("units.failed", "warn", {"units/failed": ["NetworkManager-wait-online.service"]}),
    ("snapshot.unseen", "warn", {"unseen": [{"what": "ports", "why": "ss did not answer within 8 s"}]}),
    ("podman.missing", "fail", {"podman": None}),
    ("podman.version", "fail", {"podman/version": "5.3.9"}),
    ("podman.version", "fail", {"podman/version": "4.9.4-rhel"}),
    ("podman.quadlet", "fail", {"podman/quadlet": None}),
    ("podman.init", "fail", {"podman/init": None}),
    ("podman.network_backend", "fail", {"podman/network_backend": "cni"}),
    ("podman.network_backend", "fail", {"podman/network_backend": None, "podman/netavark": None}),
    ("podman.database", "fail", {**BOLTDB, "podman/version": "5.8.0"}),
    ("podman.database", "warn", BOLTDB),
    ("podman.database", "warn", {**BOLTDB, "podman/version": "5.8.1"}),
    ("podman.runtime", "warn", {"podman/oci_runtime": "runc"}),
    ("podman.cgroup_manager", "warn", {"podman/cgroup_manager": "cgroupfs"}),
    (
        "podman.cni_leftover",
        "warn",
        {"files": {"/etc/cni/net.d/87-podman-bridge.conflist": "sha256:1 0644 0 0"}},
    ),
    ("gpu.missing", "fail", {**NO_DRIVER, "gpu/pci_gpus": 0}),
    ("gpu.driver_missing", "fail", {**NO_DRIVER, "gpu/driver/module_present": False}),
    ("gpu.secure_boot", "fail", {**NO_DRIVER, "secure_boot": True}),
    ("gpu.nouveau", "fail", {"gpu/nouveau": True}),
    ("gpu.driver_mismatch", "fail", {"gpu/driver/library": "570.133.20", **NVIDIA_SMI_HANGS}),
    ("gpu.nvidia_smi", "fail", NVIDIA_SMI_HANGS),
    ("gpu.driver_update", "warn", {"gpu/driver/module": "575.51.03"}),
    ("gpu.fabric_manager", "fail", {"gpu/fabric_manager/active": "inactive"}),
    ("gpu.fabric_manager", "fail", {"gpu/fabric_manager": {"active": None, "version": None}}),
    ("gpu.fabric_manager_version", "fail", {"gpu/fabric_manager/version": "570.86.15"}),
    ("gpu.fabric_state", "fail", {"gpu/devices/2/fabric_state": "In Progress"}),
    ("gpu.fabric_state", "fail", {"gpu/devices/2/fabric_status": "System is not in ready state"}),
    ("gpu.next_boot", "warn", {"kernel/next_boot_has_nvidia": False}),
    ("gpu.uvm", "warn", {"gpu/device_nodes": ["/dev/nvidia0"]}),
    ("gpu.persistenced", "warn", {"gpu/persistenced": None}),
    (
        "gpu.driver_known",
        "warn",
        {
            "gpu/driver": {"loaded": "565.57.01", "library": "565.57.01"},
            "gpu/fabric_manager/version": "565.57.01",
            "cdi/specs/0/driver_versions": ["565.57.01"],
        },
    ),
    ("gpu.remap_failure", "fail", {"gpu/devices/1/remap_failure": True}),
    ("gpu.remap_pending", "warn", {"gpu/devices/1/remap_pending": True}),
    ("gpu.ecc", "warn", {"gpu/devices/1/ecc_volatile_uncorrectable": 3}),
    ("gpu.recovery", "warn", {"gpu/devices/1/recovery_action": "Reset"}),
    ("gpu.busy", "fail", {"gpu/processes": [OTHER_PROCESS]}),
    ("gpu.dcgm", "warn", {"units/watched": {"nvidia-dcgm.service": {"active": "active"}}}),
    ("gpu.dcgm", "warn", {"ports": [port(5555, "nv-hostengine", None)]}),
    ("cdi.missing", "fail", {"cdi/specs": [], "cdi/toolkit": None}),
    ("cdi.folder", "warn", {"podman/version": "5.5.2"}),
    ("cdi.folder", "fail", {"podman/version": "5.5.2", "cdi/toolkit": None}),
    ("cdi.unreadable", "warn", {"cdi/specs": [{**spec(), "error": "line 3: a key was expected"}]}),
    ("cdi.version", "fail", {"cdi/specs/0/cdi_version": "1.0.0"}),
    ("cdi.version", "fail", {"cdi/specs/0/cdi_version": "1.1.0", "podman/version": "5.8.1"}),
    ("cdi.stale", "fail", {"cdi/specs/0/driver_versions": ["565.57.01"]}),
    ("cdi.stale", "fail", {"cdi/specs/0/missing_paths": ["/run/nvidia-persistenced/socket"]}),
    ("cdi.device", "fail", {"cdi/specs/0/devices": ["0", "all"]}),
    ("cdi.duplicate", "fail", {"cdi/specs": [spec(), spec("/run/cdi/other.yaml")]}),
    ("cdi.toolkit", "warn", {"cdi/toolkit": "1.18.2"}),
    ("cdi.toolkit", "fail", {"cdi/toolkit": "1.17.7"}),
    ("cdi.refresh_order", "warn", {"cdi/refresh_unit/after": ["multi-user.target"]}),
    ("cdi.refresh_failed", "warn", {"cdi/refresh_unit/active": "failed"}),
    ("cdi.refresh_failed", "warn", {"cdi/refresh_unit/path_unit_active": "failed"}),
    ("kubelet.running", "fail", {"units/watched": {"kubelet.service": {"active": "active"}}}),
    ("disk.images", "fail", {"disks/1": disk("/var/lib/containers/storage", 15 * GIB)}),
    ("disk.state", "fail", {"disks/2": disk("/var/lib/vllm-node", 100 << 20)}),
    ("disk.inodes", "fail", {"disks/1/free_inodes": 900}),
    (
        "disk.unreadable",
        "fail",
        {
            "disks/1/free_bytes": None,
            "unseen": [{"what": "disks./var/lib/containers/storage", "why": "dead"}],
        },
    ),
    ("memory.model", "warn", {"memory/total_bytes": 18 * GIB}),
    ("memory.shm", "warn", {"memory/total_bytes": 8 * GIB}),
    (
        "journal.size",
        "warn",
        {"journal": {"cap_bytes": 64 * GIB, "keep_free_bytes": GIB, "used_bytes": GIB, "free_bytes": 40 * GIB}},
    ),
    ("swap.on", "warn", {"swap": [{"name": "/dev/zram0", "type": "partition", "size_bytes": 8 * GIB}]}),
    ("port.taken", "fail", {"ports": [port(9091, "cockpit-tls", "cockpit.service", "*")]}),
    ("port.taken", "fail", {"ports": [port(8000, "python3", None, "::")]}),
    ("port.taken", "warn", {"ports": [port(8000, None, None)]}),
    (
        "registry.unreachable",
        "fail",
        {"registry/reachable": False, "registry/tls": None, "registry/error": "refused"},
    ),
    (
        "registry.unreachable",
        "fail",
        {"registry": None, "unseen": [{"what": "registry", "why": "no answer"}]},
    ),
    (
        "registry.untrusted",
        "fail",
        {"registry/tls": "self-signed certificate", "registry/error": "not trusted"},
    ),
    ("registry.auth", "fail", {"registry/auth": "refused", "registry/error": "status 401"}),
    ("registry.answer", "fail", {"registry/auth": None, "registry/error": "/v2/ answers with status 404"}),
    ("lock.architecture", "fail", {"kernel/arch": "aarch64"}),
    ("lock.architecture", "fail", {"registry/images/0/architectures": ["arm64"]}),
    ("image.missing", "fail", {"registry/images/2/found": False}),
    (
        "image.error",
        "fail",
        {"registry/images/2/found": None, "registry/images/2/error": "access is refused"},
    ),
    ("trust.policy", "fail", {"supply/policy/path": None}),
    ("trust.policy", "fail", {"supply/policy/error": "it has no 'default'"}),
    ("trust.reject", "fail", {"supply/policy/rules/default": ["reject"]}),
    ("trust.reject", "fail", {"supply/policy/rules/docker": {REGISTRY: ["ofTomorrow"]}}),
    ("trust.signature", "fail", {"supply/policy/rules/docker": {f"{REGISTRY}/site": ["sigstoreSigned"]}}),
    ("registries.unreadable", "fail", {"supply/registries/0/text": "unqualified-search-registries = ["}),
    ("registries.blocked", "fail", {"supply/registries/0/text": BLOCKED}),
    ("model.missing", "fail", {"models/0/exists": False}),
    ("model.unreadable", "fail", {"models/0/exists": None}),
    ("model.incomplete", "fail", {"models/0/problems": ["shard b.safetensors is missing"]}),
    ("model.own_code", "fail", {"models/0/auto_map": True}),
    ("model.vocabulary", "fail", {"models/0/architectures": ["GptOssForCausalLM"]}),
    ("model.network_fs", "warn", {"models/0/fstype": "nfs4"}),
    ("model.fit", "fail", {"models/0/config": LARGE, "models/0/weights": dense(LARGE)}),
    ("model.fit", "warn", {"models/0/config": {**LARGE, "max_position_embeddings": 16384}, "models/0/weights": dense(LARGE)}),
    ("model.parallel", "fail", {"models/0/config": {**LLAMA, "num_attention_heads": 33, "num_key_value_heads": 1}}),
    ("model.parallel", "warn", {"models/0/config": LLAMA, "gpu/links": [[0, 1, "SYS"]]}),
    ("model.start_budget", "warn", {"models/0/read": {"bytes_per_s": 10_000_000, "past_cache": True, "why": None}}),
    (
        "model.selinux_nfs",
        "warn",
        {"models/0/fstype": "nfs4", "selinux/booleans/virt_use_nfs": False},
    ),
]


@pytest.mark.parametrize(("check", "level", "changes"), ON_THE_NODE)
def test_a_broken_node_is_noticed(check: str, level: str, changes: Changes) -> None:
    node = snapshot()
    for path, value in changes.items():
        node = changed(node, path, value)
    found = judged(node)
    assert {each.id: each.level for each in found}.get(check) == level
    for each in found:
        assert each.host == "gpu1"
        assert each.seen
        assert each.why
        assert each.mend


TWO = [instance("llama"), instance("qwen", gpus=["2"], port=8001)]
MIRROR = {"upstream": "upstream.example", "mirror": REGISTRY}
# What makes a wish one that does not fit, where the healthy node does not.
NODE_OF: dict[str, tuple[str, Any]] = {
    "cdi.missing": ("cdi/specs", []),
    "packages.dnf": ("supply/dnf", None),
    "packages.python": ("supply/dnf/python", False),
    "gpu.exclusive": ("gpu/devices/1/compute_mode", "Exclusive_Process"),
    "gpu.split": ("gpu/devices/0", MIG),
    "profile.gpu": ("gpu/devices", None),
    "memory.instances": (
        "models",
        [{**model("llama"), "bytes": 300 * GIB}, {**model("qwen"), "bytes": 200 * GIB}],
    ),
}
HALF = {"gpu-memory-utilization": 0.45}
# Two instances of which the second has a share of a GPU of the first.
ON_ONE = [instance("llama", args=HALF), instance("qwen", gpus=["1"], port=8001, args=HALF)]

# id, level, what the site wants otherwise
OF_THE_SITE: list[tuple[str, str, Changes]] = [
    ("instance.name", "fail", {"vllm_instances": [instance(), instance(gpus=["2"], port=8001)]}),
    ("gpu.shared", "fail", {"vllm_instances": [TWO[0], {**TWO[1], "gpus": ["1"]}]}),
    ("gpu.shared", "fail", {"vllm_instances": [TWO[0], {**TWO[1], "gpus": ["all"]}]}),
    ("gpu.shared", "fail", {"vllm_instances": [TWO[0], {**TWO[1], "gpus": [gpu(1)["uuid"]]}]}),
    ("gpu.shared", "fail", {"vllm_instances": [TWO[0], {**TWO[1], "gpus": [1]}]}),
    ("gpu.shared", "fail", {"vllm_instances": [ON_ONE[0], {**ON_ONE[1], "args": {"gpu_memory_utilization": 0.51}}]}),
    ("gpu.shared_start", "warn", {"vllm_instances": ON_ONE}),
    ("gpu.exclusive", "fail", {"vllm_instances": ON_ONE}),
    ("gpu.split", "fail", {"vllm_instances": [instance(gpus=["0"]), {**TWO[1], "gpus": ["MIG-b"]}]}),
    ("gpu.declared", "warn", {"vllm_gpu_memory_gib": 24, "images_lock/vllm/tag": "v0.33.0"}),
    ("profile.version", "warn", {"vllm_instances": [instance(profile="rag")], "images_lock/vllm/tag": "nightly"}),
    ("profile.gpu", "warn", {"vllm_instances": [instance(profile="rag")], "images_lock/vllm/tag": "v0.33.0"}),
    ("instance.batch", "fail", {"vllm_instances": [instance(args={"max-num-seqs": 9000})], "images_lock/vllm/tag": "v0.33.0"}),
    (
        "instance.served",
        "warn",
        {"gateway_enabled": True, "vllm_instances": [{**one, "served_model_name": "chat"} for one in TWO]},
    ),
    ("memory.instances", "warn", {"vllm_instances": TWO}),
    ("gpu.unknown", "fail", {"vllm_instances": [instance(gpus=["7"])]}),
    ("instance.flags", "warn", {"vllm_instances": [instance(args={"max-num-seqss": 8})]}),
    ("instance.flags", "fail", {"vllm_instances": [instance(args={"enable-chunked-prefill": "False"})]}),
    ("instance.flag_conflict", "fail", {"vllm_instances": [instance(args={"tensor-parallel-size": 4})]}),
    ("instance.flag_conflict", "warn", {"vllm_instances": [instance(args={"tensor-parallel-size": 1})]}),
    ("instance.own_key", "fail", {"vllm_instances": [instance(args={"port": 9000})]}),
    ("instance.secret", "fail", {"vllm_instances": [instance(args={"api-key": "x"})]}),
    ("instance.environment", "fail", {"vllm_instances": [instance(env={"VLLM_PORT": "8000"})]}),
    ("port.shared", "fail", {"vllm_instances": [TWO[0], {**TWO[1], "port": 8000}]}),
    ("port.shared", "fail", {"grafana_port": 9091}),
    ("lock.digest", "fail", {"images_lock/vllm/digest": None}),
    ("lock.digest", "fail", {"images_lock/vllm/digest": "sha256:abc"}),
    ("lock.digest", "fail", {"images_lock/vllm": {"repository": "r:5000/vllm", "tag": "latest"}}),
    ("lock.placeholder", "fail", {"images_lock/vllm/digest": "sha256:" + "0" * 64}),
    ("lock.repository", "fail", {"images_lock/vllm/repository": "vllm/vllm-openai"}),
    ("lock.name", "fail", {"vllm_instances": [instance(image="vllm-nightly")]}),
    ("lock.architecture", "fail", {"images_lock/grafana/architecture": "arm64"}),
    ("image.unloaded", "fail", {"container_host_registry_address": ""}),
    ("selinux.boolean_off", "warn", {"gpu_runtime_selinux_boolean": False}),
    ("firewall.zone", "fail", {**DOOR, "firewall_zone": "dmz"}),
    ("firewall.open", "warn", {**DOOR, "firewall_zone": "trusted"}),
    ("firewall.closed", "warn", DOOR),
    ("network.exposed", "warn", {"vllm_instances": [instance(args={"host": "0.0.0.0"})]}),
    ("model.path", "fail", {"vllm_instances": [instance(model="meta-llama/Llama-3.1-8B")]}),
    ("model.delivery", "fail", {"model_store_models": [{"name": "llama", "source": "control", "path": "/x"}]}),
    ("mirror.name", "fail", {"container_host_mirrors": [{**MIRROR, "upstream": "https://upstream.example"}]}),
    ("mirror.name", "fail", {"container_host_mirrors": [{**MIRROR, "mirror": f"{REGISTRY}/x:v1"}]}),
    ("mirror.twice", "fail", {"container_host_mirrors": [MIRROR, {**MIRROR, "mirror": f"{REGISTRY}/x"}]}),
    ("mirror.elsewhere", "fail", {"container_host_mirrors": [{**MIRROR, "mirror": "other.example"}]}),
    ("registries.taken", "fail", {"container_host_mirrors": [{**MIRROR, "upstream": "taken.example"}]}),
    ("trust.signature", "fail", {"images_lock/vllm/repository": "registry.vendor.example/vllm"}),
    ("packages.dnf", "fail", PACKAGES),
    ("packages.python", "fail", PACKAGES),
    ("packages.repository", "fail", {**PACKAGES, "packages_repository": "https://user:word@site.example/rpms"}),
    ("packages.key", "fail", {**PACKAGES, "packages_gpg_key": ""}),
    ("packages.name", "fail", {**PACKAGES, "packages_install": ["podman", "--nogpgcheck"]}),
    ("packages.versionlock", "fail", {**PACKAGES, "packages_versionlock": ["nvidia-driver*"]}),
    ("cdi.missing", "fail", {"gpu_runtime_cdi_source": "site"}),
    ("cdi.missing", "fail", {"gpu_runtime_enabled": False}),
    ("disk.images", "fail", {"preflight_storage_margin_gib": 600}),
    ("journal.max_use", "fail", {"container_host_journal_max_use": "a lot"}),
    ("memory.shm", "warn", {"vllm_shm_size": "600g"}),
]


@pytest.mark.parametrize(("check", "level", "changes"), OF_THE_SITE)
def test_a_wish_that_does_not_fit_is_noticed(check: str, level: str, changes: Changes) -> None:
    site, node = variables(), snapshot()
    for path, value in changes.items():
        site = changed(site, path, value)
    if check in NODE_OF:
        node = changed(node, *NODE_OF[check])
    assert ids(node, site).get(check) == level


def test_two_instances_on_ports_and_gpus_of_their_own_are_fine() -> None:
    node = changed(snapshot(), "models", [model("llama"), model("qwen")])
    assert judged(node, changed(variables(), "vllm_instances", TWO)) == []


def test_mig_devices_of_one_gpu_can_be_used_by_two_instances() -> None:
    node = changed(snapshot(), "gpu/devices/0", MIG)
    node = changed(node, "cdi/specs/0/devices", ["0:0", "0:1", "MIG-a", "MIG-b", "0"])
    node = changed(node, "models", [model("llama"), model("qwen")])
    apart = [instance("llama", gpus=["0:0"]), {**TWO[1], "gpus": ["MIG-b"]}]
    assert judged(node, changed(variables(), "vllm_instances", apart)) == []
    same = [{**TWO[0], "gpus": ["0:1"]}, {**TWO[1], "gpus": ["MIG-b"]}]
    assert "gpu.shared" in ids(node, changed(variables(), "vllm_instances", same))
    whole = [{**TWO[0], "gpus": ["0"]}, {**TWO[1], "gpus": ["MIG-b"]}]
    assert "gpu.split" in ids(node, changed(variables(), "vllm_instances", whole))
    every = [{**TWO[0], "gpus": ["all"]}, {**TWO[1], "gpus": ["MIG-b"]}]
    assert {"gpu.shared"} == {"gpu.shared", "gpu.split"} & set(ids(node, changed(variables(), "vllm_instances", every)))


@pytest.mark.parametrize("name", ["1", gpu(1)["uuid"], "all"])
def test_instances_share_a_gpu_where_their_shares_add_up(name: str) -> None:
    fixed = {**HALF, "kv-cache-memory-bytes": "20g"}
    node = changed(snapshot(), "models", [model("llama"), model("qwen")])
    both = [{**each, "args": fixed, "gpus": gpus} for each, gpus in zip(ON_ONE, (["1"], [name]), strict=True)]
    assert not [each for each in ids(node, changed(variables(), "vllm_instances", both)) if each.startswith("gpu.")]


def test_a_share_that_nobody_sets_is_the_versions_own() -> None:
    site = changed(variables(), "vllm_instances", [{**ON_ONE[0], "args": {}}, ON_ONE[1]])
    for tag, share in (("v0.19.1", "0.9"), ("v0.20.0", "0.92")):
        found = [each for each in judged(snapshot(), changed(site, "images_lock/vllm/tag", tag)) if each.id == "gpu.shared"]
        assert [f"llama ({share}, vLLM's default) and qwen (0.45)" in each.seen.replace(", qwen", " and qwen") for each in found] == [True]


def test_instances_of_one_name_are_copies_of_one_model() -> None:
    same = [{**one, "served_model_name": "chat", "model": "/srv/models/llama"} for one in TWO]
    site = {**variables(), "vllm_instances": same, "gateway_enabled": True}
    assert "instance.served" not in ids(snapshot(), site)
    apart = [{**one, "served_model_name": "chat"} for one in TWO]
    assert "instance.served" not in ids(snapshot(), {**variables(), "vllm_instances": apart})


def test_gpu_names_are_compared_where_the_devices_are_not_known() -> None:
    node = changed(snapshot(), "gpu/devices", None)
    both = [TWO[0], {**TWO[1], "gpus": ["all"]}]
    assert "gpu.shared" in ids(node, changed(variables(), "vllm_instances", both))
    assert "gpu.shared" not in ids(node, changed(variables(), "vllm_instances", TWO))


def test_a_node_without_gpu_is_fine_when_nobody_asks_for_one() -> None:
    node = snapshot()
    bare = {
        **NO_DRIVER,
        "gpu/pci_gpus": 0,
        "gpu/nvswitches": 0,
        "gpu/persistenced": None,
        "cdi/toolkit": None,
    }
    for path, value in bare.items():
        node = changed(node, path, value)
    assert judged(node, changed(variables(), "vllm_instances", [instance(gpus=[])])) == []


def test_our_own_units_may_hold_their_ports_and_gpus() -> None:
    node = changed(
        snapshot(),
        "ports",
        [port(8000, "vllm", "vllm-llama.service"), port(9400, "x", "dcgm-exporter.service")],
    )
    node = changed(node, "gpu/processes", [{**OTHER_PROCESS, "unit": "vllm-llama.service"}])
    node = changed(node, "units/failed", ["vllm-llama.service", "ab" * 32 + "-1f.service"])
    assert judged(node) == []


def test_a_listener_on_another_address_is_not_in_the_way() -> None:
    assert judged(changed(snapshot(), "ports", [port(8000, "nginx", "nginx.service", "10.1.2.3")])) == []


def test_switched_off_components_need_no_port_and_no_image() -> None:
    site = {**variables(), "grafana_enabled": False, "grafana_port": 9091}
    del site["images_lock"]["grafana"]
    assert judged(snapshot(), site) == []


def test_a_node_that_holds_all_images_survives_a_registry_that_is_gone() -> None:
    node = changed(snapshot(), "registry/reachable", False)
    node = changed(node, "registry/error", "Connection refused")
    here = [
        {"id": name, "digests": [f"{entry['repository']}@{digest(name)}"], "names": [], "size_bytes": 1}
        for name, entry in variables()["images_lock"].items()
    ]
    assert ids(changed(node, "images", here)) == {"registry.unreachable": "warn"}
    assert ids(changed(node, "images", here[1:]))["registry.unreachable"] == "fail"
    small = changed(changed(snapshot(), "images", here), "disks/1/free_bytes", GIB)
    assert judged(small) == []


def test_only_what_a_node_runs_needs_the_registry() -> None:
    node = changed(changed(snapshot(), "registry/reachable", False), "registry/error", "Connection refused")
    site = {**variables(), "grafana_enabled": False}
    here = [
        {"id": name, "digests": [f"{entry['repository']}@{digest(name)}"], "names": [], "size_bytes": 1}
        for name, entry in variables()["images_lock"].items()
        if name != "grafana"
    ]
    assert ids(changed(node, "images", here), site) == {"registry.unreachable": "warn"}
    assert ids(changed(node, "images", here))["registry.unreachable"] == "fail"


def test_without_a_registry_images_have_to_be_on_the_node_or_in_a_bundle() -> None:
    site = {**variables(), "container_host_registry_address": ""}
    node = changed(snapshot(), "registry", None)
    (found,) = [one for one in judged(node, site) if one.id == "image.unloaded"]
    assert all(name in found.seen for name in variables()["images_lock"])
    here = [{"id": "x", "digests": [f"{entry['repository']}@{digest(name)}"]} for name, entry in site["images_lock"].items()]
    assert judged(changed(node, "images", here), site) == []
    assert judged(node, {**site, "image_load_bundle": "/srv/bundle"}) == []


def test_with_a_bundle_nothing_is_wanted_of_the_registry() -> None:
    site = {**variables(), "image_load_bundle": "/srv/bundle"}
    assert judged(changed(snapshot(), "registry/images/0/found", False), site) == []
    gone = changed(changed(snapshot(), "registry/reachable", False), "registry/error", "Connection refused")
    assert ids(gone, site) == {"registry.unreachable": "warn"}
    silent = changed(changed(snapshot(), "registry", None), "unseen", [{"what": "registry", "why": "no answer"}])
    assert ids(silent, site) == {"registry.unreachable": "warn"}
    assert ids(silent)["registry.unreachable"] == "fail"


def test_an_image_on_the_node_need_not_be_in_the_registry() -> None:
    node = changed(snapshot(), "registry/images/0/found", False)
    here = [{"id": "x", "digests": [f"{variables()['images_lock']['vllm']['repository']}@{digest('vllm')}"]}]
    assert "image.missing" in ids(node)
    assert judged(changed(node, "images", here)) == []


def test_a_placeholder_is_told_once_and_not_looked_for() -> None:
    site = changed(variables(), "images_lock/vllm/digest", "sha256:" + "0" * 64)
    node = changed(snapshot(), "registry/images/0/found", False)
    assert ids(node, site) == {"lock.placeholder": "fail"}


def test_a_generated_spec_is_replaced_rather_than_refused() -> None:
    site = {**variables(), "gpu_runtime_cdi_source": "generate"}
    stale = changed(snapshot(), "cdi/specs/0/driver_versions", ["565.57.01"])
    assert ids(stale, site) == {"cdi.stale": "warn"}
    foreign = changed(stale, "cdi/specs/0/path", "/etc/cdi/site.yaml")
    assert ids(foreign, site) == {"cdi.stale": "fail"}


def test_uvm_nodes_that_are_made_later_do_not_make_a_spec_stale() -> None:
    assert (
        judged(changed(snapshot(), "cdi/specs/0/missing_paths", ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]))
        == []
    )


def test_a_cdi_version_is_named_with_what_podman_reads() -> None:
    (found,) = judged(changed(snapshot(), "cdi/specs/0/cdi_version", "0.9.0"))
    assert "0.9.0" in found.seen
    assert "0.8.0" in found.seen
    assert "5.4.0" in found.seen


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({}, {"model.own_code": "fail"}),
        ({"trust-remote-code": True}, {}),
        ({"trust_remote_code": True}, {}),
        ({"trust-remote-code": False}, {"model.own_code": "fail"}),
    ],
)
def test_own_code_needs_to_be_trusted(args: dict[str, Any], expected: dict[str, str]) -> None:
    site = changed(variables(), "vllm_instances", [instance(args=args)])
    assert ids(changed(snapshot(), "models/0/auto_map", True), site) == expected


def test_trusted_code_must_be_there() -> None:
    site = changed(variables(), "vllm_instances", [instance(args={"trust-remote-code": True})])
    node = changed(
        changed(snapshot(), "models/0/auto_map", True), "models/0/auto_map_missing", ["modeling_x.py"]
    )
    (found,) = judged(node, site)
    assert found.id == "model.own_code"
    assert "modeling_x.py" in found.seen


def test_gpt_oss_with_its_vocabulary_is_fine() -> None:
    node = changed(snapshot(), "models/0/architectures", ["GptOssForCausalLM"])
    site = changed(variables(), "vllm_instances", [instance(env={"TIKTOKEN_ENCODINGS_BASE": "/model"})])
    assert judged(node, site) == []


def test_a_load_strategy_settles_the_network_file_system() -> None:
    site = changed(variables(), "vllm_instances", [instance(args={"safetensors-load-strategy": "eager"})])
    assert judged(changed(snapshot(), "models/0/fstype", "nfs4"), site) == []


@pytest.mark.parametrize(
    ("os_id", "release"), [("rocky", "9.6"), ("almalinux", "10.1"), ("centos", "9"), ("ol", "10.0")]
)
def test_rebuilds_are_supported(os_id: str, release: str) -> None:
    node = changed(changed(snapshot(), "os/id", os_id), "os/version_id", release)
    assert judged(node) == []


def test_a_podman_that_was_never_used_is_fine() -> None:
    node = snapshot()
    for key in ("network_backend", "database_backend", "cgroup_manager", "graph_driver"):
        node = changed(node, f"podman/{key}", None)
    assert judged(changed(node, "podman/storage_used", False)) == []


def test_every_check_has_a_broken_case_here() -> None:
    source = "".join(path.read_text() for path in (ROOT / "vllm_node/preflight").glob("checks_*.py"))
    written = set(re.findall(r'^ +"([a-z]+\.[a-z_]+)",$', source, re.MULTILINE))
    assert len(written) > 60
    assert written == {case[0] for case in ON_THE_NODE + OF_THE_SITE} | IN_TEST_FIREWALL
