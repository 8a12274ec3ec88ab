"""What must stop a bring-up before anything has been changed, each with a text that says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.labs import Nodes
from vllm_node.lab import pki
from vllm_node.lab.node import Spec

pytestmark = pytest.mark.node
NODE = "bare"
INSTANCE = {"name": "tiny", "model": "/srv/models/tiny", "gpus": ["0"], "port": 8000}


def _lock(nodes: Nodes, name: str, **changed: Any) -> dict[str, Any]:
    lock = dict(nodes.lab.inventory()["all"]["vars"]["images_lock"])
    return {"images_lock": {**lock, name: {**lock[name], **changed}}}


def _instances(*changes: dict[str, Any]) -> dict[str, Any]:
    return {"vllm_instances": [{**INSTANCE, **change} for change in changes]}


def _foreign_ca(nodes: Nodes) -> dict[str, Any]:
    folder = nodes.lab.folder / "foreign"
    pki.make(folder, "registry.lab.internal")
    return {"container_host_registry_ca": (folder / "ca.crt").read_text()}


@dataclass(frozen=True)
class Case:
    """A broken input: variables, or a command that breaks the node and one that mends it; the finding it must give."""

    finding: str
    seen: str
    variables: Callable[[Nodes], dict[str, Any]] = field(default=lambda nodes: {})
    break_it: str = "true"
    mend_it: str = "true"


CDI = (
    "mkdir -p /etc/cdi; nvidia-modprobe -u -c0; nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml "
    "--format=yaml 2>/dev/null; sed -i '{edit}' /etc/cdi/nvidia.yaml"
)
NO_CDI = "rm -r /etc/cdi; rm -f /dev/nvidia-uvm /dev/nvidia-uvm-tools"
CASES = {
    "wrong digest": Case(
        "image.missing", "sha256:" + "1" * 64, lambda nodes: _lock(nodes, "prometheus", digest="sha256:" + "1" * 64)
    ),
    "tag without digest": Case("lock.digest", "grafana", lambda nodes: _lock(nodes, "grafana", digest="")),
    "wrong password": Case(
        "registry.auth", "registry.lab.internal", lambda nodes: {"container_host_registry_password": "wrong"}
    ),
    "untrusted CA": Case("registry.untrusted", "certificate", _foreign_ca),
    "model folder missing": Case(
        "model.missing", "/srv/models/nowhere", lambda nodes: _instances({"model": "/srv/models/nowhere"})
    ),
    "shard missing": Case(
        "model.incomplete",
        "model-00002-of-00002.safetensors",
        lambda nodes: _instances({"model": "/srv/models/torn"}),
        "cp -r /srv/models/tiny /srv/models/torn && rm /srv/models/torn/model-00002*",
        "rm -r /srv/models/torn",
    ),
    "port taken": Case(
        "port.taken",
        "9091",
        break_it="systemd-run --quiet --unit squatter python3 -m http.server --bind 127.0.0.1 9091; sleep 1",
        mend_it="systemctl stop squatter",
    ),
    "CDI spec missing": Case("cdi.missing", "nvidia.com/gpu", lambda nodes: {"gpu_runtime_cdi_source": "site"}),
    "CDI spec too new": Case("cdi.version", "1.99.0", break_it=CDI.format(edit="s/^cdiVersion:.*/cdiVersion: 1.99.0/"), mend_it=NO_CDI),
    "CDI spec stale": Case("cdi.stale", "550.54.14", break_it=CDI.format(edit="s/570.86.15/550.54.14/g"), mend_it=NO_CDI),
    "CDI names no such GPU": Case("gpu.unknown", "9", lambda nodes: _instances({"gpus": ["9"]})),
    "disk too small": Case("disk.images", "GiB", lambda nodes: {"preflight_storage_margin_gib": 100000}),
    "two instances on one port": Case(
        "port.shared", "8000", lambda nodes: _instances({}, {"name": "other", "gpus": ["1"]})
    ),
    "two instances on one GPU": Case(
        "gpu.shared", "tiny", lambda nodes: _instances({}, {"name": "other", "port": 8001})
    ),
    "unknown variable": Case("input.unknown", "vllm_instnces", lambda nodes: {"vllm_instnces": []}),
    "unknown key of an instance": Case("input.unknown", "modle", lambda nodes: _instances({"modle": "/x"})),
    "wrong type": Case("input.type", "prometheus_port", lambda nodes: {"prometheus_port": "ninety"}),
}


@pytest.fixture(scope="module")
def bare(nodes: Nodes) -> Iterator[Nodes]:
    """A node on which nothing was ever brought up."""
    nodes.make(Spec(NODE))
    yield nodes
    nodes.lab.remove(NODE)


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_and_nothing_changes(bare: Nodes, name: str) -> None:
    case = CASES[name]
    bare.shell(NODE, case.break_it)
    try:
        before = bare.tree(NODE)
        run = bare.run("up", limit=NODE, variables=case.variables(bare))
        assert run.code == 3, run.document
        findings = {one["id"]: one for one in run.host(NODE)["findings"] or [] if one["level"] == "fail"}
        assert set(findings) == {case.finding}, findings
        assert case.seen in findings[case.finding]["seen"]
        assert findings[case.finding]["host"] == NODE
        assert findings[case.finding]["mend"]
        assert bare.tree(NODE) == before
        assert bare.run("down", limit=NODE).code == 0
        assert bare.tree(NODE) == before
    finally:
        bare.shell(NODE, case.mend_it)


def test_a_registry_that_is_down_is_refused(bare: Nodes) -> None:
    before = bare.tree(NODE)
    bare.lab.stop_registry()
    try:
        run = bare.run("up", limit=NODE)
    finally:
        bare.lab.start_registry()
    assert run.code == 3
    assert run.findings(NODE) == {"registry.unreachable"}
    assert bare.tree(NODE) == before


@pytest.mark.parametrize(
    ("spec", "finding"),
    [
        (Spec("old", podman="4.3"), "podman.version"),
        (Spec("hybrid", cgroup=1), "cgroup.version"),
        (Spec("mismatch", gpu="mismatch"), "gpu.driver_mismatch"),
        (Spec("gpuless", gpu="none"), "gpu.missing"),
    ],
    ids=("podman too old", "cgroup v1", "driver mismatch", "no GPU"),
)
def test_a_node_that_cannot_serve_is_refused(nodes: Nodes, spec: Spec, finding: str) -> None:
    nodes.make(spec)
    try:
        before = nodes.tree(spec.name)
        run = nodes.run("up", limit=spec.name)
        assert run.code == 3, run.document
        assert finding in run.findings(spec.name)
        assert nodes.tree(spec.name) == before
    finally:
        nodes.lab.remove(spec.name)


def test_check_mode_passes_on_a_bare_node_and_changes_nothing(bare: Nodes) -> None:
    before = bare.tree(NODE)
    run = bare.run("up", "--check", limit=NODE)
    assert run.code == 0, run.document
    assert run.host(NODE)["counts"]["changed"] > 0
    shown = "".join(change["diff"] or "" for change in run.host(NODE)["changes"])
    assert "/etc/containers/systemd/vllm-tiny.container" in shown
    assert "+AddDevice=nvidia.com/gpu=0" in shown
    assert bare.lab.registry_password not in shown
    assert bare.tree(NODE) == before


def test_preflight_alone_passes_and_says_what_is_odd(bare: Nodes) -> None:
    run = bare.run("preflight", limit=NODE)
    assert run.code == 0
    assert "os.untested" in run.findings(NODE, "warn")


def test_a_gpu_with_memory_errors_is_pointed_out(nodes: Nodes) -> None:
    nodes.make(Spec("ecc", gpu="ecc"))
    try:
        run = nodes.run("preflight", limit="ecc", variables=_instances({"gpus": ["1"]}))
    finally:
        nodes.lab.remove("ecc")
    assert {"gpu.ecc", "gpu.remap_pending"} <= run.findings("ecc", "warn")


def test_ansible_alone_refuses_with_the_same_text(bare: Nodes) -> None:
    words = ["ansible-playbook", "-i", "inventories/lab", "playbooks/site.yml", "--limit", NODE]
    done = bare.program(*words, "-e", "gpu_runtime_cdi_source=site", limit_s=300)
    assert done.returncode == 2
    assert "FAIL cdi.missing" in done.stdout + done.stderr
    assert "mend:" in done.stdout + done.stderr
