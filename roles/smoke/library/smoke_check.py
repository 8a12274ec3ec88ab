#!/usr/bin/python
"""Whether an instance answers as an OpenAI-style server has to, before anybody measures how fast it is."""

from __future__ import annotations

DOCUMENTATION = r"""
module: smoke_check
short_description: Ask an instance the few things that have to be right before its speed matters
description:
  - The model is listed, an unknown one is refused, the same question has the same answer, a stream brings the same
    text in pieces and ends as it should, and usage counts the tokens that were asked for. With a key, a wrong one is
    refused.
  - It changes nothing. Each check tells what was seen; the caller decides what a failure means.
options:
  url: {type: str, required: true, description: Address of the instance.}
  model: {type: str, required: true, description: Name of its model.}
  has_key: {type: bool, default: false, description: Whether the instance asks for a key.}
  key: {type: str, no_log: true, description: That key.}
  limit_s: {type: int, default: 120, description: How long one answer may take.}
author: [vllm-node maintainers]
"""

RETURN = r"""
checks:
  description: C(check), C(outcome) (pass, fail, not applicable) and C(seen) of each.
  type: list
  returned: always
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.loopback import SilentError, ask

TOKENS = 8
PROMPT = "The node answers"
# Ids that every vocabulary of a model that serves text has, and that are no special tokens in the usual ones.
PROMPT_IDS = [300 + number for number in range(TOKENS)]
NOBODY = "vllm-node-smoke-no-such-model"


class Answer:
    """Status and body of a request; status 0 with the reason when nobody answered."""

    def __init__(self, status, text):
        self.status, self.text = status, text

    def data(self):
        try:
            return json.loads(self.text)
        except ValueError:
            return {}

    def __str__(self):
        return "%s: %s" % (self.status or "no answer", " ".join(self.text.split())[:200])


class Server:
    """The instance."""

    def __init__(self, url, key, limit_s):
        self.url, self.key, self.limit_s = url.rstrip("/"), key, limit_s

    def ask(self, path, body=None, key=None):
        key = key or self.key
        headers = {"Authorization": "Bearer " + key} if key else None
        try:
            return Answer(*ask(self.url + path, self.limit_s, body, headers=headers))
        except SilentError as error:
            return Answer(0, str(error))

    def complete(self, model, key=None, **more):
        body = {"model": model, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "seed": 1, "ignore_eos": True}
        return self.ask("/v1/completions", {**body, **more}, key)


def text_of(answer):
    """The text of a completion, or None."""
    try:
        return answer.data()["choices"][0]["text"]
    except (KeyError, IndexError, TypeError):
        return None


def stream_of(answer):
    """(text, events with a choice, usage, whether it ended with [DONE]) of a stream."""
    words = [line[5:].strip() for line in answer.text.splitlines() if line.startswith("data:")]
    text, pieces, usage = "", 0, None
    for word in words:
        try:
            event = json.loads(word)
        except ValueError:
            continue
        usage = event.get("usage") or usage
        for choice in event.get("choices") or []:
            # A token may be a part of a character: it is an event all the same, with no text yet.
            pieces += 1
            text += choice.get("text") or ""
    return text, pieces, usage or {}, bool(words) and words[-1] == "[DONE]"


def checks(server, model, has_key):
    """(what has to be so, whether it is, what was seen), one after the other."""
    listed = server.ask("/v1/models")
    names = [one.get("id") for one in listed.data().get("data") or []]
    yield "the model is listed", model in names, ", ".join(map(str, names)) or str(listed)

    unknown = server.complete(NOBODY)
    yield "an unknown model is refused", unknown.status in (400, 404), str(unknown)

    # The first answer fills the prefix cache; those after it are computed alike.
    first = server.complete(model)
    second, third = server.complete(model), server.complete(model)
    same = text_of(second) is not None and text_of(second) == text_of(third)
    yield "the same question has the same answer", same, "%r and %r" % (text_of(second), text_of(third))

    usage = server.complete(model, prompt=PROMPT_IDS).data().get("usage") or {}
    counted = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    seen = "%s prompt and %s answer tokens, %d and %d were asked for" % (*counted, len(PROMPT_IDS), TOKENS)
    yield "usage counts the tokens", counted == (len(PROMPT_IDS), TOKENS), seen

    streamed = server.complete(model, stream=True, stream_options={"include_usage": True})
    text, pieces, usage, done = stream_of(streamed)
    good = streamed.status == 200 and done and pieces > 1 and usage.get("completion_tokens") == TOKENS
    end = "ended" if done else "no [DONE]"
    seen = "%d pieces, %s tokens by usage, %s" % (pieces, usage.get("completion_tokens"), end)
    yield "a stream comes in pieces and ends", good, seen if streamed.status == 200 else str(streamed)
    yield "a stream brings the same text", good and text == text_of(third), "%r and %r" % (text, text_of(third))

    if has_key:
        refused = server.complete(model, key="vllm-node-smoke-wrong-key")
        yield "a wrong key is refused", refused.status in (401, 403), str(refused)
    if first.status == 0:
        yield "the instance answers", False, str(first)


def main():
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "model": {"type": "str", "required": True},
            "has_key": {"type": "bool", "default": False},
            "key": {"type": "str", "no_log": True},
            "limit_s": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    args = module.params
    server = Server(args["url"], args["key"], args["limit_s"])
    found = [
        {"check": what, "outcome": "pass" if good else "fail", "seen": seen}
        for what, good, seen in checks(server, args["model"], args["has_key"])
    ]
    if not args["has_key"]:
        seen = "the instance listens on loopback and asks for no key"
        found.append({"check": "a wrong key is refused", "outcome": "not applicable", "seen": seen})
    module.exit_json(changed=False, checks=found)


if __name__ == "__main__":
    main()
