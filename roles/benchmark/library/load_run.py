#!/usr/bin/python
"""One stage of load on a node: begun as a transient unit, looked at, and collected."""

from __future__ import annotations

DOCUMENTATION = r"""
module: load_run
short_description: Run the load generator in a container of a pinned image, beside the server and not inside of it
description:
  - With O(state=begin) it unpacks the generator and the plan below C(/run) and starts a transient unit, which ends by
    itself after I(limit_s). With O(state=look) it waits for up to I(wait_s) and tells how far it is. With
    O(state=collect) it ends the unit if it still runs, gives the result, and removes what it made. The action plugin
    C(benchmark) does all of that, stage by stage.
options:
  state: {type: str, required: true, choices: [begin, look, collect], description: What to do.}
  reference: {type: str, description: "The image: repository and digest. Needed for C(begin)."}
  generator: {type: str, description: The generator's package as a tar file in base64. Needed for C(begin).}
  plan: {type: dict, description: The plan of the stage. Needed for C(begin).}
  files: {type: dict, default: {}, description: Further files beside the plan, by name.}
  cpus: {type: str, default: "", description: Cores that it may use, as systemd's C(CPUAffinity=) has them.}
  limit_s: {type: int, default: 3600, description: When the unit ends at the latest.}
  wait_s: {type: int, default: 10, description: How long C(look) waits.}
author: [vllm-node maintainers]
"""

RETURN = r"""
running: {description: Whether the unit still runs., type: bool, returned: always}
progress: {description: The generator's last word., type: dict, returned: for C(look)}
result: {description: Its C(result.json)., type: dict, returned: for C(collect), when there is one}
said: {description: Its last lines., type: str, returned: for C(collect)}
"""

import base64
import io
import json
import os
import shutil
import subprocess
import tarfile
import time

from ansible.module_utils.basic import AnsibleModule

UNIT = "vllm-node-load"
FOLDER = "/run/" + UNIT
POLL_S = 0.5
# The generator writes what it has once it is told to stop.
STOP_LIMIT_S = 60


def run(*argv, limit_s=60):
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=limit_s)


def is_running():
    return run("systemctl", "is-active", "--quiet", UNIT + ".service").returncode == 0


def begin(args):
    if is_running():
        raise RuntimeError("%s.service runs already on this node: two loads would measure each other" % UNIT)
    shutil.rmtree(FOLDER, ignore_errors=True)
    os.makedirs(os.path.join(FOLDER, "out"))
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(args["generator"]))) as tar:
        tar.extractall(FOLDER)  # noqa: S202 - made by the action plugin of this project
    for name, text in [("plan.json", json.dumps(args["plan"])), *args["files"].items()]:
        with open(os.path.join(FOLDER, os.path.basename(name)), "w", encoding="utf-8") as handle:
            handle.write(text)
    affinity = ["--property=CPUAffinity=" + args["cpus"]] if args["cpus"] else []
    done = run(
        *("systemd-run", "--quiet", "--collect", "--unit=" + UNIT, "--property=RuntimeMaxSec=%d" % args["limit_s"]),
        *("--property=TimeoutStopSec=%d" % STOP_LIMIT_S, "--property=LimitNOFILE=1048576", *affinity),
        "--property=StandardError=file:" + os.path.join(FOLDER, "progress.jsonl"),
        *("podman", "run", "--rm", "--name", UNIT, "--label", "io.vllm-node.component=load", "--pull=never"),
        *("--network=host", "--http-proxy=false", "--read-only", "--cap-drop=all", "--pids-limit=0", "--init"),
        *("--security-opt=no-new-privileges", "--log-driver=none", "--stop-timeout=%d" % (STOP_LIMIT_S - 10)),
        # The unit's limit of open files, and not podman's own, which some machines may not set.
        *("--ulimit=host", "--tmpfs=/tmp", "--volume", FOLDER + ":/load:rw,Z", "--workdir=/load"),
        *("--entrypoint", "python3", args["reference"]),
        *("-m", "vllm_node.load", "run", "--plan", "/load/plan.json", "--out", "/load/out"),
    )
    if done.returncode != 0:
        raise RuntimeError("the load cannot be started: " + done.stderr.strip())


def lines():
    try:
        with open(os.path.join(FOLDER, "progress.jsonl"), encoding="utf-8", errors="replace") as handle:
            return handle.read().splitlines()
    except FileNotFoundError:
        return []


def last_word():
    """What the generator told last; other programs may write into the same file."""
    for line in reversed(lines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return {}


def collect():
    if is_running():
        run("systemctl", "stop", UNIT + ".service", limit_s=STOP_LIMIT_S + 30)
    found = {"said": "\n".join(lines()[-15:])}
    try:
        with open(os.path.join(FOLDER, "out/result.json"), encoding="utf-8") as handle:
            found["result"] = json.load(handle)
    except (OSError, ValueError):
        pass  # what it said is all there is
    shutil.rmtree(FOLDER, ignore_errors=True)
    return found


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "required": True, "choices": ["begin", "look", "collect"]},
            "reference": {"type": "str"},
            "generator": {"type": "str"},
            "plan": {"type": "dict"},
            "files": {"type": "dict", "default": {}},
            "cpus": {"type": "str", "default": ""},
            "limit_s": {"type": "int", "default": 3600},
            "wait_s": {"type": "int", "default": 10},
        },
        required_if=[("state", "begin", ("reference", "generator", "plan"))],
    )
    args = module.params
    try:
        if args["state"] == "begin":
            begin(args)
            module.exit_json(changed=False, running=True)
        if args["state"] == "collect":
            module.exit_json(changed=False, running=False, **collect())
    except (RuntimeError, OSError, ValueError, tarfile.TarError) as error:
        module.fail_json(msg=str(error))
    end = time.monotonic() + args["wait_s"]
    running = is_running()
    while running and time.monotonic() < end:
        time.sleep(POLL_S)
        running = is_running()
    module.exit_json(changed=False, running=running, progress=last_word())


if __name__ == "__main__":
    main()
