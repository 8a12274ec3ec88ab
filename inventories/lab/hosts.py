#!/usr/bin/env python3
"""Inventory of the running lab (VLLM_NODE_LAB, or this checkout's own): prints what `vllm-node lab up` recorded."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import hashlib

from vllm_node.paths import project_root, state_dir

name = os.environ.get("VLLM_NODE_LAB") or "lab-" + hashlib.sha256(str(project_root()).encode()).hexdigest()[:4]
recorded = state_dir() / "labs" / name / "inventory.json"
if not recorded.exists():
    sys.exit(f"there is no lab {name}: `vllm-node lab up` makes it")
print(recorded.read_text())  # noqa: T201 - that is what an inventory script does
