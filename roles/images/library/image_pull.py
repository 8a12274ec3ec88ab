#!/usr/bin/python
"""One step of pulling images: start what is missing, look at what runs, and say how far it is."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_pull
short_description: Pull images by digest, several at once, each in a transient unit of its own
description:
  - A step starts missing pulls, waits up to I(wait_s) and reports; the action plugin of the same name repeats it.
  - A pull is a unit (C(vllm-node-pull-NAME.service)), so that it goes on when the connection is lost.
options:
  images:
    type: list
    elements: dict
    required: true
    description:
      - C(name) and C(reference) (repository@digest) of each; C(source) is what podman pulls in its place, such as a
        layout on this node (C(oci:FOLDER:REFERENCE)). The image has the reference afterwards, wherever it came from.
  state_dir: {type: path, required: true, description: Folder of the manifest.}
  authfile: {type: path, description: Credentials for the registry.}
  parallel: {type: int, default: 4, description: How many pulls run at once; 0 only tells what is there.}
  wait_s: {type: int, default: 10, description: How long this step waits for something to happen.}
  begin: {type: bool, default: false, description: "The first step of a run: failures of earlier runs are forgotten."}
author: [vllm-node maintainers]
"""

RETURN = r"""
present: {description: Names of the images that are there with the digest asked for., type: list, returned: always}
pulling: {description: "Name → progress in podman's own words.", type: dict, returned: always}
failed_images: {description: "Name → the end of podman's output.", type: dict, returned: always}
started: {description: Names whose pull began in this step., type: list, returned: always}
"""

import json
import os
import re
import subprocess
import sys
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_manifest import Manifest

LOGS = "/run/vllm-node/pull"
IMAGE_STORE = "/var/lib/containers/storage/overlay-images"
# podman draws its progress for a terminal only, and only for one that has a width.
IN_TERMINAL = """
import fcntl, os, pty, struct, sys, termios
pid, terminal = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
    os.execvp(sys.argv[1], sys.argv[1:])
while True:
    try:
        data = os.read(terminal, 65536)
    except OSError:  # the terminal is gone: podman has ended
        break
    if not data:
        break
    os.write(1, data)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
# Below one KiB podman writes a small b.
BLOB = re.compile(r"blob ([0-9a-f]{12}).*?([\d.]+\s?[KMGT]?i?[Bb]) / ([\d.]+\s?[KMGT]?i?[Bb])")
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run(*argv):
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def unit_of(name):
    return "vllm-node-pull-%s.service" % re.sub(r"[^a-zA-Z0-9_.-]", "-", name)


def log_of(name):
    return os.path.join(LOGS, unit_of(name) + ".log")


def repo_digests():
    """References (repository@digest) that the storage has; RuntimeError when podman does not tell."""
    # Asking podman makes its storage folder; a node without one has no images.
    if not os.path.isdir(IMAGE_STORE):
        return set()
    done = run("podman", "images", "--all", "--digests", "--format", "json")
    if done.returncode != 0:
        raise RuntimeError("podman images: " + (done.stderr.strip() or "exit code %d" % done.returncode))
    return {digest for image in json.loads(done.stdout or "[]") for digest in image.get("RepoDigests") or []}


def start(image, authfile):
    """Start the pull of one image in a unit of its own."""
    os.makedirs(LOGS, mode=0o755, exist_ok=True)
    unit, log = unit_of(image["name"]), log_of(image["name"])
    run("systemctl", "reset-failed", unit)
    forget(image["name"])
    pull = ["podman", "pull"] + (["--authfile", authfile] if authfile else [])
    pull.append(image.get("source") or image["reference"])
    # A unit that has ended is forgotten at once: whether it ended well is told by the images, and why not by the log.
    done = run(
        *("systemd-run", "--quiet", "--unit", unit, "--property", "StandardOutput=append:" + log),
        *("--property", "StandardError=append:" + log, "--setenv", "TERM=dumb"),
        *(sys.executable, "-c", IN_TERMINAL, *pull),
    )
    return None if done.returncode == 0 else done.stderr.strip() or "systemd-run ended with %d" % done.returncode


def forget(name):
    """Drop what an earlier pull said."""
    if os.path.exists(log_of(name)):
        os.unlink(log_of(name))


def is_running(name):
    return run("systemctl", "is-active", "--quiet", unit_of(name)).returncode == 0


def log_text(name):
    try:
        with open(log_of(name), "rb") as handle:
            handle.seek(0, os.SEEK_END)
            handle.seek(max(0, handle.tell() - 2**22))
            return ESCAPES.sub("", handle.read().decode(errors="replace"))
    except OSError:
        return ""


def size(text):
    number, unit = re.match(r"([\d.]+)\s?(\w+)", text).groups()
    return float(number) * UNITS.get(unit, 1)


def progress(text):
    """Bytes of the newest line of each blob, added up; None while podman has not said anything."""
    blobs = {blob: (size(done), size(total)) for blob, done, total in BLOB.findall(text)}
    if not blobs:
        return None
    done, total = (sum(pair[i] for pair in blobs.values()) for i in (0, 1))
    return "%.1f of %.1f GiB" % (done / 2**30, total / 2**30)


def last_words(text):
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    errors = [line for line in lines if "rror" in line]
    return "\n".join((errors or lines)[-3:])


def step(args, check_mode):
    """Start what is missing and wait a little; returns what the module answers."""
    # In this order: a pull that ends between the two questions is then taken for running, not for failed.
    active = [image["name"] for image in args["images"] if is_running(image["name"])]
    there = repo_digests()
    missing = [image for image in args["images"] if image["reference"] not in there]
    started, failed = [], {}
    if missing and not check_mode:
        manifest = Manifest.load(args["state_dir"])
        running = [image for image in missing if image["name"] in active]
        for image in missing:
            if image in running:
                continue
            if args["begin"]:
                forget(image["name"])
            text = log_text(image["name"])
            if text and image["reference"] in manifest.data["images"]:
                # It was tried by an earlier step and has ended without the image being there.
                failed[image["name"]] = last_words(text)
                forget(image["name"])
                continue
            if len(running) >= args["parallel"] or failed:
                continue
            manifest.add_image(image["reference"], image["name"])
            problem = start(image, args["authfile"])
            if problem:
                failed[image["name"]] = problem
            else:
                running.append(image)
                started.append(image["name"])
        end = time.monotonic() + args["wait_s"]
        while running and not failed and time.monotonic() < end:
            time.sleep(0.25)
            if not all(is_running(image["name"]) for image in running):
                break
    there = repo_digests()
    pulling = {
        image["name"]: progress(log_text(image["name"])) or "started"
        for image in missing
        if image["reference"] not in there and image["name"] not in failed
    }
    return {
        "changed": bool(started) or (check_mode and bool(missing)),
        "present": [image["name"] for image in args["images"] if image["reference"] in there],
        "pulling": pulling,
        "failed_images": failed,
        "started": started,
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "images": {"type": "list", "elements": "dict", "required": True},
            "state_dir": {"type": "path", "required": True},
            "authfile": {"type": "path"},
            "parallel": {"type": "int", "default": 4},
            "wait_s": {"type": "int", "default": 10},
            "begin": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**step(module.params, module.check_mode))
    except (RuntimeError, ValueError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
