"""Trust policy, registries' configuration and dnf, as the node has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.node_code import utils
from tests.unit.role_code import on_path, program

supply = utils("snapshot_supply")
host_code = utils("snapshot_host")


def node(root: Path, **files: str) -> Any:
    for name, text in files.items():
        path = root / supply.__dict__.get(name, (name,))[-1].lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return host_code.Host(root=str(root))


POLICY = {
    "default": [{"type": "insecureAcceptAnything"}],
    "transports": {
        "docker": {"registry.vendor.example": [{"type": "signedBy", "keyData": "c2VjcmV0"}]},
        "docker-daemon": {"": [{"type": "insecureAcceptAnything"}]},
    },
}


def test_of_a_policy_the_kinds_of_its_rules_are_kept_and_nothing_else(tmp_path: Path) -> None:
    found = supply.probe(node(tmp_path, POLICIES=json.dumps(POLICY)))["policy"]
    assert found == {
        "path": "/etc/containers/policy.json",
        "rules": {
            "default": ["insecureAcceptAnything"],
            "docker": {"registry.vendor.example": ["signedBy"]},
            "docker-daemon": {"": ["insecureAcceptAnything"]},
        },
        "error": None,
    }


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "Expecting"),
        ("[]", "list"),
        ("{}", "it has no 'default'"),
        ('{"default": []}', "empty list"),
        ('{"default": [{}]}', "it has no 'type'"),
        ('{"default": [{"type": "reject"}], "transports": {"docker": []}}', "items"),
    ],
)
def test_a_policy_that_podman_refuses_is_told(tmp_path: Path, text: str, error: str) -> None:
    found = supply.policy(node(tmp_path, POLICIES=text))
    assert found["rules"] is None
    assert error in found["error"]


def test_no_policy_at_all_is_told_by_its_path(tmp_path: Path) -> None:
    assert supply.policy(node(tmp_path)) == {"path": None, "rules": None, "error": None}


def test_roots_own_policy_comes_first(tmp_path: Path) -> None:
    host = node(tmp_path, POLICIES=json.dumps(POLICY))
    own = tmp_path / "root/.config/containers/policy.json"
    own.parent.mkdir(parents=True)
    own.write_text('{"default": [{"type": "reject"}]}')
    assert supply.policy(host)["rules"] == {"default": ["reject"]}


def test_registries_come_in_the_order_in_which_they_count(tmp_path: Path) -> None:
    folder = tmp_path / "etc/containers/registries.conf.d"
    folder.mkdir(parents=True)
    for name in ("90-b.conf", "10-a.conf", "readme.txt"):
        (folder / name).write_text(name)
    found = supply.registries(node(tmp_path, REGISTRIES="main"))
    assert [each["text"] for each in found] == ["main", "10-a.conf", "90-b.conf"]


@pytest.mark.parametrize(
    ("config", "heeded"), [(None, False), ("[main]\nenabled = 1\n", True), ("[main]\n", True), ("[main]\nEnabled = no\n", False)]
)
def test_version_locks_are_heeded_where_the_plugin_is_on(tmp_path: Path, config: str | None, heeded: bool) -> None:
    host = node(tmp_path)
    program(tmp_path / "usr/bin", "dnf")
    if config is not None:
        file = tmp_path / "etc/dnf/plugins/versionlock.conf"
        file.parent.mkdir(parents=True)
        file.write_text(config)
    found = supply.dnf(host)
    assert found["path"] == "/usr/bin/dnf"
    assert found["version_locks"] is heeded


def test_a_node_without_dnf_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(monkeypatch, tmp_path / "nothing")
    assert supply.dnf(node(tmp_path)) is None
