#!/usr/bin/python
"""One step of bringing the units of a node up: start what has to be started, then look at each unit."""

from __future__ import annotations

DOCUMENTATION = r"""
module: stack_step
short_description: Start the target and report what each unit does
description:
  - With I(begin) it reloads systemd where unit files are newer than what systemd knows, restarts the containers
    whose inputs are not the ones of their unit, and starts the target.
  - Then it asks each unit whether it is ready, for up to I(wait_s), and reports. The action plugin C(stack_up)
    repeats it.
  - When all are ready, the history of the node says so of its newest generation.
  - A unit with C(reload) is reloaded when a file of its folder is newer than what it says it has loaded; it goes on
    with the old configuration and is reported when it refuses the new one.
options:
  target: {type: str, required: true, description: Name of the target.}
  units: {type: list, elements: dict, required: true, description: "C(unit), C(ready), C(reload) and C(gpus) of each."}
  state_dir: {type: path, required: true, description: Folder of the manifest.}
  begin: {type: bool, default: false, description: Whether this is the first step.}
  wait_s: {type: int, default: 10, description: How long this step waits for units to become ready.}
author: [vllm-node maintainers]
"""

RETURN = r"""
states:
  description:
    - Unit → state (ready, loading or dead), detail, restarts, container.
    - log, the end of its journal, of a unit that is not ready.
    - phase, how far the start has come, of a vLLM instance that loads.
  type: dict
  returned: always
actions: {description: What was done to systemd and its units., type: list, returned: always}
"""

import concurrent.futures
import errno
import glob
import json
import os
import re
import subprocess
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gateway_door import ajar
from ansible.module_utils.loopback import SilentError, ask
from ansible.module_utils.node_generations import Store
from ansible.module_utils.node_manifest import Manifest
from ansible.module_utils.vllm_phases import phase

JOURNAL_LIMIT = "/etc/systemd/journald.conf.d/50-vllm-node.conf"
UNIT_FOLDER = "/etc/containers/systemd"
GENERATED = "/run/systemd/generator"
STORAGE = "/var/lib/containers/storage"
SOURCE = re.compile(r"^SourcePath=(.+)$", re.MULTILINE)
INPUTS = re.compile(r"^Label=io\.vllm-node\.inputs=(\S+)", re.MULTILINE)
PROPERTIES = ("LoadState", "ActiveState", "SubState", "NRestarts", "Result", "NeedDaemonReload", "InvocationID")
SILENT = "not listening yet"
PODMAN_EVENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ .* m=\+|conmon ")
# Of the journal: enough for the first traceback of a start to be seen above those that follow from it, and for the
# latest phase to be seen below what each worker writes; never more than fits into an answer.
MOST_LINES = 400
MOST_CHARACTERS = 64 * 1024
# Within this time a program has read its files again, or said that it cannot.
RELOAD_LIMIT_S = 15
# The first failure may be bad luck (a device that was not ready yet); a third is not.
FORGIVEN_RESTARTS = 2


def run(*argv, limit_s=60):
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 124, "", "%s did not end within %d s" % (argv[0], limit_s))


def show(units):
    """Properties of several units with one call: {unit: {property: value}}."""
    done = run("systemctl", "show", "-p", ",".join(("Id", *PROPERTIES)), *units)
    found = {}
    for block in done.stdout.strip().split("\n\n"):
        properties = dict(line.partition("=")[::2] for line in block.splitlines())
        found[properties.get("Id")] = properties
    return found


def quadlet_of(unit):
    return os.path.join(UNIT_FOLDER, unit[: -len(".service")] + ".container")


def newer_than_generated(unit):
    """Whether the Quadlet file changed after systemd last read it: true after an interrupted run as well."""
    try:
        return os.stat(quadlet_of(unit)).st_mtime > os.stat(os.path.join(GENERATED, unit)).st_mtime
    except OSError:
        return os.path.exists(quadlet_of(unit))


def orphans():
    """Generated units whose Quadlet file is gone: until a reload the target would start them again."""
    found = []
    for path in glob.glob(os.path.join(GENERATED, "*.service")):
        try:
            with open(path, encoding="utf-8") as handle:
                source = SOURCE.search(handle.read())
        except OSError:
            continue
        if source and os.path.dirname(source.group(1)) == UNIT_FOLDER and not os.path.exists(source.group(1)):
            found.append(os.path.basename(path))
    return found


def wanted_inputs(unit):
    try:
        with open(quadlet_of(unit), encoding="utf-8") as handle:
            match = INPUTS.search(handle.read())
    except OSError:
        return None
    return match.group(1) if match else None


def containers():
    """Running containers by name: {name: {id, inputs}}; RuntimeError when podman does not tell."""
    # Asking podman makes its storage; before the first container there is nothing to ask for.
    if not os.path.isdir(STORAGE):
        return {}
    done = run("podman", "ps", "--format", "json")
    if done.returncode != 0:
        raise RuntimeError("podman ps: " + (done.stderr.strip() or "exit code %d" % done.returncode))
    return {
        one["Names"][0]: {"id": one["Id"], "inputs": (one.get("Labels") or {}).get("io.vllm-node.inputs")}
        for one in json.loads(done.stdout or "[]")
    }


def journal_is_old():
    """Whether journald has not read the limit that was written for it: it reads its files when it starts only."""
    try:
        written = os.stat(JOURNAL_LIMIT).st_mtime
    except OSError:
        return False
    done = run("systemctl", "show", "--timestamp=unix", "-p", "ActiveEnterTimestamp", "--value", "systemd-journald")
    started = re.fullmatch(r"@(\d+)\s*", done.stdout)
    # In whole seconds, as systemd tells it: what was restarted in the second of the writing is not restarted for ever.
    return bool(started) and int(started.group(1)) < int(written)


def begin(target, units, manifest, dry):
    """Make systemd want the right thing; returns what was (or would be) done."""
    done = []
    known = show([target, *units])
    stale = [
        unit
        for unit in units
        if known.get(unit, {}).get("NeedDaemonReload") == "yes" or newer_than_generated(unit)
    ]
    unknown = [unit for unit in (target, *units) if known.get(unit, {}).get("LoadState") != "loaded"]
    if stale or unknown or orphans() or known.get(target, {}).get("NeedDaemonReload") == "yes":
        done.append("systemd reloaded")
        if not dry:
            result = run("systemctl", "daemon-reload")
            if result.returncode != 0:
                raise RuntimeError("systemctl daemon-reload: " + result.stderr.strip())
            known = show([target, *units])
            lost = [unit for unit in (target, *units) if known.get(unit, {}).get("LoadState") != "loaded"]
            if lost:
                raise RuntimeError("systemd does not know %s after a reload" % ", ".join(lost))
    if run("systemctl", "is-enabled", "--quiet", target).returncode != 0:
        done.append(target + " enabled")
        if not dry:
            manifest.add("units", target)
            run("systemctl", "enable", "--quiet", target)
    if journal_is_old():
        done.append("systemd-journald restarted")
        if not dry:
            # systemd keeps the streams of all units for it meanwhile.
            run("systemctl", "restart", "systemd-journald")
    running = containers()
    for unit in units:
        state = known.get(unit, {}).get("ActiveState")
        name = unit[: -len(".service")]
        wanted = wanted_inputs(unit)
        loops = known.get(unit, {}).get("SubState", "").startswith("auto-restart")
        changed = wanted and name in running and running[name]["inputs"] != wanted
        if (state == "failed" or loops or changed) and not dry:
            # What the unit did before it was mended is not held against it, nor is how often it was changed: the limit
            # of starts is for what starts again by itself.
            run("systemctl", "reset-failed", unit)
        if loops or changed:
            done.append(unit + " restarted")
            if not dry:
                run("systemctl", "restart", "--no-block", unit)
        elif state not in ("active", "activating", "reloading"):
            done.append(unit + " started")
            if not dry:
                run("systemctl", "start", "--no-block", unit)
    if known.get(target, {}).get("ActiveState") != "active":
        done.append(target + " started")
        if not dry:
            run("systemctl", "start", "--no-block", target)
    return done


def get(url, body=None):
    """(status, text) of a request on loopback; (0, reason) when nobody answers."""
    try:
        status, text = ask(url, 30, body)
    except SilentError as error:
        return 0, str(error)
    return status, text if status < 400 else text[:300]


def unanswered(reason):
    """Why there is no answer: a port that nobody has opened yet is what a start looks like, the rest is not."""
    return SILENT if reason == os.strerror(errno.ECONNREFUSED) else "no answer: " + reason


def vllm_is_ready(ready):
    """Whether the model is listed and one token was generated: a listening socket proves neither."""
    status, text = get(ready["url"] + "/v1/models")
    if status != 200:
        return unanswered(text) if status == 0 else "/v1/models answers %d" % status
    try:
        names = [model["id"] for model in json.loads(text)["data"]]
    except (ValueError, KeyError, TypeError):
        return "/v1/models answers something else than a list of models: does another program have the port?"
    if ready["model"] not in names:
        return "serves %s, not %s" % (", ".join(names), ready["model"])
    body = {"model": ready["model"], "prompt": "Hello", "max_tokens": 1}
    status, text = get(ready["url"] + "/v1/completions", body)
    if status != 200:
        return "a completion: " + unanswered(text) if status == 0 else "a completion answers %d: %s" % (status, text)
    try:
        return None if json.loads(text)["usage"]["completion_tokens"] >= 1 else "no token was generated"
    except (ValueError, KeyError, TypeError):
        return "a completion answers without a count of tokens: " + text[:300]


def not_ready(ready):
    """Why a unit is not ready yet, or None when it is."""
    if not ready:
        return None
    if ready["kind"] == "vllm":
        return vllm_is_ready(ready)
    if ready["kind"] == "gateway":
        return ajar(ready["address"], ready["port"])
    status, text = get(ready["url"])
    if status != 200:
        return unanswered(text) if status == 0 else "answers %d" % status
    if ready["kind"] == "metrics" and not re.search(r"^%s[{ ]" % ready["metric"], text, re.MULTILINE):
        return "answers, but without %s" % ready["metric"]
    return None


def newest(folder):
    """When something below a folder was last written, added or removed."""
    places = [folder]
    for base, folders, files in os.walk(folder):
        places += [os.path.join(base, name) for name in folders + files]
    return max(os.stat(place).st_mtime for place in places)


def loaded(reload):
    """(when the configuration was last loaded, whether the last attempt was successful), as the program tells it."""
    status, text = get(reload["url"])
    told = dict(re.findall(r"^%s_last_reload_(\w+) (\S+)$" % reload["metrics"], text, re.MULTILINE))
    if status != 200 or not {"success_timestamp_seconds", "successful"} <= told.keys():
        return None
    return float(told["success_timestamp_seconds"]), float(told["successful"]) == 1


def take_up(unit, reload, dry):
    """Make a program read its changed files: (why it is not ready, whether it was reloaded, whether it refused)."""
    now = loaded(reload)
    if now is None:
        return "does not say when it loaded its configuration", False, False
    if newest(reload["folder"]) <= now[0]:
        return None, False, False
    if dry:
        return "has not taken up %s yet" % reload["folder"], False, False
    done = run("systemctl", "reload", unit)
    if done.returncode != 0:
        return "cannot be reloaded: " + done.stderr.strip(), True, True
    end = time.monotonic() + RELOAD_LIMIT_S
    while time.monotonic() < end:
        after = loaded(reload)
        if after is not None and after[0] > now[0]:
            return None, True, False
        # After an earlier refusal the old verdict stands until the new one is there.
        if after is not None and now[1] and not after[1]:
            return "refuses %s and goes on with what it had" % reload["folder"], True, True
        time.sleep(0.2)
    return "was told to read %s again and did not within %d s" % (reload["folder"], RELOAD_LIMIT_S), True, True


def last_lines(unit, invocation=None):
    """The end of a unit's journal, of all its starts or of one; with what systemd says of it only for all."""
    words = ["journalctl", "--no-pager", "--output=cat", "--lines=%d" % MOST_LINES]
    words += ["_SYSTEMD_INVOCATION_ID=" + invocation] if invocation else ["--unit=" + unit]
    text = run(*words).stdout.strip()
    # A line that was cut in two says nothing.
    return text if len(text) <= MOST_CHARACTERS else text[-MOST_CHARACTERS:].partition("\n")[2]


def own_words(text):
    """The last line that the program itself wrote; podman reports its own events into the same journal."""
    lines = [line for line in text.splitlines() if line.strip() and not PODMAN_EVENT.match(line)]
    return lines[-1].strip() if lines else ""


def lost_gpus(container):
    """What nvidia-smi says in a container that cannot reach its GPUs any more, or None.

    A reload of systemd can take devices away from a running container, which then goes on until its next request.
    """
    done = run("podman", "exec", container, "nvidia-smi", "-L", limit_s=30)
    # 126 and 127: the image cannot run nvidia-smi, so nothing is known, and nothing is claimed.
    if done.returncode in (0, 126, 127):
        return None
    return (done.stdout + done.stderr).strip() or "nvidia-smi -L exited with %d" % done.returncode


def look_at(unit, entry, properties, dry=False):
    """State of one unit; one that runs with outdated files is reloaded."""
    restarts = int(properties.get("NRestarts") or 0)
    active = properties.get("ActiveState")
    state = {"state": "loading", "detail": "", "restarts": restarts}
    if active == "failed" or (restarts > FORGIVEN_RESTARTS and active != "active"):
        state["state"] = "dead"
        state["detail"] = "%s (%s), restarted %d times" % (active, properties.get("Result"), restarts)
        state["log"] = last_lines(unit)
        return state
    if active != "active":
        state["detail"] = "%s (%s)" % (active, properties.get("SubState"))
        if restarts:
            state["detail"] += ", restarted %d times" % restarts
            state["log"] = last_lines(unit)
        return state
    reason = not_ready(entry.get("ready"))
    if reason is None and entry.get("reload"):
        reason, state["reloaded"], refused = take_up(unit, entry["reload"], dry)
        if refused:
            return {**state, "state": "dead", "detail": reason, "log": last_lines(unit)}
    if reason is None:
        gone = lost_gpus(unit[: -len(".service")]) if entry.get("gpus") else None
        state["state"] = "dead" if gone else "ready"
        if gone:
            state["detail"] = "it answers, but its GPUs are gone"
            state["log"] = gone
        return state
    log = last_lines(unit, properties.get("InvocationID"))
    # After a restart it is the starts before that say what is wrong.
    state["log"] = last_lines(unit) if restarts else log
    found = phase(log) if (entry.get("ready") or {}).get("kind") == "vllm" else None
    said = own_words(log)
    if found:
        state["phase"] = found
        # Nobody listens until the engine is up: that is no news while it loads.
        state["detail"] = found["text"] if reason == SILENT else "%s - %s" % (reason, found["text"])
    else:
        state["detail"] = "%s - %s" % (reason, said[:160]) if said else reason
    return state


def main():
    module = AnsibleModule(
        argument_spec={
            "target": {"type": "str", "required": True},
            "units": {"type": "list", "elements": "dict", "required": True},
            "state_dir": {"type": "path", "required": True},
            "begin": {"type": "bool", "default": False},
            "wait_s": {"type": "int", "default": 10},
        },
        supports_check_mode=True,
    )
    args = module.params
    entries = {entry["unit"]: entry for entry in args["units"]}
    actions = []
    if args["begin"]:
        try:
            manifest = Manifest.load(args["state_dir"])
            actions = begin(args["target"], list(entries), manifest, module.check_mode)
        except (RuntimeError, ValueError) as error:
            module.fail_json(msg=str(error))
    states = {}
    end = time.monotonic() + (0 if module.check_mode else args["wait_s"])
    with concurrent.futures.ThreadPoolExecutor(max_workers=16) as pool:
        while True:
            waiting = [unit for unit in entries if states.get(unit, {}).get("state") != "ready"]
            known = show(waiting)
            looks = {
                unit: pool.submit(look_at, unit, entries[unit], known.get(unit, {}), module.check_mode)
                for unit in waiting
            }
            states.update({unit: look.result() for unit, look in looks.items()})
            actions += [unit + " reloaded" for unit in looks if states[unit].get("reloaded")]
            if all(state["state"] == "ready" for state in states.values()):
                break
            if any(state["state"] == "dead" for state in states.values()) or time.monotonic() > end:
                break
            time.sleep(0.5)
    try:
        there = containers()
    except (RuntimeError, ValueError) as error:
        module.fail_json(msg=str(error), actions=actions)
    for unit, state in states.items():
        state["container"] = there.get(unit[: -len(".service")], {}).get("id")
    if not module.check_mode and all(state["state"] == "ready" for state in states.values()):
        Store(args["state_dir"]).ready()
    module.exit_json(changed=bool(actions), actions=actions, states=states)


if __name__ == "__main__":
    main()
