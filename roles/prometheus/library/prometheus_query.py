#!/usr/bin/python
"""Ansible module: ask a Prometheus many questions in one call. See DOCUMENTATION below."""

from __future__ import annotations

DOCUMENTATION = r"""
module: prometheus_query
short_description: Asks a Prometheus many expressions in one call
description:
  - Evaluates all expressions at one and the same moment, a few side by side, and changes nothing.
  - What an expression has no answer to is an empty list, and never zero; a value that is no number stays a word.
  - An expression that Prometheus refuses costs only its own answer. A Prometheus that does not answer fails the task.
options:
  url: {description: "Address of Prometheus, such as http://127.0.0.1:9091.", type: str, required: true}
  queries: {description: Expressions by name., type: dict, required: true}
  at: {description: Moment of the evaluation in seconds since 1970. The node's clock when left out., type: float}
  range:
    description: Asks for a range instead of one moment; not together with O(at).
    type: dict
    suboptions:
      start: {description: First moment in seconds since 1970., type: float, required: true}
      end: {description: Last moment in seconds since 1970., type: float, required: true}
      step: {description: Seconds between two values., type: float, required: true}
  time_limit_s: {description: Seconds that the whole call may take., type: float, default: 30}
author: [vllm-node maintainers]
"""

RETURN = r"""
answers:
  description:
    - "For each name C(result), a list of C(labels) with a C(value), or with C(values) (pairs of seconds since 1970
      and value) where a range was asked for; and C(error), a text or null."
    - A value is a number, or one of the words NaN, +Inf and -Inf.
  type: dict
  returned: success
at: {description: Moment of the evaluation in seconds since 1970., type: float, returned: when no range was asked for}
"""

import concurrent.futures
import json
import math
import time
import urllib.parse

from ansible.module_utils import loopback
from ansible.module_utils.basic import AnsibleModule

# Prometheus runs twenty queries at a time by default; dashboards and rules shall have theirs.
PARALLEL = 4
# Prometheus gives up by itself at its own limit; the socket waits a little longer to hear it say so.
GRACE_S = 1.0


def look(url, limit_s):
    """Raise SilentError when `url` is no Prometheus that is ready."""
    status, text = loopback.ask(url + "/-/ready", limit_s)
    if status == 503:
        raise loopback.SilentError("it is not ready yet (it reads its log after a start): " + text.strip()[:200])
    if status != 200:
        raise loopback.SilentError("/-/ready answers %d, so this is no Prometheus" % status)


def number(text):
    """A finite number, or the word that stands for what is none."""
    value = float(text)
    return value if math.isfinite(value) else text


def entry(kind, one):
    if kind == "matrix":
        return {"labels": one["metric"], "values": [[float(at), number(text)] for at, text in one["values"]]}
    return {"labels": one["metric"], "value": number(one["value"][1])}


def read(status, text):
    """Result out of Prometheus's answer. Raises ValueError with its own words when it refuses."""
    try:
        document = json.loads(text)
        if document["status"] != "success":
            raise ValueError("%s: %s" % (document["errorType"], document["error"]))
        kind, result = document["data"]["resultType"], document["data"]["result"]
        if kind == "scalar":
            return [{"labels": {}, "value": number(result[1])}]
        if kind == "string":
            raise ValueError("it gives the text %r, not numbers" % result[1])
        return [entry(kind, one) for one in result]
    except (json.JSONDecodeError, KeyError, IndexError, TypeError):
        raise ValueError("answer %d cannot be read: %s" % (status, text.strip()[:200])) from None


def ask(url, expression, when, end):
    """{result, error} of one expression; `end` is on the monotonic clock."""
    left = end - time.monotonic()
    if left <= 0:
        return {"result": [], "error": "not asked: the time limit was over"}
    path = "/api/v1/query_range" if "step" in when else "/api/v1/query"
    words = urllib.parse.urlencode(dict(when, query=expression, timeout="%dms" % max(1, left * 1000)))
    try:
        return {"result": read(*loopback.ask("%s%s?%s" % (url, path, words), left + GRACE_S)), "error": None}
    except (loopback.SilentError, ValueError) as error:
        return {"result": [], "error": str(error)}


def main():
    seconds = {"type": "float", "required": True}
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "queries": {"type": "dict", "required": True},
            "at": {"type": "float"},
            "range": {"type": "dict", "options": {"start": seconds, "end": seconds, "step": seconds}},
            "time_limit_s": {"type": "float", "default": 30.0},
        },
        mutually_exclusive=[("at", "range")],
        supports_check_mode=True,
    )
    args = module.params
    url = args["url"].rstrip("/")
    end = time.monotonic() + args["time_limit_s"]
    try:
        look(url, args["time_limit_s"])
    except loopback.SilentError as error:
        module.fail_json(
            msg="Prometheus at %s does not answer: %s; next: systemctl status prometheus.service, and "
            "journalctl -u prometheus.service" % (url, error)
        )
    if args["range"]:
        when, told = args["range"], {}
    else:
        told = {"at": time.time() if args["at"] is None else args["at"]}
        when = {"time": told["at"]}
    with concurrent.futures.ThreadPoolExecutor(max_workers=PARALLEL) as pool:
        asked = {
            name: pool.submit(ask, url, str(expression), when, end)
            for name, expression in sorted(args["queries"].items())
        }
        answers = {name: one.result() for name, one in asked.items()}
    module.exit_json(changed=False, answers=answers, **told)


if __name__ == "__main__":
    main()
