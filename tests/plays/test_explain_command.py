"""`vllm-node explain` as a user calls it: the real playbook, with nodes that do not answer or run nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.unit.node_code import ROOT
from vllm_node.exit_codes import ExitCode

LOCAL = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable}
# Nobody listens on the port of TCP's own multiplexer.
AWAY = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_common_args": "-o ConnectTimeout=2"}
CHAT = {"name": "chat", "model": "/srv/models/chat", "gpus": ["0"], "port": 1, "profile": "interactive"}


def call(folder: Path, how: dict[str, Any], *words: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    host = {
        **how,
        "ansible_remote_tmp": str(folder / "remote"),
        "images_lock": {"vllm": {"tag": "v0.33.0"}},
        "vllm_instances": [CHAT, {**CHAT, "name": "other", "profile": "rag"}],
        "vllm_gpu_memory_gib": 80,
        **variables,
    }
    inventory = folder / "hosts.json"
    inventory.write_text(json.dumps({"gpu_nodes": {"hosts": {"gpu1": host}}}))
    command = [sys.executable, "-m", "vllm_node", "explain", "gpu1", *words, "-i", str(inventory)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_a_node_that_runs_nothing_is_explained_from_the_inventory(tmp_path: Path) -> None:
    done = call(tmp_path, LOCAL, "chat", "--json")
    assert done.returncode == ExitCode.OK, done.stderr
    (told,) = json.loads(done.stdout)["hosts"]["gpu1"]["explanations"]
    values = {row["flag"]: (row["value"], row["origin"]) for row in told["settings"]}
    assert values["max-num-seqs"] == (256, "profile interactive")
    assert values["gpu-memory-utilization"] == (0.92, "vLLM's default")
    assert told["running"] is None
    assert "version: " in told["silent"]


def test_a_node_that_does_not_answer_is_explained_all_the_same(tmp_path: Path) -> None:
    done = call(tmp_path, AWAY)
    assert done.returncode == ExitCode.OK, done.stderr
    assert done.stdout.count("the node does not answer") == 2
    assert "profile rag" in done.stdout


def test_offline_no_node_is_asked(tmp_path: Path) -> None:
    done = call(tmp_path, AWAY, "other", "--offline")
    assert done.returncode == ExitCode.OK, done.stderr
    assert done.stdout.count("the node was not asked") == 1
