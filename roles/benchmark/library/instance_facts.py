#!/usr/bin/python
"""Ansible module: what a vLLM instance is and does right now. See DOCUMENTATION below."""

from __future__ import annotations

DOCUMENTATION = r"""
module: instance_facts
short_description: Tells what a vLLM instance runs, which model it serves, and whether others use it
description:
  - Asks podman, systemd, the instance itself and its model's small files, side by side and each with a time limit.
  - Changes nothing and sends no request that the model would work on.
  - What could not be seen is V(null), never zero, and listed in RV(facts.unseen) with the reason.
options:
  instance: {description: "Name of the instance, as in C(vllm_instances).", type: str, required: true}
  port: {description: Port of its API on loopback., type: int, required: true}
  model_path: {description: Folder or file of the model on the node., type: path}
  container: {description: "Name of the container; C(vllm-) and the instance's name when left out.", type: str}
  prometheus_url:
    description: Address of the node's Prometheus. Without it nobody knows what the instance did a moment ago.
    type: str
  api_key: {description: Key of the API., type: str}
  time_limit_s: {description: Limit for each question; the module ends within twice this., type: float, default: 8}
author: [vllm-node maintainers]
"""

RETURN = r"""
facts:
  description:
    - "C(image): C(name), C(id), C(digest), C(digests) (all by which it can be pulled). C(command): words after the
      image's entry point, without secrets. C(started_at). C(unit): C(active), C(restarts)."
    - "C(version) of vLLM, C(served_models), C(max_model_len), C(cache_config) (labels of C(vllm:cache_config_info))."
    - "C(model): C(path), C(files) (sizes by name), C(config_sha256), C(facts) (vocabulary, special tokens, context)."
    - "C(activity): C(running) and C(waiting) requests now, C(finished_last_minute), and C(busy), which is true when one
      of these is not zero and null when the first two are not known."
    - "C(own_load_s_ago): seconds since a load of C(load_run) or C(peer_run) ended here, null when there was none."
    - "C(unseen): a list of C(what) and C(why)."
  type: dict
  returned: always
"""

import hashlib
import json
import os
import re
import time
import urllib.parse
from functools import partial

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.loopback import SilentError, ask
from ansible.module_utils.snapshot_host import Aside, Host, Probes, collect

LIMIT_BYTES = 64 * 2**20
MOST_FILES = 5000
HIDDEN = "(hidden)"
SECRET = re.compile(r"(^|-)(key|keys|token|secret|password|passphrase)$")
FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
FINISHED = 'sum(increase(vllm:request_success_total{job="vllm", instance="%s"}[1m]))'
TOP = ("image", "command", "started_at", "unit", "version", "served_models", "max_model_len", "cache_config", "model")
ACTIVITY = ("running", "waiting", "finished_last_minute")


class UnseenError(Exception):
    """Something could not be seen; the text says why."""


def fetch(url, limit_s, api_key=None):
    """Text of a page; UnseenError when it does not come."""
    try:
        status, text = ask(url, limit_s, headers={"Authorization": "Bearer " + api_key} if api_key else None)
    except SilentError as error:
        raise UnseenError(str(error)) from None
    if status != 200:
        hint = ": the API wants its key" if status in (401, 403) else ""
        raise UnseenError("%s answers %d%s" % (urllib.parse.urlsplit(url).path, status, hint))
    return text


def document(text, what):
    """JSON of an answer; UnseenError when it is none."""
    try:
        return json.loads(text)
    except ValueError:
        raise UnseenError("%s is no JSON" % what) from None


def without_secrets(words):
    """Words of a command line; the value of a flag that is a secret is hidden, all words of it."""
    kept, hide = [], False
    for word in words:
        flag, joined, _ = word.partition("=")
        if FLAG.fullmatch(flag):
            hide = SECRET.search(flag.replace("_", "-").lstrip("-")) is not None
            kept.append(flag + "=" + HIDDEN if hide and joined else word)
        else:
            kept.append(HIDDEN if hide else word)
    return kept


def look_container(host, name):
    """{image, command, started_at}; UnseenError when there is no such container."""
    if not host.which("podman"):
        raise UnseenError("podman is not installed")
    answer = host.run("podman", "container", "inspect", name)
    if not answer.ok:
        raise UnseenError("podman container inspect %s: %s" % (name, answer.trouble))
    try:
        row = document(answer.out, "podman's answer")[0]
        state, config = row["State"], row["Config"]
        image = {
            "name": row.get("ImageName"),
            "id": row.get("Image"),
            "digest": row.get("ImageDigest") or None,
            "digests": [],
        }
        running = state.get("Running", state.get("Status") == "running")
        command = without_secrets([str(word) for word in config.get("Cmd") or []])
    except (KeyError, IndexError, TypeError, AttributeError):
        raise UnseenError("podman's answer cannot be read") from None
    if not running:
        raise UnseenError("the container %s does not run (%s)" % (name, state.get("Status")))
    # An image that was pulled by the digest of a list of platforms has that one, and the digest of its platform.
    answer = host.run("podman", "image", "inspect", "--format", "{{json .RepoDigests}}", str(image["id"]))
    if answer.ok:
        names = document(answer.out, "podman's answer") or []
        image["digests"] = sorted({one.rpartition("@")[2] for one in names})
    else:
        host.unseen("image.digests", "podman image inspect: " + answer.trouble)
    return {"image": image, "command": command, "started_at": state.get("StartedAt")}


def look_unit(host, unit):
    """{active, restarts} of a unit."""
    answer = host.run("systemctl", "show", "--property=ActiveState,NRestarts", unit)
    if not answer.ok:
        raise UnseenError("systemctl show: " + answer.trouble)
    said = dict(line.partition("=")[::2] for line in answer.out.splitlines())
    restarts = said.get("NRestarts", "")
    return {"active": said.get("ActiveState"), "restarts": int(restarts) if restarts.isdigit() else None}


def look_own_load(host):
    """Seconds since a load of ours ended here, as the journal tells; None where it knows of none."""
    units = ("--unit=vllm-node-load.service", "--unit=vllm-node-peer.service")
    answer = host.run("journalctl", *units, "--boot", "--lines=1", "--output=json", "--no-pager")
    try:
        at_us = int(json.loads(answer.out.splitlines()[-1])["__REALTIME_TIMESTAMP"])
    except (IndexError, KeyError, TypeError, ValueError):
        return None
    return max(0.0, time.time() - at_us / 1e6)


def look_version(url, limit_s, api_key):
    said = document(fetch(url + "/version", limit_s, api_key), "/version")
    if not isinstance(said, dict) or not isinstance(said.get("version"), str):
        raise UnseenError("/version names no version")
    return said["version"]


def look_models(url, limit_s, api_key):
    """{served_models, max_model_len}; the length is None when the first model tells none."""
    said = document(fetch(url + "/v1/models", limit_s, api_key), "/v1/models")
    try:
        models = said["data"]
        length = models[0].get("max_model_len")
        return {"served_models": [str(one["id"]) for one in models], "max_model_len": length}
    except (KeyError, IndexError, TypeError, AttributeError):
        raise UnseenError("/v1/models lists no model") from None


def look_metrics(url, limit_s, api_key):
    """{cache_config, running, waiting}; each None when the page does not have it."""
    text = fetch(url + "/metrics", limit_s, api_key)
    found = {"cache_config": None, "running": None, "waiting": None}
    for line in text.split("\n"):
        if line.startswith("vllm:cache_config_info{") and found["cache_config"] is None:
            labels = {name: re.sub(r"\\(.)", r"\1", value) for name, value in LABEL.findall(line)}
            found["cache_config"] = labels
        for name in ("running", "waiting"):
            if re.match(r"vllm:num_requests_%s[{ ]" % name, line):
                found[name] = (found[name] or 0.0) + float(line.rpartition(" ")[2])
    return found


def look_recent(prometheus_url, instance, limit_s):
    """Requests that ended in the last minute."""
    if not prometheus_url:
        raise UnseenError("no Prometheus was named to be asked")
    query = urllib.parse.urlencode({"query": FINISHED % instance.replace("\\", "\\\\").replace('"', '\\"')})
    said = document(fetch(prometheus_url.rstrip("/") + "/api/v1/query?" + query, limit_s), "Prometheus's answer")
    try:
        rows = said["data"]["result"]
        value = float(rows[0]["value"][1]) if rows else None
    except (KeyError, IndexError, TypeError, ValueError):
        raise UnseenError("Prometheus's answer cannot be read") from None
    if value is None:
        raise UnseenError("Prometheus has not scraped the instance in the last minute")
    return value


def read_json(folder, name):
    """A JSON object in the model's folder; empty when there is none that can be read."""
    try:
        with open(os.path.join(folder, name), "rb") as stream:
            found = json.loads(stream.read(LIMIT_BYTES).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def look_model(path):
    """{path, files, config_sha256, facts}. Raises OSError. May hang on a dead mount: call it aside."""
    os.stat(path)
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    names = sorted(os.listdir(path)) if folder == path else [os.path.basename(path)]
    files = {}
    for name in names[:MOST_FILES]:
        place = os.path.join(folder, name)
        if os.path.isfile(place):
            files[name] = os.path.getsize(place)
    digest = None
    if "config.json" in files:
        with open(os.path.join(folder, "config.json"), "rb") as stream:
            digest = hashlib.sha256(stream.read(LIMIT_BYTES)).hexdigest()
    facts = model_facts(folder, files) if folder == path else None
    return {"path": path, "files": files, "config_sha256": digest, "facts": facts}


def model_facts(folder, files):
    """What a workload has to know of a model; None for what its files do not say, or say in another form."""
    config = read_json(folder, "config.json")
    generation = read_json(folder, "generation_config.json")
    tokenizer = read_json(folder, "tokenizer_config.json")
    # A model of several kinds of input keeps what is about text apart.
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}

    def first(key, kinds):
        said = (one.get(key) for one in (config, text, generation))
        return next((value for value in said if isinstance(value, kinds) and not isinstance(value, bool)), None)

    ids = {key: numbers(*(one.get(key) for one in (config, text, generation))) for key in TOKENS}
    added = tokenizer.get("added_tokens_decoder")
    if isinstance(added, dict):
        special = {int(key) for key, one in added.items() if key.isdigit() and is_special(one)}
    else:
        # Newer tokenizers keep them in the large file only.
        entries = read_json(folder, "tokenizer.json").get("added_tokens")
        entries = entries if isinstance(entries, list) else []
        special = {one["id"] for one in entries if is_special(one) and isinstance(one.get("id"), int)}
    quantization = config.get("quantization_config")
    return {
        "architectures": config.get("architectures"),
        "model_type": config.get("model_type"),
        "dtype": config.get("torch_dtype") or config.get("dtype"),
        "quantization": quantization.get("quant_method") if isinstance(quantization, dict) else None,
        "vocab_size": first("vocab_size", int),
        "max_position_embeddings": first("max_position_embeddings", int),
        **{key + "s": sorted(found) for key, found in ids.items()},
        "special_token_ids": sorted(special.union(*ids.values())),
        "chat_template": bool(tokenizer.get("chat_template")) or "chat_template.jinja" in files,
    }


TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def numbers(*values):
    """All whole numbers in these, which are numbers, lists of such, or something else."""
    flat = [one for value in values for one in (value if isinstance(value, list) else [value])]
    return {one for one in flat if isinstance(one, int) and not isinstance(one, bool)}


def is_special(token):
    return isinstance(token, dict) and bool(token.get("special"))


def busy(activity):
    """Whether somebody uses the instance; None when it does not tell what it does now."""
    if any(value for value in activity.values()):
        return True
    return None if activity["running"] is None or activity["waiting"] is None else False


def take(host, args):
    """All facts. Ends within about twice the host's time limit, whatever hangs."""
    name = args["container"] or "vllm-" + args["instance"]
    url, key, limit_s = "http://127.0.0.1:%d" % args["port"], args["api_key"], host.time_limit_s
    # Forked before any thread starts, so that the child holds no lock of another thread.
    path = args["model_path"]
    asides = [Aside("model", partial(look_model, path))] if path else []
    probes = Probes(host)
    questions = {
        "container": partial(look_container, host, name),
        "unit": partial(look_unit, host, name + ".service"),
        "version": partial(look_version, url, limit_s, key),
        "models": partial(look_models, url, limit_s, key),
        "metrics": partial(look_metrics, url, limit_s, key),
        "finished_last_minute": partial(look_recent, args["prometheus_url"], args["instance"], limit_s),
    }
    probes.start("own_load", partial(look_own_load, host))
    reasons = {}
    for what, question in questions.items():
        probes.start(what, partial(answered, question, reasons, what))
    collect(asides, host.started + limit_s)
    answers = probes.results(host.started + 1.8 * limit_s)
    late = {one["what"]: one["why"] for one in host.unseen_list()}

    facts = dict.fromkeys(TOP)
    facts["own_load_s_ago"] = answers.get("own_load")
    facts["activity"] = dict.fromkeys(ACTIVITY)
    parts = {
        "container": ("image", "command", "started_at"),
        "models": ("served_models", "max_model_len"),
        "metrics": ("cache_config", "running", "waiting"),
    }
    unseen = {what: why for what, why in late.items() if what not in questions}
    for question in questions:
        answer = answers.get(question)
        for part in parts.get(question, (question,)):
            value = answer.get(part) if question in parts and answer else answer
            (facts["activity"] if part in ACTIVITY else facts)[part] = value
            if value is None:
                unseen[part] = reasons.get(question) or late.get(question) or "the instance does not tell it"
    try:
        facts["model"] = asides[0].value() if asides else None
        if not asides:
            unseen["model"] = "no path of the model was given"
    except RuntimeError as error:
        unseen["model"] = str(error)
    facts["activity"]["busy"] = busy({key: facts["activity"][key] for key in ACTIVITY})
    facts["unseen"] = [{"what": what, "why": why} for what, why in sorted(unseen.items())]
    return facts


def answered(question, reasons, what):
    """The answer to a question; None, with the reason kept, when it cannot be had."""
    try:
        return question()
    except UnseenError as error:
        reasons[what] = str(error)
        return None


def main():
    module = AnsibleModule(
        argument_spec={
            "instance": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "model_path": {"type": "path"},
            "container": {"type": "str"},
            "prometheus_url": {"type": "str"},
            "api_key": {"type": "str", "no_log": True},
            "time_limit_s": {"type": "float", "default": 8.0},
        },
        supports_check_mode=True,
    )
    module.exit_json(changed=False, facts=take(Host(module.params["time_limit_s"]), module.params))


if __name__ == "__main__":
    main()
