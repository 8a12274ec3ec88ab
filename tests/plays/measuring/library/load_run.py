#!/usr/bin/python
"""As the module of the role: the real generator, in a session of its own where a node has a unit."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

FOLDER = Path(os.environ["MEASURING"])
PID = FOLDER / "pid"


def running() -> bool:
    """A generator that has ended is a zombie of init's, or gone."""
    try:
        return PID.exists() and Path(f"/proc/{PID.read_text()}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def begin(args: dict[str, Any]) -> None:
    (FOLDER / "out").mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(args["generator"]))) as tar:
        tar.extractall(FOLDER, filter="data")
    (FOLDER / "plan.json").write_text(json.dumps(args["plan"]))
    for name, path in args["sent"].items():
        shutil.copyfile(path, FOLDER / name)
    words = [sys.executable, "-m", "vllm_node.load", "run", "--plan", "plan.json", "--out", "out"]
    with (FOLDER / "progress.jsonl").open("w") as said:
        # It may not hold on to the pipes of this module, whose end Ansible waits for.
        nothing = subprocess.DEVNULL
        process = subprocess.Popen(words, cwd=FOLDER, stdin=nothing, stdout=nothing, stderr=said, start_new_session=True)
    PID.write_text(str(process.pid))


def last_word() -> dict[str, Any]:
    found = [json.loads(line) for line in (FOLDER / "progress.jsonl").read_text().splitlines() if line.startswith("{")]
    return found[-1] if found else {}


def collect() -> dict[str, Any]:
    if running():
        os.kill(int(PID.read_text()), signal.SIGTERM)
    while running():
        time.sleep(0.05)
    found: dict[str, Any] = {"said": (FOLDER / "progress.jsonl").read_text()}
    if (FOLDER / "out/result.json").exists():
        found["result"] = json.loads((FOLDER / "out/result.json").read_text())
    if (FOLDER / "out/metrics.jsonl.gz").exists():
        found["pages"] = base64.b64encode((FOLDER / "out/metrics.jsonl.gz").read_bytes()).decode()
    shutil.rmtree(FOLDER)
    return found


def main() -> None:
    spec = {"state": {}, "reference": {}, "generator": {}, "plan": {"type": "dict"}, "cpus": {}, "limit_s": {"type": "int"}}
    module = AnsibleModule({**spec, "sent": {"type": "dict", "default": {}}})
    state = module.params["state"]
    if state == "begin":
        begin(module.params)
        module.exit_json(running=True)
    if state == "collect":
        module.exit_json(running=False, **collect())
    # Shorter looks than on a node, so that a test takes seconds.
    end = time.monotonic() + 1
    while running() and time.monotonic() < end:
        time.sleep(0.05)
    module.exit_json(running=running(), progress=last_word())


if __name__ == "__main__":
    main()
