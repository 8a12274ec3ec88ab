#!/usr/bin/python
"""The history of a node: tell it, note a failure in it, and choose what to go back to."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_generation
short_description: Read the history of a node, or note that its newest generation failed
description:
  - Installs nothing. C(list) tells the history, C(failed) notes why the newest generation is not what was wanted,
    C(give_up) does so and chooses what the node goes back to by itself, C(choose) what an operator asks for.
  - "A generation that is chosen is whole: each of its files was read and is as it was."
options:
  state_dir: {type: path, required: true, description: Folder of the manifest.}
  action: {type: str, choices: [list, failed, give_up, choose], default: list, description: What is wanted.}
  run: {type: str, default: "", description: Id of this run.}
  reason: {type: str, default: "", description: Why the newest generation failed.}
  to: {type: int, default: 0, description: "Number of the generation that C(choose) is to take; 0: the one before."}
author: [vllm-node maintainers]
"""

RETURN = r"""
generations: {description: "All generations, the newest last, without their files.", type: list, returned: always}
differs: {description: Files that are not as the newest generation has them., type: list, returned: always}
target: {description: "What is gone back to; null for nothing, and C(why) says why.", type: dict, returned: when asked}
secrets: {description: Names of secrets that are not what they were then., type: list, returned: with a target}
changes: {description: "What becomes different by going back, in words.", type: list, returned: with a target}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.generation_changes import changes, texts
from ansible.module_utils.generation_choice import by_itself, on_request
from ansible.module_utils.node_generations import Store, described, read_file


def without_files(generation):
    return {key: value for key, value in generation.items() if key not in ("files", "secret_files", "secrets")}


def differing(newest):
    """Files that are not what the newest generation has of them."""
    found = []
    for path, entry in (newest or {}).get("files", {}).items():
        there = read_file(path)
        if there is None or described({**there, "scope": entry["scope"]}) != entry:
            found.append(path)
    return found


def other_secrets(target, current):
    """Secrets of `target` with another value by now; what is not known of is not told."""
    found = []
    for kind in ("secrets", "secret_files"):
        now = current.get(kind) or {}
        found += [name for name, value in target[kind].items() if name in now and now[name] != value]
    return sorted(found)


def turned(store, current, target):
    """What becomes different by going back."""
    try:
        old = texts(store.files(current["number"]))
    except ValueError:
        return []
    # A secret is what it is, whatever is gone back to.
    return changes({**current, "secrets": {}}, target, old, texts(store.files(target["number"])))


def main():
    module = AnsibleModule(
        argument_spec={
            "state_dir": {"type": "path", "required": True},
            "action": {"type": "str", "choices": ["list", "failed", "give_up", "choose"], "default": "list"},
            "run": {"type": "str", "default": ""},
            "reason": {"type": "str", "default": ""},
            "to": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    args, store = module.params, Store(module.params["state_dir"])
    if args["action"] in ("failed", "give_up") and not module.check_mode:
        store.failed(args["run"], args["reason"])
    generations = store.all()
    newest = generations[-1] if generations else None
    told = {"generations": [without_files(one) for one in generations], "differs": differing(newest)}
    target, why = None, None
    try:
        if args["action"] == "choose":
            target = on_request(generations, args["to"])
        elif args["action"] == "give_up":
            target, why = by_itself(generations, args["run"])
        if target:
            store.files(target["number"])
            told["secrets"] = other_secrets(target, newest)
            told["changes"] = turned(store, newest, target)
    except ValueError as error:
        if args["action"] == "choose":
            module.fail_json(msg="%s; nothing was changed" % error, **told)
        target, why = None, str(error)
    module.exit_json(changed=False, target=target and without_files(target), why=why, **told)


if __name__ == "__main__":
    main()
