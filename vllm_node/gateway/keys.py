"""Keys of clients. A node gets their hashes only: 32 random characters cannot be guessed back from one."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

# Below this somebody may have thought the key up, and what was thought up can be guessed from its hash.
SHORTEST = 32
LONGEST = 256

_PLAIN = re.compile(r"[\x21-\x7e]+")
_HASH = re.compile(r"[0-9a-f]{64}")


def fresh() -> str:
    """A new random key: 43 letters, digits, dashes and underscores; 256 bits."""
    return secrets.token_urlsafe(32)


def digest(key: str) -> str:
    """SHA-256 of a key in hexadecimal digits, as `key_sha256` of a client takes it."""
    return hashlib.sha256(key.encode()).hexdigest()


def known_by(client: Mapping[str, Any]) -> str:
    """The hash by which an entry of `gateway_clients` is known on a node.

    Raises:
        ValueError: it has neither `key` nor `key_sha256`, or both, or one that cannot be.
    """
    key, given = client.get("key"), client.get("key_sha256")
    if (key is None) == (given is None):
        raise ValueError("it needs a key or a key_sha256, one of the two")
    if given is not None:
        if not _HASH.fullmatch(str(given)):
            raise ValueError("key_sha256 is 64 hexadecimal digits in small letters")
        return str(given)
    if not SHORTEST <= len(str(key)) <= LONGEST:
        raise ValueError(f"its key has {len(str(key))} characters; {SHORTEST} to {LONGEST} are wanted")
    if not _PLAIN.fullmatch(str(key)):
        raise ValueError("its key has a space or a character that a header cannot carry")
    return digest(str(key))


def table(clients: Iterable[Mapping[str, Any]]) -> str:
    """The file of all clients as the gateway reads it: `{keys: {hash: name}, models: {name: [...] or null for all}}`.

    Raises:
        ValueError: an entry that cannot be; preflight tells it in more words.
    """
    known = sorted(clients, key=lambda one: str(one["name"]))
    return (
        json.dumps(
            {
                "keys": {known_by(client): str(client["name"]) for client in known},
                "models": {str(client["name"]): client.get("models") for client in known},
            },
            indent=1,
        )
        + "\n"
    )
