"""Our figures beside those of `vllm bench serve` against real vLLM on a lab node, for a machine that does nothing else.

Run by `make bench`. The server has one core and the clients the other one; on a busy machine the server itself varies
by more than the clients differ, and the run says so.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.labs import Nodes
from tests.real.load import INSTANCE
from vllm_node.bench.report import document
from vllm_node.lab.node import Spec

NAME = "crossed"
PINNED = {**INSTANCE, "env": {**INSTANCE["env"], "VLLM_CPU_OMP_THREADS_BIND": "0"}}


def test_another_client_says_the_same(nodes: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes.make(Spec(NAME, podman="5.8"))
    run = nodes.run("up", limit=NAME, variables={"vllm_instances": [PINNED]})
    assert run.code == 0, run.document
    (tmp_path / "cores.yml").write_text(json.dumps({"all": {"hosts": {NAME: {"benchmark_cpus": "1"}}}}))
    words = ["--workload", "smoke", "--approved", "--rate", "4", "--duration", "20", "--lead-in", "2", "--cross-check"]
    inventory = ("-i", "inventories/lab", "-i", str(tmp_path / "cores.yml"))
    bench = (sys.executable, "-m", "vllm_node", "bench", NAME, *inventory, "--json", "--output", str(tmp_path))
    nodes.program(*bench, *words, limit_s=900)
    found: dict[str, Any] = dict(document.read(next(tmp_path.rglob("run.json")))["cross_check"])
    with capsys.disabled():
        sys.stdout.write(f"\ncross-check: agrees {found['agrees']}: {found['why']}\n")
        for one in found["figures"]:
            sys.stdout.write(f"  {one['name']:20} ours {one['ours']} peer {one['peer']} ratio {one['ratio']}\n")
    nodes.lab.remove(NAME)
    counts = {one["name"]: one["within"] for one in found["figures"] if one["name"].endswith("_tokens")}
    assert counts == {"prompt_tokens": True, "output_tokens": True}, found["why"]
    assert found["agrees"] is not False, found["why"]
    if found["agrees"] is None:
        pytest.skip(f"this machine is too busy to compare two clients on it: {found['why']}")
