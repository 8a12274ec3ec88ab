#!/usr/bin/python
"""Ansible module: what vLLM said of its settings when it started. See DOCUMENTATION below."""

from __future__ import annotations

DOCUMENTATION = r"""
module: instance_start
short_description: Tells the lines with which a vLLM instance named its settings at its last start
description:
  - Reads the journal of the instance's unit, of the run that goes on now, and nothing else. Changes nothing.
  - What could not be read is V(null), with the reason in RV(start.unseen).
options:
  instance: {description: "Name of the instance, as in C(vllm_instances).", type: str, required: true}
  gpus: {description: Whether nvidia-smi is asked which GPUs there are., type: bool, default: true}
  time_limit_s: {description: Limit for each question., type: float, default: 20}
author: [vllm-node maintainers]
"""

RETURN = r"""
start:
  description:
    - "C(arguments): what the command line set otherwise than vLLM does by itself. C(engine): the configuration of the
      engine, with vLLM's version. C(chunked): the line on chunked prefill. Each is a line of the journal."
    - "C(devices): GPUs as the module C(node_snapshot) lists them."
    - "C(unseen): a list of C(what) and C(why)."
  type: dict
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.snapshot_gpu import probe_devices
from ansible.module_utils.snapshot_host import Host

# By these words the lines are known in all releases from 0.8 on.
LINES = {
    "arguments": "non-default args: ",
    "engine": "Initializing a V1 LLM engine",
    "chunked": "Chunked prefill is enabled with max_num_batched_tokens=",
}


def invocation(host, unit):
    """(id of the run that goes on, or None; why there is none)."""
    answer = host.run("systemctl", "show", "--property=ActiveState,InvocationID", unit)
    if not answer.ok:
        return None, "systemctl show: " + answer.trouble
    said = dict(line.partition("=")[::2] for line in answer.out.splitlines())
    if said.get("ActiveState") not in ("active", "activating"):
        return None, "%s is %s" % (unit, said.get("ActiveState") or "not there")
    if not said.get("InvocationID"):
        return None, "systemd names no run of " + unit
    return said["InvocationID"], None


def lines_of(text):
    """{arguments, engine, chunked}: the last line of each kind, None where there is none."""
    found = dict.fromkeys(LINES)
    for line in text.splitlines():
        for kind, words in LINES.items():
            if words in line:
                found[kind] = line.strip()
    return found


def take(host, name, gpus):
    found = dict.fromkeys(LINES)
    run, why = invocation(host, "vllm-%s.service" % name)
    if run is not None:
        # The journal of a run of months is long: it is searched where it lies.
        words = ["journalctl", "--no-pager", "--output=cat", "--grep=" + "|".join(LINES.values())]
        answer = host.run(*words, "_SYSTEMD_INVOCATION_ID=" + run)
        # 1 is "nothing found".
        why = None if answer.rc in (0, 1) else "journalctl: " + answer.trouble
        if why is None:
            found = lines_of(answer.out)
    for kind in LINES:
        if found[kind] is None:
            host.unseen(kind, why or "its line is not in the journal of this run, which may have been cut")
    found["devices"] = probe_devices(host)["devices"] if gpus else None
    found["unseen"] = host.unseen_list()
    return found


def main():
    module = AnsibleModule(
        argument_spec={
            "instance": {"type": "str", "required": True},
            "gpus": {"type": "bool", "default": True},
            "time_limit_s": {"type": "float", "default": 20.0},
        },
        supports_check_mode=True,
    )
    host = Host(module.params["time_limit_s"])
    module.exit_json(changed=False, start=take(host, module.params["instance"], module.params["gpus"]))


if __name__ == "__main__":
    main()
