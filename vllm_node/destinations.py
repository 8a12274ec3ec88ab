"""Where a node sends alerts and samples: what of an entry of the inventory becomes a secret, and what a file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
# The route that leads nowhere has this name.
_TAKEN = "nobody"


def destination_secrets(
    entries: Iterable[Mapping[str, Any]], prefix: str, keys: Sequence[str]
) -> list[dict[str, str]]:
    """Podman secrets `PREFIX-NAME-KEY` (`{name, value}`) for each of `keys` that an entry has."""
    return [
        {"name": f"{prefix}-{entry['name']}-{key}", "value": str(entry[key])}
        for entry in entries
        for key in keys
        if entry.get(key) is not None
    ]


def destination_authorities(entries: Iterable[Mapping[str, Any]], folder: str) -> list[dict[str, Any]]:
    """Files `NAME-ca.crt` below `folder`, as `stage` takes them, of entries that have a `ca`."""
    return [
        {"path": f"{folder}/{entry['name']}-ca.crt", "content": entry["ca"], "live": True}
        for entry in entries
        if entry.get("ca")
    ]


def scrape_target(instance: Mapping[str, Any], job: str) -> dict[str, Any]:
    """`{job, port, instance}` of an entry of `vllm_instances`."""
    return {"job": job, "port": instance["port"], "instance": instance["name"]}


def problems(variables: Mapping[str, Any]) -> list[str]:
    """What the types of `alertmanager_receivers` and `prometheus_remote_write` leave open, a sentence each."""
    receivers = _entries(variables.get("alertmanager_receivers"))
    stores = _entries(variables.get("prometheus_remote_write"))
    found = [*_names("alertmanager_receivers", receivers), *_names("prometheus_remote_write", stores)]
    for receiver in receivers:
        found += [f"alertmanager_receivers[{receiver['name']}]: {text}" for text in _receiver(receiver, variables)]
    for store in stores:
        if store.get("username") is not None and store.get("token") is not None:
            found.append(f"prometheus_remote_write[{store['name']}]: it has a username and a token; one of them counts")
        if (store.get("username") is None) != (store.get("password") is None):
            found.append(f"prometheus_remote_write[{store['name']}]: username and password go together")
    return found


def _entries(value: Any) -> list[Mapping[str, Any]]:
    """The entries that can be looked at; what else is wrong with their types is told by the argument specification."""
    given = value if isinstance(value, list) else []
    return [entry for entry in given if isinstance(entry, Mapping) and isinstance(entry.get("name"), str)]


def _names(variable: str, entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for name, count in Counter(entry["name"] for entry in entries).items():
        if count > 1:
            yield f"{variable}: the name {name} is there {count} times"
        if not _NAME.fullmatch(name) or name == _TAKEN:
            yield f"{variable}: {name!r} cannot be a name; take lower case letters, digits and dashes, and not {_TAKEN}"


def _receiver(receiver: Mapping[str, Any], variables: Mapping[str, Any]) -> Iterator[str]:
    if receiver.get("kind") == "mail":
        if not receiver.get("to"):
            yield "a mail needs an address (to)"
        for name in ("alertmanager_mail_smarthost", "alertmanager_mail_from"):
            if not variables.get(name):
                yield f"mails need {name}"
        if variables.get("alertmanager_mail_username") and not variables.get("alertmanager_mail_password"):
            yield "alertmanager_mail_username needs alertmanager_mail_password"
    elif not receiver.get("url"):
        yield f"a {receiver.get('kind')} needs a url"
