"""`vllm bench serve` out of the lab's vLLM, for tests that compare with it: no node and no container is needed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_node.paths import cache_dir

# The lab's packages are for this one.
PYTHON = "python3.11"
_MAIN = "from vllm.entrypoints.cli.main import main; main()"
_RESULT = "result.json"
_LIMIT_S = 600
MISSING = "the lab's vLLM or its model is not in the cache (vllm-node lab up makes them), or python3.11 is missing"


@dataclass(frozen=True)
class Peer:
    """A folder of site-packages with vLLM, and a model whose tokenizer it may use."""

    site_packages: Path
    model: Path

    def run(self, folder: Path, words: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The result of a run with these words after `vllm bench serve`, which have to save it as `result.json`."""
        known = {"PYTHONPATH": str(self.site_packages), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        done = subprocess.run(
            [PYTHON, "-c", _MAIN, "bench", "serve", *words],
            cwd=folder,
            env={**os.environ, **known, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
        )
        if done.returncode:
            raise RuntimeError(f"vllm bench serve failed:\n{(done.stdout + done.stderr)[-3000:]}")
        found: dict[str, Any] = json.loads((folder / _RESULT).read_text())
        return found


def installed() -> Peer | None:
    """The newest in the cache; None where something is `MISSING`."""
    packages = sorted(cache_dir().glob("vllm-*/site-packages"), key=lambda path: path.stat().st_mtime)
    models = sorted(cache_dir().glob("model-*/tiny"), key=lambda path: path.stat().st_mtime)
    if not packages or not models or shutil.which(PYTHON) is None:
        return None
    return Peer(packages[-1], models[-1])
