"""Molecule's scenarios run on nodes that `vllm-node lab` makes and ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.labs import Nodes
from vllm_node.lab.lab import Lab
from vllm_node.paths import project_root

pytestmark = pytest.mark.node


def test_the_default_scenario_passes_and_leaves_no_lab(nodes: Nodes) -> None:
    bin_folder = Path(sys.executable).parent
    done = subprocess.run(
        [bin_folder / "molecule", "test", "--scenario-name", "default"],
        cwd=project_root(),
        env={**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    assert Lab.find("molecule") is None
