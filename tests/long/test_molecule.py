"""Molecule's scenarios run on nodes that `vllm-node lab` makes and ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.labs import Nodes
from vllm_node.lab.lab import Lab
from vllm_node.paths import project_root

pytestmark = pytest.mark.node


@pytest.mark.parametrize(("scenario", "lab"), [("default", "molecule"), ("disconnected", "molecule-gap")])
def test_a_scenario_passes_and_leaves_no_lab(nodes: Nodes, scenario: str, lab: str) -> None:
    bin_folder = Path(sys.executable).parent
    done = subprocess.run(
        [bin_folder / "molecule", "test", "--scenario-name", scenario],
        cwd=project_root(),
        env={**os.environ, "NO_COLOR": "1", "PATH": f"{bin_folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    # A play without hosts is a success to molecule: bring-up, second run, verify and teardown have had a node.
    recaps = re.findall(r"^node1 .*ok=(\d+) +changed=(\d+) ", done.stdout, re.MULTILINE)
    (up, _), (_, again), (_, drift), (_, down) = ((int(ok), int(changed)) for ok, changed in recaps[-4:])
    assert (up > 30, again, drift, down > 0) == (True, 0, 0, True), recaps
    assert Lab.find(lab) is None
