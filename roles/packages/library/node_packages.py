#!/usr/bin/python
"""What is noted about packages on a node, and what is kept beside them: keys of rpm, version locks."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_packages
short_description: Note packages before they are installed, trust their key, keep some of them in their version
description:
  - Everything is written to the manifest first, so that a teardown finds it.
  - Locks are lines in the list of dnf's version lock plugin; lines of somebody else stay as they are.
options:
  state_dir: {type: path, required: true, description: Folder of the manifest.}
  missing_of:
    type: list
    elements: str
    default: []
    description: Names of packages; the answer says which of them are not installed, and nothing else is done.
  packages: {type: dict, default: {}, description: "Packages that are about to be installed, and what each replaces."}
  gpg_key:
    type: str
    no_log: false
    description: Key that rpm is to trust. Keys of an earlier one are forgotten. Empty means none of ours.
  locks: {type: list, elements: str, description: Patterns of packages that keep the version they have.}
  changes: {type: dict, description: What a snapshot shows of the packages that were installed. This ends it.}
author: [vllm-node maintainers]
"""

RETURN = r"""
missing: {description: Those of O(missing_of) that are not installed., type: list, returned: always}
locked: {description: Lines in the list of version locks that are ours., type: list, returned: always}
before:
  description: The snapshot that was kept before an installation whose changes are not noted yet. No lock was set then.
  type: dict
  returned: when there is such an installation, of this run or of one that was interrupted
"""

import contextlib
import json
import os

from ansible.module_utils import rpm_marks
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_manifest import Manifest

BEFORE = "before-packages.json"


def missing(names):
    """Those names that no installed package has."""
    there = {package[0] for package in rpm_marks.installed()}
    return [name for name in names if name not in there]


def work(args, check_mode):
    """Do what the arguments ask for; returns what the module answers."""
    if args["missing_of"]:
        return {"changed": False, "missing": missing(args["missing_of"]), "locked": []}
    manifest = Manifest.load(args["state_dir"])
    known, changed = rpm_marks.marks(manifest), False
    locks = None if args["locks"] is None else rpm_marks.wanted_locks(args["locks"])
    if check_mode:
        return {"changed": locks is not None and locks != known["locks"], "missing": [], "locked": known["locks"]}
    before = os.path.join(args["state_dir"], BEFORE)
    if args["packages"]:
        known["packages"].update({**args["packages"], **known["packages"]})
        manifest.save()
    if args["changes"] is not None:
        known["changes"].update(args["changes"])
        manifest.save()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(before)
    if args["gpg_key"]:
        changed |= rpm_marks.trust(manifest, args["gpg_key"])
    elif args["gpg_key"] is not None:
        changed |= bool(rpm_marks.forget_keys(manifest))
    if os.path.exists(before):
        # What the packages brought is to be seen without what comes next.
        with open(before, encoding="utf-8") as handle:
            return {"changed": changed, "missing": [], "locked": known["locks"], "before": json.load(handle)}
    if locks is not None:
        changed |= rpm_marks.set_locks(manifest, locks)
    return {"changed": changed, "missing": [], "locked": known["locks"]}


def main():
    module = AnsibleModule(
        argument_spec={
            "state_dir": {"type": "path", "required": True},
            "missing_of": {"type": "list", "elements": "str", "default": []},
            "packages": {"type": "dict", "default": {}},
            "gpg_key": {"type": "str", "no_log": False},
            "locks": {"type": "list", "elements": "str"},
            "changes": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**work(module.params, module.check_mode))
    except (rpm_marks.RpmError, ValueError, OSError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
