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
  sent: {type: dict, default: {}, description: "Files of this node to be put beside the plan, by their names there."}
  cpus: {type: str, default: "", description: Cores that it may use, as systemd's C(CPUAffinity=) has them.}
  limit_s: {type: int, default: 3600, description: When the unit ends at the latest.}
  wait_s: {type: int, default: 10, description: How long C(look) waits.}
author: [vllm-node maintainers]
"""

RETURN = r"""
running: {description: Whether the unit still runs., type: bool, returned: always}
progress: {description: The generator's last word., type: dict, returned: for C(look)}
result: {description: Its C(result.json)., type: dict, returned: for C(collect), when there is one}
pages: {description: "The server's pages of metrics, gzip in base64.", type: str, returned: for C(collect), or no_pages}
no_pages: {description: Why there are no pages., type: str, returned: for C(collect), or pages}
said: {description: Its last lines., type: str, returned: for C(collect)}
"""

import base64
import io
import json
import os
import shutil
import subprocess
import tarfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.load_unit import (
    bring,
    container_words,
    end,
    fresh_folder,
    must_be_the_only,
    run,
    runs_on,
    unit_words,
)

UNIT = "vllm-node-load"
FOLDER = "/run/" + UNIT
POLL_S = 0.5
# The generator writes what it has once it is told to stop.
STOP_LIMIT_S = 60
# An hour of pages is about half of that. All of it goes through the memory of both sides, several times over.
MOST_PAGES_BYTES = 32 * 1024 * 1024


def begin(args):
    must_be_the_only(UNIT)
    # Requests may be somebody's own.
    with fresh_folder(FOLDER):
        prepare(args)
        start(args)


def prepare(args):
    os.mkdir(os.path.join(FOLDER, "out"))
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(args["generator"]))) as tar:
        tar.extractall(FOLDER)  # noqa: S202 - made by the action plugin of this project
    with open(os.path.join(FOLDER, "plan.json"), "w", encoding="utf-8") as handle:
        json.dump(args["plan"], handle)
    bring(args["sent"], FOLDER)


def start(args):
    done = run(
        *unit_words(UNIT, args["limit_s"], STOP_LIMIT_S, args["cpus"]),
        "--property=StandardError=file:" + os.path.join(FOLDER, "progress.jsonl"),
        *container_words(UNIT, STOP_LIMIT_S),
        *("--volume", FOLDER + ":/load:rw,Z", "--workdir=/load", "--entrypoint", "python3", args["reference"]),
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
    end(UNIT, STOP_LIMIT_S)
    found = {"said": "\n".join(lines()[-15:])}
    try:
        with open(os.path.join(FOLDER, "out/result.json"), encoding="utf-8") as handle:
            found["result"] = json.load(handle)
    except (OSError, ValueError):
        pass  # what it said is all there is
    found.update(pages())
    shutil.rmtree(FOLDER, ignore_errors=True)
    return found


def pages():
    """What the generator kept of the server's metrics; a node without Prometheus has nothing else."""
    path = os.path.join(FOLDER, "out/metrics.jsonl.gz")
    try:
        size = os.path.getsize(path)
        if size > MOST_PAGES_BYTES:
            limits = (size >> 20, MOST_PAGES_BYTES >> 20)
            return {"no_pages": "the pages of metrics come to %d MiB, and at most %d are brought back" % limits}
        with open(path, "rb") as handle:
            return {"pages": base64.b64encode(handle.read()).decode()}
    except OSError:
        return {"no_pages": "the generator kept no pages of metrics"}


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "required": True, "choices": ["begin", "look", "collect"]},
            "reference": {"type": "str"},
            "generator": {"type": "str"},
            "plan": {"type": "dict"},
            "sent": {"type": "dict", "default": {}},
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
    except OSError as error:
        module.fail_json(msg="%s: %s" % (FOLDER, error))
    except (RuntimeError, ValueError, tarfile.TarError, subprocess.SubprocessError) as error:
        module.fail_json(msg=str(error))
    running = runs_on(UNIT, args["wait_s"], POLL_S)
    module.exit_json(changed=False, running=running, progress=last_word())


if __name__ == "__main__":
    main()
