"""What a lab records of itself: found again by name, an inventory for Ansible, and nothing for other users."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vllm_node.lab import lab as labs
from vllm_node.lab.errors import LabError
from vllm_node.lab.lab import Lab, Member
from vllm_node.lab.node import Spec
from vllm_node.lab.process import Process

KEY = "ssh-ed25519 AAAA n1"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    image = {"repository": "vllm/vllm-openai", "tag": "v1", "digest": "sha256:00", "architecture": "amd64"}
    members = [Member(Spec("n1"), 0, KEY, Process(1, 2)), Member(Spec("old", podman="4.3"), 3, "")]
    made = Lab("lab-x", "10.213.7.0/24", "pass-word", {"vllm": image}, Process(3, 4), members)
    (made.folder / "registry/tls").mkdir(parents=True)
    (made.folder / "registry/tls/ca.crt").write_text("PEM")
    return made


def test_a_lab_is_found_as_it_was_saved(lab: Lab) -> None:
    assert Lab.find("lab-x") is None
    lab._save()
    assert Lab.find("lab-x") == lab
    assert labs.names() == ["lab-x"]
    assert Lab.find("lab-y") is None


def test_what_it_records_is_for_its_user_only_and_whole(lab: Lab) -> None:
    lab._save()
    for name in ("state.json", "inventory.json"):
        assert (lab.folder / name).stat().st_mode & 0o777 == 0o600
    assert not list(lab.folder.glob(".*"))


def test_the_inventory_is_what_ansible_and_the_roles_expect(lab: Lab) -> None:
    lab._save()
    inventory = json.loads((lab.folder / "inventory.json").read_text())
    assert inventory["gpu_nodes"] == {"hosts": ["n1", "old"]}
    hosts = inventory["_meta"]["hostvars"]
    assert hosts == {"n1": {"ansible_host": "10.213.7.11"}, "old": {"ansible_host": "10.213.7.14"}}
    variables = inventory["all"]["vars"]
    assert variables["images_lock"]["vllm"]["repository"] == "registry.lab.internal:5000/vllm/vllm-openai"
    assert variables["images_lock"]["vllm"]["digest"] == "sha256:00"
    assert variables["container_host_registry_address"] == "registry.lab.internal:5000"
    assert variables["container_host_registry_ca"] == "PEM"
    assert variables["container_host_registry_password"] == "pass-word"
    assert "StrictHostKeyChecking=yes" in variables["ansible_ssh_common_args"]
    assert lab.images_lock["vllm"]["repository"] == "vllm/vllm-openai"


def test_host_keys_are_pinned_and_a_node_that_is_being_made_has_none(lab: Lab) -> None:
    lab._save()
    assert (lab.folder / "known_hosts").read_text() == f"10.213.7.11 {KEY}\n"


def test_ssh_reaches_a_node_by_its_address_and_an_unknown_one_not_at_all(lab: Lab) -> None:
    words = lab.ssh("n1")
    assert words[0] == "ssh"
    assert words[-1] == "root@10.213.7.11"
    assert str(lab.folder / "id") in words
    with pytest.raises(LabError, match="no node n9; it has: n1, old"):
        lab.ssh("n9")


def test_a_lab_runs_only_while_all_of_it_runs(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = {1, 3}
    monkeypatch.setattr(Process, "alive", property(lambda process: process.pid in alive))
    assert not lab.running  # the node that was never booted
    lab.members.pop()
    running = [lab.running]
    alive.remove(3)
    running.append(lab.running)
    assert running == [True, False]


@pytest.mark.parametrize("name", ["", "Lab", "9lab", "lab_x", "thirteen-char", "../x"])
def test_a_bad_name_is_refused_before_anything_is_made(lab: Lab, name: str, tmp_path: Path) -> None:
    with pytest.raises(LabError, match="a lab's name"):
        Lab.up(name, [])
    assert not (tmp_path / "cache").exists()


def test_the_name_of_a_checkout_is_a_good_one_and_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = labs.default_name()
    assert labs._NAME.fullmatch(mine)
    monkeypatch.setattr(labs, "project_root", lambda: Path("/elsewhere"))
    assert labs.default_name() != mine


def test_a_node_of_another_kind_is_not_taken_for_the_one_asked_for(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab._save()
    monkeypatch.setattr(Lab, "running", property(lambda _: True))
    with pytest.raises(LabError, match="node n1 of lab lab-x is another kind"):
        Lab.up("lab-x", [Spec("n1", podman="5.8")])
