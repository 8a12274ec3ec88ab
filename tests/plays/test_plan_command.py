"""`vllm-node plan` as a user calls it: the real playbook on this machine, and the page that a real vLLM once showed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.metrics_pages import VLLM_PAGE
from tests.unit.node_code import ROOT
from tests.unit.test_fit_held import ASKED, SPACE, tiny
from tests.unit.web import Site, nobody, serving
from vllm_node.exit_codes import ExitCode

pytestmark = pytest.mark.skipif(not VLLM_PAGE.exists(), reason="the page of a real vLLM is not beside this checkout")


def call(folder: Path, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    model = folder / "model"
    model.mkdir()
    instance = {"name": "chat", "gpus": [], "model": str(tiny(model)), "args": ASKED, "env": SPACE}
    host = {
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "ansible_remote_tmp": str(folder / "remote"),
        "node_snapshot_time_limit_s": 2,
        "vllm_instances": [{**instance, "port": int(url.rpartition(":")[2])}],
        "images_lock": {"vllm": {"tag": "v0.32.0-cpu"}},
    }
    inventory = folder / "hosts.json"
    inventory.write_text(json.dumps({"gpu_nodes": {"hosts": {"gpu1": host}}}))
    command = [sys.executable, "-m", "vllm_node", "plan", *words, "-i", str(inventory)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)


def test_an_instance_that_runs_is_held_against_its_plan(tmp_path: Path) -> None:
    models = json.dumps({"data": [{"id": "tiny", "max_model_len": 2048}]})
    pages = {
        "/metrics": (200, VLLM_PAGE.read_text()),
        "/v1/models": (200, models),
        "/version": (200, json.dumps({"version": "0.32.0"})),
    }
    with serving(Site(pages=pages)) as site:
        done = call(tmp_path, site.url, "gpu1", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"] == ExitCode.OK, done.stdout + done.stderr
    (plan,) = document["hosts"]["gpu1"]["plans"]
    assert plan["verdict"] == "fits"
    found: dict[str, dict[str, Any]] = {one["name"]: one for one in plan["held"]}
    assert found["kv_tokens"]["seen"] == 524288
    assert [found[name]["close"] for name in ("kv_tokens", "blocks", "block_size", "full_requests")] == [True] * 4
    assert found["max_model_len"]["seen"] == 2048


def test_an_instance_that_does_not_run_is_planned_all_the_same(tmp_path: Path) -> None:
    done = call(tmp_path, nobody(), "gpu1", "chat")
    assert done.returncode == ExitCode.OK
    assert "gpu1, chat: FITS: " in done.stdout
    assert "held against" not in done.stdout
