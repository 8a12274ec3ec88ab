#!/usr/bin/python
"""One drill: provoke a fault, follow its alerts to the receiver, mend it, and wait until they are resolved."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fire_drill
short_description: Provoke a fault for real and follow each alert that has to come of it
description:
  - An alert may take its own C(for) and window, as Prometheus tells them, and I(patience_s) on top.
  - The fault is mended however the drill ends.
options:
  drill: {type: str, required: true, choices: [load, gpu, disk, instance, exporter], description: What is provoked.}
  alerts: {type: list, elements: str, required: true, description: What has to be told.}
  prometheus: {type: str, required: true, description: Its address.}
  alertmanager: {type: str, required: true, description: Its address.}
  log: {type: path, required: true, description: What C(fire_drill_receiver) writes.}
  patience_s: {type: int, default: 120, description: How long beyond its own times an alert may take.}
  unit: {type: str, required: true, description: Service of the instance.}
  model: {type: str, required: true, description: Name of its model.}
  model_url: {type: str, required: true, description: Its address.}
  requests: {type: int, default: 96, description: How many requests are in flight at once.}
  max_tokens: {type: int, default: 1500, description: Length of each answer.}
  folder: {type: path, default: "", description: Folder on a small file system that may be filled.}
author: [vllm-node maintainers]
"""

RETURN = r"""
told: {description: A line for each alert, with the seconds until each step., type: list, returned: always}
"""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import threading
import time
import urllib.parse

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.loopback import SilentError, ask

FAULTS = "/run/standin-nvidia/faults.json"
PROFILE = "/usr/share/standin-nvidia/profile.json"
EXPORTER = "dcgm-exporter.service"
# A larger file system is one that somebody uses.
LARGEST_BYTES = 1 << 30
POLL_S = 1


class DrillError(Exception):
    """The drill cannot be held here; the text says why."""


def run(*argv):
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=180)
    if done.returncode != 0:
        raise DrillError("%s: %s" % (" ".join(argv), done.stderr.strip()))


def get(url):
    try:
        status, text = ask(url, 20)
        if status != 200:
            raise DrillError("%s answers %d: %s" % (url, status, text[:300]))
        return json.loads(text)
    except (SilentError, ValueError) as error:
        raise DrillError("%s: %s" % (url, error)) from None


class Load:
    """Requests that never end: each is sent again as soon as it is answered."""

    def __init__(self, args):
        self.args, self.open, self.over = args, set(), threading.Event()
        self.threads = [threading.Thread(target=self.client, daemon=True) for _ in range(args["requests"])]

    def provoke(self):
        for thread in self.threads:
            thread.start()

    def client(self):
        place = urllib.parse.urlsplit(self.args["model_url"])
        length = self.args["max_tokens"]
        body = {"model": self.args["model"], "prompt": "Hello", "max_tokens": length, "ignore_eos": True}
        while not self.over.is_set():
            connection = http.client.HTTPConnection(place.hostname, place.port, timeout=900)
            self.open.add(connection)
            try:
                connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                self.over.wait(1)
            finally:
                self.open.discard(connection)
                connection.close()

    def mend(self):
        self.over.set()
        for connection in list(self.open):
            # One that was answered in this moment has no socket any more.
            with contextlib.suppress(OSError, AttributeError):
                connection.sock.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(10)


class StandIn:
    """Faults of GPUs that are not there: the lab's stand-in of the exporter reads them from a file."""

    def __init__(self, _args):
        if not os.path.isdir(os.path.dirname(FAULTS)):
            raise DrillError("GPU faults can be provoked on the lab's stand-ins only, and there are none here")
        with open(PROFILE, encoding="utf-8") as handle:
            self.gpus = [gpu["index"] for gpu in json.load(handle)["gpus"]]

    def write(self, faults):
        with open(FAULTS + ".new", "w", encoding="utf-8") as handle:
            json.dump(faults, handle)
        os.replace(FAULTS + ".new", FAULTS)

    def mend(self):
        if os.path.exists(FAULTS):
            os.unlink(FAULTS)
        # It remembers an XID for minutes, as the real one does.
        run("systemctl", "restart", EXPORTER)


class Gpu(StandIn):
    """One GPU falls off the bus, another one reports the XID of that."""

    def provoke(self):
        self.write({"lost": self.gpus[-1:], str(self.gpus[0]): {"DCGM_FI_DEV_XID_ERRORS": 79}})


class Exporter(StandIn):
    """The exporter answers, and there is no GPU on its page."""

    def provoke(self):
        self.write({"lost": self.gpus})


class Disk:
    """A file system that runs full."""

    def __init__(self, args):
        if not args["folder"] or not os.path.isdir(args["folder"]):
            raise DrillError("fire_drill_folder has to be on a small file system of its own; seen: %r" % args["folder"])
        space = os.statvfs(args["folder"])
        if space.f_blocks * space.f_frsize > LARGEST_BYTES:
            raise DrillError("the file system of %s is larger than 1 GiB: somebody uses it" % args["folder"])
        self.file = os.path.join(args["folder"], "fire-drill.fill")

    def provoke(self):
        block = b"\0" * (1 << 20)
        with open(self.file, "wb", buffering=0) as handle:
            try:
                while True:
                    handle.write(block)
            except OSError:
                pass  # full, which is what was wanted

    def mend(self):
        if os.path.exists(self.file):
            os.unlink(self.file)


class Instance:
    """An instance that is stopped behind everybody's back."""

    def __init__(self, args):
        self.unit = args["unit"]

    def provoke(self):
        run("systemctl", "stop", self.unit)

    def mend(self):
        run("systemctl", "start", self.unit)


DRILLS = {"load": Load, "gpu": Gpu, "disk": Disk, "instance": Instance, "exporter": Exporter}


class Watch:
    """Where an alert has got to."""

    def __init__(self, args):
        self.args, self.since = args, time.time()

    def own_time_s(self, name):
        """How long the alert waits by itself, as Prometheus has loaded it."""
        groups = get(self.args["prometheus"] + "/api/v1/rules?type=alert")["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"] if rule["name"] == name]
        if not rules:
            raise DrillError("Prometheus has no alert %s" % name)
        return max(rule["duration"] for rule in rules)

    def fires(self, name):
        alerts = get(self.args["prometheus"] + "/api/v1/alerts")["data"]["alerts"]
        return any(one["labels"]["alertname"] == name and one["state"] == "firing" for one in alerts)

    def is_managed(self, name):
        query = urllib.parse.urlencode({"filter": 'alertname="%s"' % name})
        return bool(get("%s/api/v2/alerts?%s" % (self.args["alertmanager"], query)))

    def was_told(self, name, status):
        try:
            with open(self.args["log"], encoding="utf-8") as log:
                lines = [json.loads(line) for line in log]
        except FileNotFoundError:
            return False
        return any(
            one["at"] >= self.since and one["status"] == status and one["labels"]["alertname"] == name for one in lines
        )


def wait_for(steps, limit_s):
    """Seconds until each of `steps` ({name: question}) was true; None for those that did not become so in time."""
    begin, done = time.monotonic(), {}
    while len(done) < len(steps) and time.monotonic() - begin < limit_s:
        for name, question in steps.items():
            if name not in done and question():
                done[name] = round(time.monotonic() - begin)
        time.sleep(POLL_S)
    return {name: done.get(name) for name in steps}


def hold(drill, watch, alerts, patience_s):
    """(lines for people, what is missing) of one drill; the fault is mended in any case."""
    limit_s = max(watch.own_time_s(name) for name in alerts) + patience_s
    already = [name for name in alerts if watch.fires(name)]
    if already:
        raise DrillError("%s fires before anything was provoked: mend that first" % ", ".join(already))
    try:
        drill.provoke()
        steps = {}
        for name in alerts:
            steps[name, "fired"] = lambda name=name: watch.fires(name)
            steps[name, "reached Alertmanager"] = lambda name=name: watch.is_managed(name)
            steps[name, "reached the receiver"] = lambda name=name: watch.was_told(name, "firing")
        came = wait_for(steps, limit_s)
    finally:
        drill.mend()
    ends = {(name, "was resolved"): lambda name=name: watch.was_told(name, "resolved") for name in alerts}
    seen = {**came, **wait_for(ends, limit_s)}
    told = ["%s %s after %s s" % (name, step, after) for (name, step), after in seen.items() if after is not None]
    return told, ["%s never %s" % each for each, after in seen.items() if after is None]


def main():
    module = AnsibleModule(
        argument_spec={
            "drill": {"type": "str", "required": True, "choices": sorted(DRILLS)},
            "alerts": {"type": "list", "elements": "str", "required": True},
            "prometheus": {"type": "str", "required": True},
            "alertmanager": {"type": "str", "required": True},
            "log": {"type": "path", "required": True},
            "patience_s": {"type": "int", "default": 120},
            "unit": {"type": "str", "required": True},
            "model": {"type": "str", "required": True},
            "model_url": {"type": "str", "required": True},
            "requests": {"type": "int", "default": 96},
            "max_tokens": {"type": "int", "default": 1500},
            "folder": {"type": "path", "default": ""},
        },
    )
    args = module.params
    try:
        drill = DRILLS[args["drill"]](args)
        told, missing = hold(drill, Watch(args), args["alerts"], args["patience_s"])
    except DrillError as error:
        module.fail_json(msg="drill %s: %s" % (args["drill"], error))
    if missing:
        module.fail_json(msg="drill %s: %s" % (args["drill"], "; ".join(missing)), told=told)
    module.exit_json(changed=True, told=told)


if __name__ == "__main__":
    main()
