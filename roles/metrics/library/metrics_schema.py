#!/usr/bin/python
"""Which metrics the endpoints of a node offer: names, types, labels and edges, but not what they say."""

from __future__ import annotations

DOCUMENTATION = r"""
module: metrics_schema
short_description: Schema of the metrics that endpoints on loopback offer
description:
  - Fetches each page, all at once, and tells what series are in it. Values of samples and of labels stay on the node,
    but for the edges of histograms, the quantiles of summaries, and the version of vLLM.
options:
  endpoints:
    type: list
    elements: dict
    required: true
    description: C(job), C(instance), C(url) of each page, and C(enabled). What is not enabled is not asked.
  limit_s: {type: float, default: 10, description: How long a page may take.}
author: [vllm-node maintainers]
"""

RETURN = r"""
endpoints:
  description:
    - C(job), C(instance), C(url), C(state) (ok; gone - it did not answer with metrics; off - not enabled), C(error),
      C(version) of vLLM, C(metrics).
  type: list
  returned: always
"""

import concurrent.futures
import json
import re
import urllib.parse

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.loopback import SilentError, ask

LOOPBACK = ("127.0.0.1", "localhost", "::1")
# An exporter with a thousand times as much is not one of ours.
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
SAMPLE = re.compile(r"(%s)\s*(?:\{|\s)" % NAME)
ABOUT = re.compile(r"#\s*(TYPE|UNIT)\s+(%s)\s+(\S+)\s*$" % NAME)
PARTS = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}


def schema(text):
    """Family → type, unit, labels, edges, quantiles, suffixes, series, of a page in Prometheus' text format.

    ValueError names the first line that is not of that format.
    """
    families, types, units = {}, {}, {}
    # Not splitlines(): the value of a label may hold characters that it takes for the end of a line.
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if line.startswith("#"):
            about = ABOUT.match(line)
            if about:
                (types if about.group(1) == "TYPE" else units)[about.group(2)] = about.group(3)
        elif line:
            try:
                name, labels = sample(line)
            except ValueError:
                raise ValueError("line %d is no metric: %s" % (number, line[:80])) from None
            add(families, types, name, labels)
    return {name: told(family, units.get(name)) for name, family in sorted(families.items())}


def sample(line):
    """Name of a sample and its labels; ValueError for what is none."""
    start = SAMPLE.match(line)
    if not start:
        raise ValueError(line)
    end, labels = start.end(), {}
    if line[end - 1] == "{":
        while True:
            label = LABEL.match(line, end)
            if not label:
                break
            labels[label.group(1)] = label.group(2)
            end = label.end()
        rest = re.match(r"\s*\}", line[end:])
        if not rest:
            raise ValueError(line)
        end += rest.end()
    float(line[end:].split()[0] if line[end:].split() else "")
    return start.group(1), labels


def add(families, types, name, labels):
    """Count a sample in its family."""
    owner, suffix = owner_of(types, name)
    kind = types.get(owner, "untyped")
    family = families.setdefault(
        owner, {"type": kind, "labels": set(), "edges": [], "quantiles": [], "suffixes": set(), "series": 0}
    )
    for special, place in (("le", "edges"), ("quantile", "quantiles")):
        if special in labels and kind == {"le": "histogram", "quantile": "summary"}[special]:
            value = labels.pop(special)
            if value not in family[place]:
                family[place].append(value)
    family["labels"].update(labels)
    family["suffixes"].add(suffix)
    family["series"] += 1


def owner_of(types, name):
    """Family that a sample belongs to, and the rest of its name."""
    if name not in types:
        for kind, suffixes in PARTS.items():
            for suffix in suffixes:
                base = name[: -len(suffix)]
                if name.endswith(suffix) and types.get(base) == kind:
                    return base, suffix
    return name, ""


def told(family, unit):
    """What is said of a family; what is empty is left out."""
    said = {
        "type": family["type"],
        "unit": unit,
        "labels": sorted(family["labels"]),
        "edges": sorted(family["edges"], key=float),
        "quantiles": sorted(family["quantiles"], key=float),
        "suffixes": sorted(family["suffixes"] - {""}) if family["suffixes"] != {""} else [],
        "series": family["series"],
    }
    if "" in family["suffixes"] and said["suffixes"]:
        said["suffixes"] = ["", *said["suffixes"]]
    return {key: value for key, value in said.items() if value}


def fetch(url, limit_s):
    """Text of a page. SilentError or ValueError, in words, when it does not come."""
    if urllib.parse.urlsplit(url).hostname not in LOOPBACK:
        raise ValueError("%s is not on loopback" % url)
    status, text = ask(url, limit_s, headers={"Accept": "text/plain;version=0.0.4"})
    if status != 200:
        raise ValueError("HTTP %d" % status)
    return text


def version(url, limit_s):
    """Version of vLLM as its API tells it; None when it does not."""
    try:
        said = json.loads(fetch(urllib.parse.urljoin(url, "/version"), limit_s)).get("version")
    except (SilentError, ValueError, AttributeError):
        return None
    return said if isinstance(said, str) else None


def look(endpoint, limit_s):
    """What one endpoint offers."""
    found = {"job": endpoint["job"], "instance": endpoint["instance"], "url": endpoint["url"]}
    found.update(state="off", error=None, version=None, metrics={})
    if not endpoint.get("enabled", True):
        return found
    try:
        found["metrics"] = schema(fetch(endpoint["url"], limit_s))
        found["state"] = "ok"
    except (SilentError, ValueError) as error:
        found.update(state="gone", error=str(error))
    if endpoint["job"] == "vllm" and found["state"] == "ok":
        found["version"] = version(endpoint["url"], limit_s)
    return found


def main():
    module = AnsibleModule(
        argument_spec={
            "endpoints": {"type": "list", "elements": "dict", "required": True},
            "limit_s": {"type": "float", "default": 10},
        },
        supports_check_mode=True,
    )
    endpoints = module.params["endpoints"]
    with concurrent.futures.ThreadPoolExecutor(max(1, len(endpoints))) as pool:
        found = list(pool.map(lambda one: look(one, module.params["limit_s"]), endpoints))
    module.exit_json(changed=False, endpoints=found)


if __name__ == "__main__":
    main()
