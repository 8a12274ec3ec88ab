#!/usr/bin/python
"""One run of `vllm bench serve` on a node, for the cross-check of our own figures: begun, looked at, and collected."""

from __future__ import annotations

DOCUMENTATION = r"""
module: peer_run
short_description: Run vllm bench serve in a container of a pinned image, beside the server and not inside of it
description:
  - With O(state=begin) it writes the files below C(/run) and starts a transient unit, which ends by itself after
    O(limit_s). With O(state=look) it waits for up to O(wait_s) and tells whether the unit still runs. With
    O(state=collect) it ends the unit if it still runs, gives the result, and removes what it made. The action plugin
    C(benchmark) does all of that.
options:
  state: {type: str, required: true, choices: [begin, look, collect], description: What to do.}
  reference: {type: str, description: "The image: repository and digest. Needed for C(begin)."}
  words:
    type: list
    elements: str
    description:
      - Words after C(vllm bench serve). The files are in C(/peer), where the result is to be saved as C(result.json);
        the model is C(/model). Needed for C(begin).
  model: {type: str, description: Folder of the model, for its tokenizer. Needed for C(begin).}
  sent: {type: dict, default: {}, description: "Files of this node for the words to speak of, by their names there."}
  environment: {type: dict, default: {}, description: Further variables of the environment.}
  cpus: {type: str, default: "", description: Cores that it may use, as systemd's C(CPUAffinity=) has them.}
  limit_s: {type: int, default: 600, description: When the unit ends at the latest.}
  wait_s: {type: int, default: 10, description: How long C(look) waits.}
author: [vllm-node maintainers]
"""

RETURN = r"""
running: {description: Whether the unit still runs., type: bool, returned: always}
result: {description: "What it saved, less what it has of each token.", type: dict, returned: "for C(collect), if any"}
said: {description: Its last lines., type: str, returned: for C(collect)}
"""

import json
import os
import shutil
import subprocess

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

UNIT = "vllm-node-peer"
FOLDER = "/run/" + UNIT
POLL_S = 0.5
STOP_LIMIT_S = 30
LAST_LINES = 15
# It looks for nothing outside and keeps nothing: all that it may write is its folder and /tmp.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "NO_PROXY": "localhost,127.0.0.1",
    "HOME": "/tmp",  # noqa: S108 - the container's own
}
# One entry a request; what has one a token, and the texts, would be megabytes that nobody compares.
KEPT_LISTS = ("start_times", "latencies")


def begin(args):
    must_be_the_only(UNIT)
    with fresh_folder(FOLDER):
        bring(args["sent"], FOLDER)
        start(args)


def start(args):
    variables = ["--env=%s=%s" % pair for pair in sorted({**ENVIRONMENT, **args["environment"]}.items())]
    done = run(
        *unit_words(UNIT, args["limit_s"], STOP_LIMIT_S, args["cpus"]),
        *("--property=StandardOutput=file:" + os.path.join(FOLDER, "said"), "--property=StandardError=inherit"),
        *container_words(UNIT, STOP_LIMIT_S),
        *("--volume", args["model"] + ":/model:ro", "--volume", FOLDER + ":/peer:rw,Z", "--workdir=/peer", *variables),
        *("--entrypoint", "vllm", args["reference"], "bench", "serve", *args["words"]),
    )
    if done.returncode != 0:
        raise RuntimeError("vllm bench serve cannot be started: " + done.stderr.strip())


def collect():
    end(UNIT, STOP_LIMIT_S)
    # A podman that was killed has not removed its container.
    run("podman", "rm", "--force", "--ignore", UNIT)
    found = {"said": last_lines()}
    try:
        with open(os.path.join(FOLDER, "result.json"), encoding="utf-8") as handle:
            found["result"] = compact(json.load(handle))
    except (OSError, ValueError, AttributeError):
        pass  # what it said is all there is
    shutil.rmtree(FOLDER, ignore_errors=True)
    return found


def last_lines():
    try:
        with open(os.path.join(FOLDER, "said"), encoding="utf-8", errors="replace") as handle:
            return "\n".join(handle.read().splitlines()[-LAST_LINES:])
    except FileNotFoundError:
        return ""


def compact(result):
    return {name: value for name, value in result.items() if name in KEPT_LISTS or not isinstance(value, list)}


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "required": True, "choices": ["begin", "look", "collect"]},
            "reference": {"type": "str"},
            "words": {"type": "list", "elements": "str"},
            "model": {"type": "str"},
            "sent": {"type": "dict", "default": {}},
            "environment": {"type": "dict", "default": {}},
            "cpus": {"type": "str", "default": ""},
            "limit_s": {"type": "int", "default": 600},
            "wait_s": {"type": "int", "default": 10},
        },
        required_if=[("state", "begin", ("reference", "words", "model"))],
    )
    args = module.params
    try:
        if args["state"] == "begin":
            begin(args)
            module.exit_json(changed=False, running=True)
        if args["state"] == "collect":
            module.exit_json(changed=False, running=False, **collect())
        module.exit_json(changed=False, running=runs_on(UNIT, args["wait_s"], POLL_S))
    except OSError as error:
        module.fail_json(msg="%s: %s" % (FOLDER, error))
    except (RuntimeError, subprocess.SubprocessError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
