"""A benchmark of a lab node with real vLLM: what it leaves behind is a document, and nothing on the node."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.labs import Nodes
from tests.real.load import some_load
from vllm_node.bench.report import document
from vllm_node.lab.node import Spec
from vllm_node.paths import project_root

pytestmark = pytest.mark.real
NAME = "measured"
# Pass, fail, or that it does not say: how fast a lab is nobody knows, and a busy one voids its own run.
VERDICTS = {0: "pass", 7: "fail", 8: "insufficient"}


@pytest.fixture(scope="module")
def measured(nodes: Nodes) -> Iterator[Nodes]:
    """A node that serves."""
    nodes.make(Spec(NAME, podman="5.8"))
    run = nodes.run("up", limit=NAME)
    assert run.code == 0, run.document
    yield nodes
    nodes.lab.remove(NAME)


def bench(nodes: Nodes, output: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document of a run."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "vllm_node", "bench", NAME, "-i", "inventories/lab", "--json"),
            *("--workload", "smoke", "--output", str(output), *words),
        ],
        cwd=project_root(),
        env=nodes.environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found["hosts"][NAME] | {"said": done.stdout + done.stderr}


def test_a_run_is_judged_and_leaves_a_document_and_nothing_else(measured: Nodes, tmp_path: Path) -> None:
    before = measured.tree(NAME)
    code, host = bench(measured, tmp_path, "--rate", "1", "--duration", "20")
    assert code in VERDICTS, host
    run = document.read(next(Path(path) for path in host["reports"] if path.endswith("run.json")))
    assert run["verdict"]["verdict"] == VERDICTS[code]
    assert [one["check"] for one in run["correctness"] if one["outcome"] == "fail"] == []
    (step,) = run["steps"]
    (stage,) = step["repeats"]
    assert stage["client"]["counts"]["offered"] > 0
    assert stage["server"]["source"] == "prometheus"
    assert stage["server"]["refused"] is None
    assert run["provenance"]["vllm"]["version"]
    assert {Path(path).suffix for path in host["reports"]} == {".json", ".md", ".html"}
    # The node is as it was, and warnings are told again.
    assert measured.tree(NAME) == before
    assert measured.shell(NAME, "systemctl is-active vllm-node-load || true").strip() == "inactive"
    assert measured.shell(NAME, "ls -d /run/vllm-node-load 2>/dev/null || true") == ""
    with measured.tunnel(NAME, 9093) as url, urllib.request.urlopen(f"{url}/api/v2/silences", timeout=30) as answer:
        silences = json.load(answer)
    assert [one["status"]["state"] for one in silences] == ["expired"]


def test_an_instance_that_serves_others_is_left_alone(measured: Nodes, tmp_path: Path) -> None:
    with measured.tunnel(NAME, 8000) as url:
        load = threading.Thread(target=some_load, args=(url,))
        load.start()
        code, host = bench(measured, tmp_path, "--duration", "5")
        load.join()
    assert code == 4, host
    assert "serves others at the moment" in host["said"]
    assert list(tmp_path.iterdir()) == []
