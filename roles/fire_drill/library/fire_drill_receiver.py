#!/usr/bin/python
"""The fire drill's own receiver: it writes down what Alertmanager tells it, and is gone afterwards."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fire_drill_receiver
short_description: Start or end a webhook receiver on loopback that writes down each alert
description:
  - It runs as a transient unit; its folder below C(/run) goes with it, and it goes after an hour at the latest.
options:
  port: {type: int, required: true, description: Port on loopback.}
  state: {type: str, choices: [present, absent], default: present, description: Whether it listens.}
author: [vllm-node maintainers]
"""

RETURN = r"""
log: {description: File with a line of JSON for each alert that was told., type: str, returned: always}
"""

import socket
import subprocess
import sys
import time

from ansible.module_utils.basic import AnsibleModule

UNIT = "vllm-node-fire-drill"
LOG = "/run/%s/told.jsonl" % UNIT
LONGEST_S = 3600
START_LIMIT_S = 20
RECEIVER = """
import json, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        told = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        with open(sys.argv[2], "a") as log:
            for alert in told["alerts"]:
                line = {"at": time.time(), "status": alert["status"], "labels": alert["labels"]}
                log.write(json.dumps(line) + chr(10))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *words):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def run(*argv):
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def listens(port):
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main():
    module = AnsibleModule(
        argument_spec={
            "port": {"type": "int", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
    )
    port, service = module.params["port"], UNIT + ".service"
    there = run("systemctl", "is-active", "--quiet", service).returncode == 0
    if module.params["state"] == "absent":
        if there:
            run("systemctl", "stop", service)
        module.exit_json(changed=there, log=LOG)
    if there:
        run("systemctl", "stop", service)
    if listens(port):
        module.fail_json(msg="somebody else listens on port %d; give the drill another one (fire_drill_port)" % port)
    done = run(
        *("systemd-run", "--quiet", "--collect", "--unit=" + UNIT),
        *("--property=RuntimeDirectory=" + UNIT, "--property=RuntimeMaxSec=%d" % LONGEST_S),
        *(sys.executable, "-c", RECEIVER, str(port), LOG),
    )
    end = time.monotonic() + START_LIMIT_S
    while done.returncode == 0 and not listens(port) and time.monotonic() < end:
        time.sleep(0.1)
    if not listens(port):
        said = done.stderr.strip() or "see journalctl -u " + UNIT
        module.fail_json(msg="the drill's receiver does not start: " + said)
    module.exit_json(changed=True, log=LOG)


if __name__ == "__main__":
    main()
