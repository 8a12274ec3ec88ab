"""The role `gateway` in a real play on this machine: what it stages, what it tells, and the certificate's authority."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.node_code import ROOT
from vllm_node.gateway import keys
from vllm_node.lab import pki

KEY = "a-key-that-nobody-else-may-ever-see-anywhere"
PLAY = [
    {
        "name": "Gateway",
        "hosts": "gpu_nodes",
        "gather_facts": False,
        "tasks": [
            {"name": "Role", "ansible.builtin.include_role": {"name": "gateway", "tasks_from": "stage.yml"}},
            {"name": "Made", "gateway_certificate": {"state_dir": "{{ folder }}/state", "folder": "{{ folder }}/tls", "owner": 0, "names": ["gpu1"], "state": "made"}},
            {"name": "Kept", "ansible.builtin.copy": {"content": "{{ _staged_gateway_secrets }}", "dest": "{{ folder }}/secrets.json"}, "no_log": True},
            {"name": "Seen", "ansible.builtin.copy": {"content": "{{ _staged_gateway }}", "dest": "{{ folder }}/staged.json"}},
        ],
    }
]  # fmt: skip


def play(folder: Path, *words: str, **variables: Any) -> str:
    host = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_remote_tmp": str(folder / "remote"),
        "folder": str(folder),
        "vllm_instances": [{"name": "chat", "port": 8000, "gpus": [], "model": "/no/model"}],
        "images_lock": {"gateway": {"repository": "r/nginx", "tag": "v1", "digest": "sha256:" + "1" * 64}},
        "gateway_enabled": True,
        "gateway_clients": [{"name": "app", "key": KEY}],
        **variables,
    }
    (folder / "hosts.json").write_text(json.dumps({"gpu_nodes": {"hosts": {"gpu1": host}}}))
    (folder / "play.yml").write_text(json.dumps(PLAY))
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    done = subprocess.run(
        [program, "-i", str(folder / "hosts.json"), str(folder / "play.yml"), *words],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "XDG_STATE_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl on this machine")
def test_no_key_and_no_hash_is_told_and_the_authority_is_handed_over(tmp_path: Path) -> None:
    pki.make(tmp_path / "site", "gpu1")
    texts = {name: (tmp_path / "site" / name).read_text() for name in ("server.crt", "server.key")}
    tls = {"gateway_tls_certificate": texts["server.crt"], "gateway_tls_key": texts["server.key"]}
    told = play(tmp_path, "-vvv", "--diff", **tls)
    assert "gateway : Gateway is staged" in told
    for secret in (KEY, keys.digest(KEY), texts["server.key"].splitlines()[1]):
        assert secret not in told
        assert secret not in (tmp_path / "staged.json").read_text()

    hidden = {one["path"]: one for one in json.loads((tmp_path / "secrets.json").read_text())["files"]}
    assert set(hidden) == {"/etc/vllm-node/gateway/secrets/clients.json", "/etc/vllm-node/gateway/tls/server.key"}
    assert {(one["mode"], one["owner"], one["secret"], one["live"]) for one in hidden.values()} == {("0400", 101, True, True)}
    clients = hidden["/etc/vllm-node/gateway/secrets/clients.json"]["content"]
    assert keys.digest(KEY) in clients
    assert KEY not in clients

    staged = json.loads((tmp_path / "staged.json").read_text())
    units = [one for one in staged["files"] if not one["live"]]
    assert {Path(one["path"]).name for one in units} == {"start.sh", "gateway.container"}, "all else is taken up without a restart"
    assert f"image r/nginx@sha256:{'1' * 64}".split()[1] in str(units)
    assert staged["units"][0]["reload"]["folder"] == "/etc/vllm-node/gateway"

    kept = tmp_path / "home/vllm-node/gateway/gpu1-ca.crt"
    assert f"gpu1: clients trust the gateway by {kept}" in told
    assert kept.read_text() == (tmp_path / "tls/ca.crt").read_text()
    written = kept.stat().st_mtime_ns
    again = play(tmp_path, **tls)
    assert "changed=0" in again
    assert kept.stat().st_mtime_ns == written
