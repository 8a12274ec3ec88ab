"""The action plugins in a real ansible-playbook run on this machine, which changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.factories import changed, snapshot, variables
from tests.unit.node_code import ROOT

PLAY: dict[str, Any] = {
    "hosts": "all",
    "gather_facts": False,
    "tasks": [
        {"preflight": {"snapshot": "{{ node }}"}, "register": "found", "ignore_errors": True},
        {"ansible.builtin.copy": {"content": "{{ found | to_json }}", "dest": "{{ answer }}"}},
    ],
}


def play(
    folder: Path, play: dict[str, Any], values: dict[str, Any], *options: str
) -> subprocess.CompletedProcess[str]:
    (folder / "play.yml").write_text(json.dumps([play]))
    given = {
        "ansible_python_interpreter": sys.executable,
        "ansible_connection": "local",
        "ansible_remote_tmp": str(folder / "remote"),
        **values,
    }
    (folder / "inventory.json").write_text(json.dumps({"all": {"hosts": {"gpu1": given}}}))
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "ansible",
            "playbook",
            "-i",
            folder / "inventory.json",
            *options,
            folder / "play.yml",
        ],
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_LOCAL_TEMP": str(folder / "tmp"),
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def judged(folder: Path, values: dict[str, Any], node: dict[str, Any] | None = None) -> dict[str, Any]:
    """Answer of the plugin for a site with these variables."""
    answer = folder / "answer.json"
    site = {**variables(), "grafana_admin_password": "s3cret", **values, "answer": str(answer)}
    done = play(folder, PLAY, {**site, "node": node or snapshot()})
    assert answer.exists(), done.stdout + done.stderr
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def test_a_healthy_node_passes(tmp_path: Path) -> None:
    found = judged(tmp_path, {"unrelated": "{{ this_is_defined_nowhere }}"})
    assert found["findings"] == []
    assert found["failed"] is False
    assert found["changed"] is False
    assert found["msg"] == "gpu1: preflight found nothing to complain about."


def test_findings_of_variables_and_node_come_together(tmp_path: Path) -> None:
    values = {
        "prometheus_prot": 9091,
        "prometheus_port": "soon",
        "grafana_admin_password": "{{ vault_of_nobody }}",
        "preflight_ignore": ["cgroup.version"],
    }
    found = judged(
        tmp_path, values, changed(changed(snapshot(), "models/0/exists", False), "cgroup/version", 1)
    )
    levels = {(each["id"], each["level"]) for each in found["findings"]}
    assert levels == {
        ("input.missing", "fail"),
        ("input.type", "fail"),
        ("input.unknown", "fail"),
        ("model.missing", "fail"),
        ("cgroup.version", "warn"),
    }
    assert found["failed"] is True
    assert {each["host"] for each in found["findings"]} == {"gpu1"}
    assert "Did you mean prometheus_port?" in found["msg"]
    assert "vault_of_nobody" in found["msg"]


def test_values_are_resolved_as_ansible_would(tmp_path: Path) -> None:
    values = {
        "base": 8000,
        "vllm_instances": [{**variables()["vllm_instances"][0], "port": "{{ base + 1 }}"}],
    }
    taken = changed(snapshot(), "ports/0/port", 8001)
    found = judged(tmp_path, values, taken)
    assert [each["id"] for each in found["findings"]] == ["port.taken"]


@pytest.mark.parametrize("options", [(), ("--check",)])
def test_the_role_reads_this_machine_and_adds_the_skew(tmp_path: Path, options: tuple[str, ...]) -> None:
    answer = tmp_path / "answer.json"
    kept = tmp_path / "state/as-found.json"
    copy = {
        "ansible.builtin.copy": {"content": "{{ node_snapshot_result | to_json }}", "dest": str(answer)},
        "check_mode": False,
    }
    done = play(
        tmp_path,
        {"hosts": "all", "gather_facts": False, "roles": ["node_snapshot"], "post_tasks": [copy]},
        {"node_snapshot_keep_as": str(kept), "node_snapshot_time_limit_s": 5},
        *options,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(answer.read_text())
    assert found["changed"] is True
    assert kept.exists() is (options == ())
    assert found["snapshot"]["schema"] == 1
    assert found["snapshot"]["time"]["skew_s"] == 0.0
    assert found["snapshot"]["cpu"]["count"] == os.cpu_count()
