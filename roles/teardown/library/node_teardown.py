#!/usr/bin/python
"""Take away everything that the manifest of a node lists, whatever state it is in."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_teardown
short_description: Undo a bring-up by its manifest
description:
  - "Order: stop units, wait until their processes are gone, remove rules of the firewall and files, reload systemd,
    then containers, volumes, secrets and images. Each step has a time limit, and what a step could not do is reported
    instead of ending the others."
options:
  state_dir: {type: path, required: true, description: Folder of the manifest.}
  target: {type: str, required: true, description: Name of the target.}
  keep:
    type: list
    elements: str
    default: []
    description: "C(data) keeps volumes, C(images) keeps images, C(models) keeps models that were delivered."
  remove: {type: list, elements: str, default: [], description: "C(packages) removes the packages that were installed."}
  stop_limit_s: {type: int, default: 180, description: How long units may take to stop before they are killed.}
author: [vllm-node maintainers]
"""

RETURN = r"""
removed: {description: What was removed., type: list, returned: always}
left: {description: "What could not be removed, with the reason.", type: list, returned: always}
kept: {description: "What was kept on purpose, kind and name of each.", type: list, returned: always}
as_found: {description: The first snapshot of the node., type: dict, returned: when there is one}
by_packages:
  description: "What a snapshot shows of the packages that are kept, by area:item."
  type: dict
  returned: always
"""

import glob
import json
import os
import shutil
import subprocess
import time

from ansible.module_utils import firewall_zones, model_reading, rpm_marks
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_manifest import Manifest, remove_path

UNIT_FOLDER = "/etc/containers/systemd/"
LABEL = "io.vllm-node.component"
STORAGE = "/var/lib/containers/storage"
RUNTIME = "/run/vllm-node"


class Teardown:
    """One teardown; `removed`, `left` and `kept` say what came of it."""

    def __init__(self, args, manifest, dry):
        self.args, self.manifest, self.dry = args, manifest, dry
        self.removed, self.left, self.kept = [], [], []

    def run(self, *argv, limit_s=60):
        """(exit code, output); 124 when it took too long, which a wedged container makes podman do."""
        try:
            done = subprocess.run(
                argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            return 124, "%s did not end within %d s" % (" ".join(argv[:3]), limit_s)
        except OSError as error:
            return 127, str(error)
        return done.returncode, done.stdout.strip()

    def do(self, what, *argv, limit_s=60):
        """Run a removing command and note how it ended; true when the thing is gone."""
        code, text = (0, "") if self.dry else self.run(*argv, limit_s=limit_s)
        if code == 0:
            self.removed.append(what)
        else:
            self.left.append("%s: %s" % (what, text.splitlines()[-1] if text else "exit code %d" % code))
        return code == 0

    def listed(self, what, *argv):
        """Names that a command prints; None, with a note, when it fails: then nobody knows what is there."""
        code, text = self.run(*argv)
        if code != 0:
            self.left.append("%s cannot be listed: %s" % (what, text or "exit code %d" % code))
            return None
        return text.split()

    def services(self):
        """Units of ours, containers before what they need."""
        paths = self.manifest.data["files"]
        names = [os.path.basename(path) for path in paths]
        services = [name[: -len(".container")] + ".service" for name in names if name.endswith(".container")]
        plain = [name for name in names if name.endswith(".service") and name + ".container" not in names]
        return services, plain

    def container_ids(self):
        """Full ids of our containers; a failed health check leaves a failed unit that is named after its container."""
        if not os.path.isdir(STORAGE):
            return []
        words = ("podman", "ps", "--all", "--no-trunc", "--filter", "label=" + LABEL, "--format", "{{.ID}}")
        code, text = self.run(*words)
        return text.split() if code == 0 else []

    def stop(self):
        """Stop everything; what does not stop in time is killed. The files are still there, so systemd can."""
        containers, plain = self.services()
        pulls = self.run("systemctl", "list-units", "--plain", "--no-legend", "vllm-node-pull-*")[1]
        containers += [line.split()[0] for line in pulls.splitlines() if line.strip()]
        if self.dry:
            return
        if containers or plain:
            units = (self.args["target"], *containers, *plain)
            if self.run("systemctl", "stop", "--no-block", *units)[0] != 0:
                # A bring-up that ended early has not installed all of them, and newer systemd then stops none.
                for unit in units:
                    self.run("systemctl", "stop", "--no-block", unit)
            # What containers need stops after them, and its own stop takes away what it made: it has its own time.
            for units in (containers, plain):
                self.end(units)
        self.run("systemctl", "disable", "--quiet", self.args["target"])

    def end(self, units):
        """Wait until these units have stopped; kill those that do not in time."""
        self.wait_until_stopped(units, self.args["stop_limit_s"])
        for unit in self.active(units):
            self.run("systemctl", "kill", "--signal=SIGKILL", unit)
            self.run("podman", "kill", "--signal=KILL", unit[: -len(".service")], limit_s=20)
        self.wait_until_stopped(units, 30)
        for unit in self.active(units):
            self.left.append("%s still runs after SIGKILL" % unit)

    def wait_until_stopped(self, units, limit_s):
        end = time.monotonic() + limit_s
        while self.active(units) and time.monotonic() < end:
            time.sleep(0.5)

    def active(self, units):
        """Those of `units` that still do something."""
        if not units:
            return []
        text = self.run("systemctl", "show", "-p", "Id,ActiveState", *units)[1]
        found = []
        for block in text.split("\n\n"):
            properties = dict(line.partition("=")[::2] for line in block.splitlines())
            busy = properties.get("ActiveState") in ("active", "activating", "deactivating", "reloading")
            if busy and properties.get("Id") in units:
                found.append(properties["Id"])
        return found

    def wait_for_processes(self):
        """Wait until no process is left in a cgroup of our units: an orphan may hold a GPU when its port is free."""
        containers, plain = self.services()
        end = time.monotonic() + 120
        while not self.dry:
            pids = [pid for unit in containers + plain for pid in processes_of(unit)]
            if not pids:
                return
            if time.monotonic() > end:
                self.left.append("processes %s of our units still run" % ", ".join(map(str, pids)))
                return
            time.sleep(0.5)

    def firewall(self):
        """Rules of ours in firewalld; the site's own are not on record."""
        rules = list(firewall_zones.marks(self.manifest)["rules"])
        try:
            if not self.dry:
                firewall_zones.take_back(self.manifest, rules)
            self.removed += ["rule of zone %s (%s): %s" % tuple(rule) for rule in rules]
        except (OSError, firewall_zones.FirewallError) as error:
            self.left.append("rules of the firewall: %s" % error)

    def files(self):
        """Remove our files, then let systemd forget the units."""
        containers, plain = self.services()
        for path in list(self.manifest.data["files"]):
            try:
                if not self.dry:
                    self.manifest.remove(path)
                self.removed.append(path)
            except OSError as error:
                self.left.append("%s: %s" % (path, error))
        if not self.dry:
            self.manifest.remove_empty_directories()
            self.run("systemctl", "daemon-reload")
            # One by one: a unit that systemd has forgotten already must not keep the others from being forgotten.
            for unit in ["vllm-*", *containers, *plain]:
                self.run("systemctl", "reset-failed", unit)

    def containers(self):
        """Containers of ours that are still known to podman, running or not."""
        words = ("podman", "ps", "--all", "--filter", "label=" + LABEL, "--format", "{{.Names}}")
        for name in self.listed("containers", *words) or []:
            self.do("container " + name, "podman", "rm", "--force", "--time=5", name, limit_s=60)

    def volumes(self):
        existing = self.listed("volumes", "podman", "volume", "ls", "--quiet")
        if existing is None:
            return
        for name in list(self.manifest.data["volumes"]):
            if "data" in self.args["keep"] and name in existing:
                self.kept.append({"kind": "volume", "name": name})
                continue
            # Without --force, which would take other people's containers along; ours are gone by now.
            if name not in existing or self.do("volume " + name, "podman", "volume", "rm", name):
                self.forget("volumes", name)

    def secrets(self):
        existing = self.listed("secrets", "podman", "secret", "ls", "--format", "{{.Name}}")
        if existing is None:
            return
        for name in list(self.manifest.data["secrets"]):
            if name not in existing or self.do("secret " + name, "podman", "secret", "rm", name):
                self.forget("secrets", name)

    def images(self):
        for reference, name in list(self.manifest.data["images"].items()):
            code, text = self.run("podman", "image", "exists", reference)
            if code not in (0, 1):
                self.left.append("image %s: %s" % (name, text or "exit code %d" % code))
                continue
            if code == 0 and "images" in self.args["keep"]:
                self.kept.append({"kind": "image", "name": reference})
                continue
            # Without --force, for the same reason as volumes.
            if code == 0 and not self.do("image " + name, "podman", "rmi", reference, limit_s=300):
                continue
            if not self.dry:
                del self.manifest.data["images"][reference]

    def models(self):
        """Trees that were delivered, and what lies beside them; the site's own are not on record."""
        known = self.manifest.data["models"]
        if known and not self.dry:
            model_reading.end_all()
        for tree, entry in list(known.items()):
            keep = "models" in self.args["keep"] and os.path.isdir(tree)
            try:
                for path in entry["parts"] + ([] if keep else [tree, entry["mark"]]):
                    if not self.dry:
                        remove_path(path)
            except OSError as error:
                self.left.append("model %s: %s" % (tree, error))
                continue
            if keep:
                self.kept.append({"kind": "model", "name": tree})
                continue
            self.removed.append("model " + tree)
            if not self.dry:
                del known[tree]
        if not self.dry:
            self.manifest.remove_empty_directories()
        if not any(entry["kind"] == "model" for entry in self.kept):
            self.contexts()

    def contexts(self):
        """SELinux rules of ours for the store of models."""
        known = self.manifest.data["fcontexts"]
        words = ("semanage", "fcontext", "--list", "--locallist", "--noheading")
        existing = self.listed("SELinux file contexts", *words) if known else []
        for pattern in list(known) if existing is not None else []:
            what = "SELinux file context " + pattern
            if pattern not in existing or self.do(what, "semanage", "fcontext", "--delete", pattern, limit_s=120):
                self.forget("fcontexts", pattern)

    def packages(self):
        """Key, version locks and cache go. Packages stay unless asked: Kubernetes needs some of them."""
        known = rpm_marks.marks(self.manifest)
        if not any(known.values()):
            return
        try:
            self.removed += ["version lock " + line for line in known["locks"]]
            self.removed += ["RPM key " + name for name in known["keys"]]
            if not self.dry:
                rpm_marks.set_locks(self.manifest, [])
                rpm_marks.forget_keys(self.manifest)
                rpm_marks.forget_cache()
            there = rpm_marks.full_names()
        except (OSError, rpm_marks.RpmError) as error:
            self.left.append("packages: %s" % error)
            return
        ours = {name: before for name, before in known["packages"].items() if name in there}
        new = [name for name, before in ours.items() if before is None]
        # All at once, for they need each other; rpm refuses when somebody else's package needs one of them.
        remove = "packages" in self.args["remove"] and new
        if remove and self.do("packages " + ", ".join(new), "rpm", "--erase", *new, limit_s=600):
            ours = {name: before for name, before in ours.items() if name not in new}
        for name, before in sorted(ours.items()):
            replaced = " (found as %s)" % before if before else ""
            self.kept.append({"kind": "package", "name": name + replaced})
        if not self.dry:
            known["packages"] = ours
            if not ours:
                known["changes"] = {}

    def forget(self, kind, name):
        if not self.dry:
            self.manifest.data[kind].remove(name)

    def everything(self):
        """All steps, in the order that leaves nothing dangling."""
        ids = self.container_ids()
        self.stop()
        self.wait_for_processes()
        self.firewall()
        self.files()
        if ids and not self.dry:
            self.run("systemctl", "reset-failed", *(one + "-*" for one in ids))
        # A node that never got as far as podman has nothing in it, and asking would make its storage.
        if os.path.isdir(STORAGE):
            self.containers()
            self.volumes()
            self.secrets()
            self.images()
        self.models()
        self.packages()
        if not self.dry:
            shutil.rmtree(RUNTIME, ignore_errors=True)
            # What a load of images that was interrupted has left.
            shutil.rmtree(os.path.join(self.args["state_dir"], "load"), ignore_errors=True)
            # What is torn down cannot be gone back to, whatever is kept.
            shutil.rmtree(os.path.join(self.args["state_dir"], "generations"), ignore_errors=True)
            if not self.kept and not self.left:
                shutil.rmtree(self.args["state_dir"], ignore_errors=True)
            else:
                self.manifest.save()


def processes_of(unit):
    """Pids in the cgroup of a unit and below it."""
    found = []
    for pattern in ("/sys/fs/cgroup/system.slice/%s", "/sys/fs/cgroup/systemd/system.slice/%s"):
        for path in glob.glob(pattern % unit + "/**/cgroup.procs", recursive=True):
            try:
                with open(path, encoding="utf-8") as handle:
                    found += [int(line) for line in handle]
            except OSError:
                continue
    return found


def main():
    module = AnsibleModule(
        argument_spec={
            "state_dir": {"type": "path", "required": True},
            "target": {"type": "str", "required": True},
            "keep": {"type": "list", "elements": "str", "choices": ["data", "images", "models"], "default": []},
            "remove": {"type": "list", "elements": "str", "choices": ["packages"], "default": []},
            "stop_limit_s": {"type": "int", "default": 180},
        },
        supports_check_mode=True,
    )
    args = module.params
    as_found, damaged = None, None
    try:
        with open(os.path.join(args["state_dir"], "as-found.json"), encoding="utf-8") as handle:
            as_found = json.load(handle)
    except FileNotFoundError:
        pass
    except ValueError as error:
        damaged = "%s/as-found.json is damaged: %s" % (args["state_dir"], error)
    if not os.path.isdir(args["state_dir"]):
        module.exit_json(changed=False, removed=[], left=[], kept=[], as_found=None, by_packages={})
    try:
        manifest = Manifest.load(args["state_dir"])
    except ValueError as error:
        module.fail_json(msg=str(error))
    teardown = Teardown(args, manifest, module.check_mode)
    if damaged:
        teardown.left.append(damaged)
    teardown.everything()
    module.exit_json(
        changed=bool(teardown.removed),
        removed=teardown.removed,
        left=teardown.left,
        kept=teardown.kept,
        as_found=as_found,
        by_packages=rpm_marks.marks(manifest)["changes"],
    )


if __name__ == "__main__":
    main()
