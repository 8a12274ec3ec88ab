"""House rules over the rendered units, and each rule against a unit that breaks it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.unit.golden import GOLDEN, rendered
from tests.unit.unit_rules import SERVICE, component, parse, problems, service_problems, values
from vllm_node.units import image_reference

CHAT, DCGM = "vllm-chat.container", "dcgm-exporter.container"


def images() -> frozenset[str]:
    lock: dict[str, Any] = yaml.safe_load((GOLDEN / "inventory.yml").read_text())["gpu_nodes"]["vars"]["images_lock"]
    return frozenset(image_reference(image) for image in lock.values())


def unit(name: str) -> str:
    return rendered()[f"node-a/etc/containers/systemd/{name}"]


def test_every_rendered_unit_keeps_the_rules() -> None:
    units = {path: text for path, text in rendered().items() if path.endswith(".container")}
    assert len(units) == 9
    assert {path: found for path, text in units.items() if (found := problems(text, images()))} == {}


BREAKS = [
    ("Pull=never", "Pull=missing", "Pull is"),
    ("ReadOnly=true\n", "", "ReadOnly is"),
    ("RunInit=true\n", "", "RunInit is"),
    ("DropCapability=all\n", "", "DropCapability is"),
    ("NoNewPrivileges=true", "NoNewPrivileges=false", "NoNewPrivileges is"),
    ("LogDriver=passthrough\n", "", "LogDriver is"),
    ("Restart=always\n", "", "Restart is"),
    ("WantedBy=vllm-node.target", "WantedBy=multi-user.target", "WantedBy is"),
    ("PartOf=vllm-node.target\n", "", "PartOf is"),
    ("StartLimitBurst=5\n", "", "StartLimitBurst is missing"),
    ("PidsLimit=0\n", "", "PidsLimit is missing"),
    ("StopTimeout=90\n", "", "StopTimeout is missing"),
    ("TimeoutStartSec=1800\n", "", "TimeoutStartSec is missing"),
    ("TimeoutStopSec=120\n", "", "TimeoutStopSec is missing"),
    ("TimeoutStopSec=120", "TimeoutStopSec=90", "TimeoutStopSec 90 is not above StopTimeout 90"),
    ("MemoryMax=infinity\n", "", "MemoryMax is missing"),
    ("TasksMax=infinity\n", "", "TasksMax is missing"),
    ("ShmSize=32g\n", "", "ShmSize is missing"),
    ("LimitMEMLOCK=infinity\n", "", "LimitMEMLOCK is missing"),
    ("LogRateLimitIntervalSec=0\n", "", "LogRateLimitIntervalSec is missing"),
    ("@sha256:" + "1" * 64, ":v0.11.0", "is not one of the lock"),
    ("/vllm/vllm-openai@", "/other/image@", "is not one of the lock"),
    (":/models/chat:ro", ":/models/chat", "says neither ro nor rw"),
    (":/models/chat:ro", ":/models/chat:ro,Z", "would be relabelled"),
    (":/models/chat:ro", ":/models/chat:ro,z", "would be relabelled"),
    (":/models/chat:ro", ":/models/chat:rw", "lets the container write to the node"),
    ("ReadOnly=true", "ReadOnly=true\nMemory=1g", "Memory is not a key"),
    ("ReadOnly=true", "ReadOnly=true\nHttpProxy=false", "HttpProxy is not a key"),
    ("ReadOnly=true", "ReadOnly=true\nSecurityLabelDisable=true", "SecurityLabelDisable is forbidden"),
    ("--http-proxy=false", "--http-proxy=false --privileged", "--privileged is forbidden"),
    ("--http-proxy=false", "--security-opt=label=disable", "label=disable is forbidden"),
    ("--http-proxy=false", "--ipc=host", "--ipc is forbidden"),
    ("Pull=never", "Pull=never\nNotify=healthy", "Notify=healthy is forbidden"),
    ("--host 127.0.0.1", "--host 0.0.0.0", "0.0.0.0 is forbidden"),
    ("# The caller's proxy would be handed on otherwise.\n", "", "has no comment"),
    ("After=network-online.target", "After=other.container", "names other.container"),
    ("Label=io.vllm-node.inputs=@INPUTS@\n", "", "hash of its inputs is missing"),
    ("Label=io.vllm-node.component=vllm\n", "", "its component is missing"),
    ("HealthCmd=", "#", "neither a HealthCmd nor a word why"),
    ("Requires=gpu-cdi-ready.service\n", "", "does not require gpu-cdi-ready.service"),
    ("# No User=:", "#", "neither a User nor a word why"),
    ("Network=host\n", "Network=host\nUser=root\nGroup=root\n", "User is root's"),
    ("Network=host\n", "Network=host\nUser=1000\n", "User without Group"),
    ("DropCapability=all\n", "DropCapability=all\nAddCapability=CAP_SYS_ADMIN\n", "CAP_SYS_ADMIN is not one that vllm needs"),
    ("Pull=never\n", "Pull=never\nEnvironment=HF_TOKEN=hf_x\n", "HF_TOKEN carries a secret"),
    ("Pull=never\n", 'Pull=never\nEnvironment="VLLM_API_KEY=a b"\n', "VLLM_API_KEY carries a secret"),
    ("--http-proxy=false", "--security-opt=seccomp=unconfined", "--security-opt is forbidden"),
    ("--http-proxy=false", "--pid=host", "--pid= is forbidden"),
    ("RestrictRealtime=true\n", "", "RestrictRealtime=true is missing"),
    ("CAP_SYS_MODULE ", "", "CapabilityBoundingSet="),
    ("LockPersonality=true\n", "LockPersonality=true\nIPAddressDeny=any\n", "cuts it off from the network"),
    ("LockPersonality=true\n", "LockPersonality=true\nPrivateTmp=true\n", "PrivateTmp does not go together with podman"),
    ("LockPersonality=true\n", "LockPersonality=true\nNoNewPrivileges=true\n", "NoNewPrivileges does not go together"),
]


@pytest.mark.parametrize(("good", "bad", "said"), BREAKS)
def test_a_broken_rule_is_told(good: str, bad: str, said: str) -> None:
    assert good in unit(CHAT)
    found = problems(unit(CHAT).replace(good, bad), images())
    assert any(said in problem for problem in found), found


def test_a_unit_without_a_health_command_says_why() -> None:
    assert problems(unit(DCGM), images()) == []
    found = problems(re.sub(r"# No HealthCmd=.*\n", "", unit(DCGM)), images())
    assert found == ["there is neither a HealthCmd nor a word why"]


def test_what_speaks_to_its_node_only_says_so() -> None:
    found = problems(unit(DCGM).replace("IPAddressDeny=any\n", ""), images())
    assert found == ["IPAddressDeny=any is missing"]


def test_the_exporter_is_an_administrator_only_for_profiling() -> None:
    with_counters = {}
    for path, text in rendered().items():
        if path.endswith("dcgm-exporter.container"):
            node = path.partition("/")[0]
            counters = rendered()[f"{node}/etc/vllm-node/dcgm-exporter/counters.csv"]
            with_counters[node] = "DCGM_FI_PROF_" in counters
            assert (values(parse(text), "Container", "AddCapability") == ["CAP_SYS_ADMIN"]) == with_counters[node]
    assert with_counters


def test_each_component_that_can_be_is_not_root() -> None:
    users = {
        component(parse(text)): values(parse(text), "Container", "User")
        for path, text in rendered().items()
        if path.endswith(".container")
    }
    assert {name for name, user in users.items() if not user} == {"vllm", "dcgm-exporter"}


SERVICE_UNIT = "node-a/etc/systemd/system/gpu-cdi-ready.service"


def test_the_service_that_describes_gpus_is_kept_to_what_it_does() -> None:
    assert service_problems(rendered()[SERVICE_UNIT]) == []


@pytest.mark.parametrize("key", SERVICE)
def test_a_service_with_more_freedom_is_told(key: str) -> None:
    text = rendered()[SERVICE_UNIT]
    assert [key in problem for problem in service_problems(re.sub(rf"^{key}=.*\n", "", text, flags=re.M))] == [True]
