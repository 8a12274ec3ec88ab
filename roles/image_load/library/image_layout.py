#!/usr/bin/python
"""Ansible module: the OCI layout on a node that images are pulled from. See DOCUMENTATION below."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_layout
short_description: Make room and a place for images that are brought to a node, and take both away again
description:
  - The action plugin image_load calls it, and copies blobs into the layout in between.
  - C(present) makes the layout in a folder of the toolkit's own, after it has seen that everything fits.
  - C(sifted) removes blobs whose content is not what their name says.
  - C(absent) removes the layout.
options:
  state: {type: str, required: true, choices: [present, sifted, absent], description: What to do.}
  state_dir: {type: path, required: true, description: Folder of the node's manifest.}
  files: {type: dict, default: {}, description: "C(present): path in the layout to text."}
  blobs: {type: dict, default: {}, description: "C(present): file name of each blob to its size in bytes."}
author: [vllm-node maintainers]
"""

RETURN = r"""
spoilt: {description: "C(sifted): file names of the blobs that were removed.", type: list, returned: sifted}
"""

import hashlib
import os
import shutil

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_manifest import Manifest, make_directory, remove_path, write_atomically

GIB = 2**30
SPARE_BYTES = GIB
STORE = "/var/lib/containers/storage"
# What an image takes while podman pulls it, unpacked and on the way there, as a multiple of its packed size.
UNPACK_FACTOR = 2.5
BLOCK_BYTES = 2**20


def place(state_dir):
    """Everything that is there only while images are brought."""
    return os.path.join(state_dir, "load")


def blob_dir(state_dir):
    return os.path.join(place(state_dir), "images", "blobs", "sha256")


def existing(folder):
    """The folder, or the nearest one above it that is there."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def free_bytes(folder):
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def device(folder):
    return os.stat(folder).st_dev


def allocated(path):
    try:
        return os.lstat(path).st_blocks * 512
    except OSError:
        return 0


def check_room(state_dir, blobs):
    """Raise ValueError, naming the folder, when blobs or what they unpack to do not fit."""
    packed = sum(blobs.values())
    folder = blob_dir(state_dir)
    begun = sum(min(size, allocated(os.path.join(folder, name))) for name, size in blobs.items())
    needs = {}
    for what, path, size in (
        ("%.2f GiB as they come" % (packed / GIB), place(state_dir), packed - begun),
        ("%.2f GiB unpacked" % (packed * UNPACK_FACTOR / GIB), STORE, int(packed * UNPACK_FACTOR)),
    ):
        there = existing(path)
        entry = needs.setdefault(device(there), {"path": path, "there": there, "size": SPARE_BYTES, "what": []})
        entry["size"] += size
        entry["what"].append(what)
    problems = [
        "%s has %.2f GiB free, and %.2f GiB are needed (%s, and 1 GiB to spare)"
        % (one["path"], free_bytes(one["there"]) / GIB, one["size"] / GIB, ", ".join(one["what"]))
        for one in needs.values()
        if one["size"] > free_bytes(one["there"])
    ]
    if problems:
        raise ValueError("; ".join(problems) + ": make room (podman image prune), or give it a larger disk")


def present(args):
    """Make the layout; blobs that an earlier run has brought stay."""
    state_dir, wanted = args["state_dir"], set(args["blobs"])
    if shutil.which("rsync") is None:
        raise ValueError("rsync is not installed on this node, and images are brought with it: dnf install rsync")
    check_room(state_dir, args["blobs"])
    # Before the folder below it: what makes the node's manifest also says that it is ours.
    Manifest.load(state_dir).save()
    folder = blob_dir(state_dir)
    layout = os.path.dirname(os.path.dirname(folder))
    for path in (place(state_dir), layout, os.path.dirname(folder), folder):
        make_directory(path, 0o755)
    for name in os.listdir(folder):
        if name not in wanted:
            remove_path(os.path.join(folder, name))
    for name, text in args["files"].items():
        write_atomically(os.path.join(layout, name), text.encode(), 0o644)
    return {"changed": True}


def sifted(args):
    """Remove what is not what its name says."""
    folder, spoilt = blob_dir(args["state_dir"]), []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        path = os.path.join(folder, name)
        if digest(path) != name:
            remove_path(path)
            spoilt.append(name)
    return {"changed": bool(spoilt), "spoilt": spoilt}


def digest(path):
    found = hashlib.sha256()
    with open(path, "rb") as handle:
        for block in iter(lambda: handle.read(BLOCK_BYTES), b""):
            found.update(block)
    return found.hexdigest()


def absent(args):
    there = os.path.isdir(place(args["state_dir"]))
    remove_path(place(args["state_dir"]))
    return {"changed": there}


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "required": True, "choices": ["present", "sifted", "absent"]},
            "state_dir": {"type": "path", "required": True},
            "files": {"type": "dict", "default": {}},
            "blobs": {"type": "dict", "default": {}},
        },
        supports_check_mode=False,
    )
    try:
        answer = {"present": present, "sifted": sifted, "absent": absent}[module.params["state"]](module.params)
    except (OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
