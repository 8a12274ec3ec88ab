#!/usr/bin/python
"""Ansible module: the trees of models on a node. See DOCUMENTATION below for arguments and the answer."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_tree
short_description: Look at trees of models, make room for new ones, and verify them with all cores
description:
  - C(look) compares trees with their manifests by what a file's size, time and inode say. It reads no content, and
    changes nothing but that it removes what an interrupted delivery has left beside a whole tree.
  - C(prepare) makes an incoming tree for each model, takes over what is the same from the tree that is there, and says
    which files are to be copied. Everything is written to the node's manifest before it is made.
  - C(verify) begins to read a tree, or says what came of it. When an incoming tree is what its manifest says, it takes
    the place of the one before. C(wait) says how far the reading is; the action plugin model_store repeats it.
options:
  state: {type: str, required: true, choices: [look, prepare, verify, wait], description: What to do.}
  models:
    type: list
    elements: dict
    required: true
    description: The models.
    options:
      name: {type: str, required: true, description: Its name.}
      tree: {type: str, required: true, description: Its folder on the node.}
      mark: {type: str, required: true, description: File that says what of the folder was verified.}
      ours: {type: bool, required: true, description: Whether the folder is delivered by us; else it is the site's.}
      files:
        type: dict
        default: {}
        description: "Path below the folder to C(size) and C(sha256). C(wait) does without: arguments go to the log."
      fingerprint: {type: str, required: true, description: Of the manifest.}
  state_dir: {type: path, required: true, description: Folder of the node's manifest.}
  store: {type: path, required: true, description: Folder of the trees that are ours.}
  workers: {type: int, default: 0, description: How many files are read at a time; 0 means one a core.}
  wait_s: {type: int, default: 10, description: How long C(verify) and C(wait) wait for the end.}
  begin: {type: bool, default: false, description: "First step of C(verify): what an earlier reader said is dropped."}
  incoming: {type: bool, default: false, description: "C(verify): the incoming tree is meant."}
author: [vllm-node maintainers]
"""

RETURN = r"""
trees:
  description: "C(look): name to C(state) (verified, unread, different) and C(differences), path to words."
  type: dict
  returned: look
unlisted: {description: "C(look): trees of ours that no model is named for.", type: list, returned: look}
copies: {description: "C(prepare): name to the paths to be copied.", type: dict, returned: prepare}
done: {description: Whether the reading has ended., type: bool, returned: "verify, wait"}
differences: {description: "C(verify): path to words.", type: dict, returned: verify}
read_bytes: {description: How much was read., type: int, returned: "verify, wait"}
total_bytes: {description: How much is to be read., type: int, returned: "verify, wait"}
"""

import contextlib
import os
import shutil
import signal
import stat
import time

from ansible.module_utils import model_context, model_manifest, snapshot_tree
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.model_mark import Mark
from ansible.module_utils.model_reading import Reading
from ansible.module_utils.node_manifest import Manifest, make_directory, remove_path

GIB = 2**30
SPARE_BYTES = GIB


class Model:
    """One model on this node. `incoming` and `replaced` stand beside its tree while a new one is brought."""

    def __init__(self, entry):
        self.name, self.tree, self.mark = entry["name"], entry["tree"].rstrip("/"), entry["mark"]
        self.ours, self.files, self.fingerprint = entry["ours"], entry["files"], entry["fingerprint"]
        self.incoming, self.replaced = self.tree + ".incoming", self.tree + ".replaced"

    @property
    def parts(self):
        """What is there only while a new tree is brought."""
        return [self.incoming, self.replaced, self.mark + ".incoming"]

    def state(self, incoming=False):
        """The tree, or the incoming one, as it is now."""
        return State(self, self.incoming if incoming else self.tree, self.mark + (".incoming" if incoming else ""))

    def end_work(self):
        """End what an earlier run has left at work on the incoming tree: it would go on when the tree is served."""
        self.reading(incoming=True).end()
        for pid in copies_into(self.incoming):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 10
        while copies_into(self.incoming):
            if time.monotonic() > end:
                raise ValueError("a copy into %s of an earlier run does not end: kill it (rsync)" % self.incoming)
            time.sleep(0.05)

    def reading(self, incoming=False):
        """The reader of the tree, or of the incoming one."""
        return Reading(self.name + (".incoming" if incoming else ""), self.fingerprint)


class State:
    """A tree against its manifest, without reading content.

    different: path → words; unread: paths that nothing is known about; sound: paths that were read and are as then.
    """

    def __init__(self, model, root, mark_path):
        self.root, self.mark = root, Mark.load(mark_path)
        try:
            found = snapshot_tree.walk(root).files
        except FileNotFoundError:
            found = {}
        self.different = model_manifest.by_size(model.files, {path: one.st_size for path, one in found.items()})
        same = [path for path in found if path not in self.different]
        self.sound = {path for path in same if self.mark.vouches(path, found[path], model.files[path]["sha256"])}
        self.unread = [path for path in same if path not in self.sound]


def look(args, manifest, module):
    """What state each tree is in; a whole one gets its label, and loses what was left beside it."""
    trees, changed = {}, False
    models = [Model(entry) for entry in args["models"]]
    for model in models:
        if model.ours and os.path.lexists(model.tree) and model.tree not in manifest.data["models"]:
            raise ValueError(
                "%s exists already and vllm-node did not bring it: remove it, give the model another name, or serve it"
                " where it is (source: path, and model_store_copy: false)" % model.tree
            )
        state = model.state()
        word = "unread" if state.unread else "different" if state.different else "verified"
        trees[model.name] = {"state": word, "differences": state.different}
        if word == "verified" and model.ours:
            changed = tidy(model, args["store"], manifest, module.check_mode) or changed
        elif not model.ours and model_context.is_closed(model.tree):
            module.warn("%s has an SELinux type that containers may not read: give it container_file_t" % model.tree)
    wanted = [model.tree for model in models]
    unlisted = sorted(path for path in manifest.data["models"] if path not in wanted and os.path.isdir(path))
    return {"changed": changed, "trees": trees, "unlisted": unlisted}


def tidy(model, store, manifest, dry):
    """What a whole tree still needs; true when something was done."""
    changed = False
    for path in model.parts:
        if os.path.lexists(path):
            changed = True
            if not dry:
                model.end_work()
                remove_path(path)
    if model_context.is_closed(model.tree):
        changed = True
        if not dry:
            model_context.set_for(store, manifest)
            model_context.restore(model.tree)
    return changed


def prepare(args, manifest):
    """Make incoming trees, and say what is to be copied into them."""
    models = [Model(entry) for entry in args["models"]]
    if shutil.which("rsync") is None:
        raise ValueError("rsync is not installed on this node, and models are brought with it: dnf install rsync")
    for model in models:
        model.end_work()
        if not os.path.lexists(model.tree) and os.path.isdir(model.replaced):
            os.rename(model.replaced, model.tree)  # an earlier run has ended between the two renames of `settle`
    make_room(args["store"], models)
    manifest.make_directories(args["store"])
    model_context.set_for(args["store"], manifest)
    if args["store"] in manifest.data["directories"]:
        # A folder that was there before keeps its label, and so does what the site has in it.
        model_context.restore(args["store"], recursive=False)
    copies = {}
    for model in models:
        manifest.add_model(model.tree, model.mark, model.parts)
        make_directory(model.incoming, 0o755)
        model_context.restore(model.incoming)
        copies[model.name] = take_over(model)
    return {"changed": True, "copies": copies}


def make_room(store, models):
    """Raise ValueError when the files to be copied do not fit."""
    place = store
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    disk = os.statvfs(place)
    free, needs = disk.f_bavail * disk.f_frsize, {}
    for model in models:
        missing = set(model.files) - model.state().sound - model.state(incoming=True).sound
        begun = sum(allocated(os.path.join(model.incoming, path)) for path in missing)
        needs[model.name] = max(0, sum(model.files[path]["size"] for path in missing) - begun)
    if sum(needs.values()) + SPARE_BYTES > free:
        raise ValueError(
            "%s has %.2f GiB free, and %.2f GiB are to be brought (%s), with 1 GiB to spare: make room there, or set"
            " model_store_dir to a folder on a larger disk"
            % (
                *(store, free / GIB, sum(needs.values()) / GIB),
                ", ".join("%s %.2f GiB" % (name, size / GIB) for name, size in needs.items()),
            )
        )


def copies_into(folder):
    """Processes of rsync that work in `folder`: rsync goes to where it writes."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                place = os.readlink("/proc/%s/cwd" % name)
                with open("/proc/%s/comm" % name, encoding="utf-8") as handle:
                    if handle.read().strip() == "rsync" and (place + "/").startswith(folder + "/"):
                        found.append(int(name))
    return found


def allocated(path):
    """Bytes that a file takes on its disk; 0 when there is none."""
    try:
        return os.lstat(path).st_blocks * 512
    except OSError:
        return 0


def take_over(model):
    """Bring the incoming tree to where only copies are missing from it; returns the paths to be copied.

    A file that is sound in the tree before is linked: it takes neither time nor space. A copy never goes into a file
    that is linked, which would change the tree before as well, but into one of its own or one that a copy has begun.
    """
    for folder, folders, names in os.walk(model.incoming, topdown=False):
        for name in [*folders, *names]:
            place = os.path.join(folder, name)
            wanted = os.path.relpath(place, model.incoming) in model.files
            kind = os.lstat(place).st_mode
            if not (wanted and stat.S_ISREG(kind)) and not (not wanted and stat.S_ISDIR(kind)):
                remove_path(place)
    now, incoming, copies = model.state(), model.state(incoming=True), []
    for path in sorted(set(model.files) - incoming.sound):
        place = os.path.join(model.incoming, path)
        if path in now.sound and link(os.path.join(model.tree, path), place):
            incoming.mark.note(path, os.stat(place), model.files[path]["sha256"])
            continue
        copies.append(path)
        if os.path.lexists(place) and os.lstat(place).st_nlink > 1:
            os.unlink(place)
    incoming.mark.save()
    return copies


def link(source, target):
    """A second name for a file instead of a copy; false where the file system has no such thing."""
    if not stat.S_ISREG(os.lstat(source).st_mode):
        return False
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    remove_path(target)
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def wait(args):
    """How far the reading of a tree is."""
    (model,) = [Model(entry) for entry in args["models"]]
    reading = model.reading(args["incoming"])
    end = time.monotonic() + args["wait_s"]
    while reading.is_running() and time.monotonic() < end:
        time.sleep(0.1)
    running, told = reading.is_running(), reading.told() or {}
    far = {"read_bytes": told.get("bytes", 0), "total_bytes": told.get("total_bytes", 0)}
    return {"changed": False, "done": not running, "differences": {}, **far}


def verify(args):
    """Begin to read a tree, or end it: an incoming one takes the place of the one before, if it is right."""
    (model,) = [Model(entry) for entry in args["models"]]
    incoming = args["incoming"]
    reading, state = model.reading(incoming), model.state(incoming)
    if args["begin"] and not reading.is_running():
        reading.forget()
    if state.unread and reading.told() is None and not reading.is_running():
        wanted = {path: model.files[path]["sha256"] for path in state.unread}
        reading.start(state.root, wanted, state.mark, args["workers"])
    answer = wait(args)
    if not answer["done"]:
        return answer
    told = reading.told() or {}
    reading.forget()
    if told.get("trouble"):
        raise ValueError("%s cannot be read: %s" % (state.root, told["trouble"]))
    if told and not told["ended"]:
        raise ValueError("the reading of %s was ended by somebody else; run this again, it goes on there" % state.root)
    by_content = told.get("differences", {})
    # Looked at again: what has changed while the rest was read is not what was read.
    state = model.state(incoming)
    found = {**dict.fromkeys(state.unread, "has changed since it was read"), **state.different, **by_content}
    if found and incoming:
        for path in by_content:
            # It has the size and the time of the source, so that it would not be copied again.
            remove_path(os.path.join(model.incoming, path))
    if not found:
        state.mark.manifest = model.fingerprint
        state.mark.save()
        if incoming:
            settle(model)
    return {**answer, "changed": incoming and not found, "differences": found}


def settle(model):
    """The incoming tree takes the place of the one before, which goes only then."""
    remove_path(model.replaced)
    if os.path.lexists(model.tree):
        os.rename(model.tree, model.replaced)
    os.rename(model.incoming, model.tree)
    os.rename(model.mark + ".incoming", model.mark)
    remove_path(model.replaced)


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "required": True, "choices": ["look", "prepare", "verify", "wait"]},
            "models": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "name": {"type": "str", "required": True},
                    "tree": {"type": "str", "required": True},
                    "mark": {"type": "str", "required": True},
                    "ours": {"type": "bool", "required": True},
                    "files": {"type": "dict", "default": {}},
                    "fingerprint": {"type": "str", "required": True},
                },
            },
            "state_dir": {"type": "path", "required": True},
            "store": {"type": "path", "required": True},
            "workers": {"type": "int", "default": 0},
            "wait_s": {"type": "int", "default": 10},
            "begin": {"type": "bool", "default": False},
            "incoming": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    args = module.params
    try:
        manifest = Manifest.load(args["state_dir"])
        if args["state"] == "look":
            answer = look(args, manifest, module)
        elif module.check_mode:
            answer = {"changed": True}
        elif args["state"] == "prepare":
            answer = prepare(args, manifest)
        else:
            answer = verify(args) if args["state"] == "verify" else wait(args)
    except (OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
