#!/usr/bin/python
"""Whether an instance answers as an OpenAI-style server has to, before anybody measures how fast it is."""

from __future__ import annotations

DOCUMENTATION = r"""
module: smoke_check
short_description: Ask an instance the few things that have to be right before its speed matters
description:
  - The model is listed, an unknown one is refused, the same question has the same answer, a stream brings the same
    text in pieces and ends as it should, and usage counts the tokens that were asked for. With a key, a wrong one is
    refused. With O(question), that is answered.
  - It changes nothing. Each check tells what was seen; the caller decides what a failure means.
options:
  url: {type: str, required: true, description: Address of the instance.}
  model: {type: str, required: true, description: Name of its model.}
  has_key: {type: bool, default: false, description: Whether the instance asks for a key.}
  key: {type: str, no_log: true, description: That key.}
  limit_s: {type: int, default: 120, description: How long one answer may take.}
  question: {type: str, description: What the model is asked besides.}
  api: {type: str, choices: [chat, completions], default: chat, description: By which API.}
  max_tokens: {type: int, default: 32, description: How long that answer may be.}
author: [vllm-node maintainers]
"""

RETURN = r"""
checks:
  description: C(check), C(outcome) (pass, fail, not applicable) and C(seen) of each.
  type: list
  returned: always
answer:
  description: C(model), C(text) and C(tokens) (by usage) of the answer to O(question); null when there is none.
  type: dict
  returned: always
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.loopback import SilentError, ask

TOKENS = 8
# Ids that every vocabulary of a model that serves text has, and that are no special tokens in the usual ones. So few
# fill no block of the prefix cache: each answer is computed alike.
PROMPT = [300 + number for number in range(TOKENS)]
# Others in the same batch may turn a close decision. Who answers at random never agrees with himself.
MOST_ASKED = 4
NOBODY = "vllm-node-smoke-no-such-model"


class Answer:
    """Status and body of a request; status 0 with the reason when nobody answered."""

    def __init__(self, status, text):
        self.status, self.text = status, text

    def data(self):
        try:
            found = json.loads(self.text)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

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


def answer_to(question, server, model, api, max_tokens):
    """(the answer to a question, or None; what was seen)."""
    body = {"model": model, "max_tokens": max_tokens, "temperature": 0}
    if api == "chat":
        reply = server.ask("/v1/chat/completions", {**body, "messages": [{"role": "user", "content": question}]})
    else:
        reply = server.ask("/v1/completions", {**body, "prompt": question})
    try:
        found = reply.data()
        choice, tokens = found["choices"][0], found["usage"]["completion_tokens"]
        text = (choice["message"]["content"] if api == "chat" else choice["text"]) or ""
        answer = {"model": found["model"], "text": text, "tokens": tokens}
    except (KeyError, IndexError, TypeError):
        return None, str(reply)
    return answer, "%s tokens" % tokens


def checks(server, model, has_key):
    """(what has to be so, whether it is, what was seen), one after the other."""
    listed = server.ask("/v1/models")
    names = [one.get("id") for one in listed.data().get("data") or []]
    yield "the model is listed", model in names, ", ".join(map(str, names)) or str(listed)

    unknown = server.complete(NOBODY)
    yield "an unknown model is refused", unknown.status in (400, 404), str(unknown)

    first = server.complete(model)
    texts = [text_of(first), text_of(server.complete(model))]
    while texts[-1] != texts[-2] and len(texts) < MOST_ASKED:
        texts.append(text_of(server.complete(model)))
    same = texts[-1] is not None and texts[-1] == texts[-2]
    yield "the same question has the same answer", same, " and ".join(map(repr, texts))

    usage = first.data().get("usage") or {}
    counted = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    seen = "%s prompt and %s answer tokens, %d and %d were asked for" % (*counted, len(PROMPT), TOKENS)
    yield "usage counts the tokens", counted == (len(PROMPT), TOKENS), seen

    for _ in range(MOST_ASKED):
        streamed = server.complete(model, stream=True, stream_options={"include_usage": True})
        text, pieces, usage, done = stream_of(streamed)
        good = streamed.status == 200 and done and pieces > 1 and usage.get("completion_tokens") == TOKENS
        if not good or text in texts:
            break
    end = "ended" if done else "no [DONE]"
    seen = "%d pieces, %s tokens by usage, %s" % (pieces, usage.get("completion_tokens"), end)
    yield "a stream comes in pieces and ends", good, seen if streamed.status == 200 else str(streamed)
    seen = "%r in a stream, %r without" % (text, texts[-1])
    yield "a stream brings the same text", good and text in texts, seen

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
            "question": {"type": "str"},
            "api": {"type": "str", "choices": ["chat", "completions"], "default": "chat"},
            "max_tokens": {"type": "int", "default": 32},
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
    answer = None
    if args["question"]:
        answer, seen = answer_to(args["question"], server, args["model"], args["api"], args["max_tokens"])
        outcome = "pass" if answer and answer["tokens"] else "fail"
        found.append({"check": "the question is answered", "outcome": outcome, "seen": seen})
    module.exit_json(changed=False, checks=found, answer=answer)


if __name__ == "__main__":
    main()
