#!/usr/bin/python
"""One silence of the node's Alertmanager, known by its comment."""

from __future__ import annotations

DOCUMENTATION = r"""
module: alert_silence
short_description: Keep alerts quiet for a while, or end that early
description:
  - A silence is known by its comment, so that a second call extends the first one instead of adding another.
  - It ends by itself after I(duration_s), whatever becomes of who asked for it.
options:
  url: {type: str, required: true, description: Address of Alertmanager.}
  comment: {type: str, required: true, description: Why it is quiet; also what the silence is known by.}
  state: {type: str, choices: [present, absent], default: present, description: Whether the silence is there.}
  duration_s: {type: int, default: 3600, description: How long from now it lasts at most.}
  matchers:
    type: list
    elements: dict
    default: []
    description: What is silenced; all of them have to match. Needed for C(present).
    options:
      name: {type: str, required: true, description: Label.}
      value: {type: str, required: true, description: What it has to be.}
      regex: {type: bool, default: false, description: Whether the value is a regular expression over all of it.}
author: [vllm-node maintainers]
"""

RETURN = r"""
ids: {description: Silences that were made or ended., type: list, returned: always}
"""

import json
import time

from ansible.module_utils import loopback
from ansible.module_utils.basic import AnsibleModule

CREATOR = "vllm-node"
LIMIT_S = 20


def ask(url, method="GET", body=None):
    """Answer of Alertmanager's API as data; RuntimeError with its own words when it refuses."""
    try:
        status, text = loopback.ask(url, LIMIT_S, body, method)
    except loopback.SilentError as error:
        raise RuntimeError("%s does not answer: %s" % (url, error)) from None
    if status >= 400:
        raise RuntimeError("%s answers %d: %s" % (url, status, text[:300]))
    return json.loads(text) if text.strip() else None


def stamp(epoch_s):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch_s))


def ours(silence, comment):
    return (
        silence["comment"] == comment
        and silence["createdBy"] == CREATOR
        and silence["status"]["state"] in ("active", "pending")
    )


def main():
    matcher = {
        "name": {"type": "str", "required": True},
        "value": {"type": "str", "required": True},
        "regex": {"type": "bool", "default": False},
    }
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "comment": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "duration_s": {"type": "int", "default": 3600},
            "matchers": {"type": "list", "elements": "dict", "default": [], "options": matcher},
        },
        required_if=[("state", "present", ("matchers",))],
        supports_check_mode=True,
    )
    args = module.params
    place = args["url"].rstrip("/") + "/api/v2/"
    try:
        known = [each for each in ask(place + "silences") if ours(each, args["comment"])]
        if args["state"] == "absent":
            for each in known if not module.check_mode else []:
                ask(place + "silence/" + each["id"], "DELETE")
            module.exit_json(changed=bool(known), ids=[each["id"] for each in known])
        if not args["matchers"]:
            module.fail_json(msg="a silence without matchers would silence everything")
        now = time.time()
        body = {
            "comment": args["comment"],
            "createdBy": CREATOR,
            "startsAt": stamp(now),
            "endsAt": stamp(now + args["duration_s"]),
            "matchers": [
                {"name": each["name"], "value": each["value"], "isRegex": each["regex"], "isEqual": True}
                for each in args["matchers"]
            ],
        }
        if known:
            body["id"] = known[0]["id"]
        made = [] if module.check_mode else [ask(place + "silences", "POST", body)["silenceID"]]
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=True, ids=made)


if __name__ == "__main__":
    main()
