"""Where a node gets software from: which images podman trusts, where it looks for them, and whether there is dnf."""

from __future__ import annotations

import json
import re
from typing import Any

# The user's own file replaces the system's, and root's pulls are root's own.
POLICIES = ("/root/.config/containers/policy.json", "/etc/containers/policy.json")
REGISTRIES = ("/root/.config/containers/registries.conf", "/etc/containers/registries.conf")
REGISTRIES_FOLDERS = ("/etc/containers/registries.conf.d", "/root/.config/containers/registries.conf.d")
_LOCK_CONFIG = "/etc/dnf/plugins/versionlock.conf"
_FINDS_DNF = "import importlib.util, sys; sys.exit(importlib.util.find_spec('dnf') is None)"


def probe(host: Any) -> dict[str, Any]:
    """{policy: {path, rules, error}, registries: [{path, text}], dnf: {path, python, version_locks} or None}.

    `registries` comes in the order in which podman reads it: what is later wins. `path` of the policy is None where
    there is none, which podman refuses.
    """
    return {"policy": policy(host), "registries": registries(host), "dnf": dnf(host)}


def policy(host: Any) -> dict[str, Any]:
    """The trust policy, of which only the kinds of its rules are kept: {"default": [...], "docker": {scope: [...]}}."""
    path = next((path for path in POLICIES if host.exists(path)), None)
    found: dict[str, Any] = {"path": path, "rules": None, "error": None}
    if path is None:
        return found
    text = host.read(path)
    try:
        if text is None:
            raise ValueError("it cannot be read")
        data = json.loads(text)
        found["rules"] = {"default": _kinds(data["default"])}
        for transport, scopes in (data.get("transports") or {}).items():
            found["rules"][transport] = {scope: _kinds(rules) for scope, rules in scopes.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        missing = isinstance(error, KeyError)
        found.update(rules=None, error=f"it has no {error}" if missing else str(error))
    return found


def _kinds(rules: list[dict[str, Any]]) -> list[str]:
    if not rules:
        raise ValueError("it has an empty list of rules")
    return [str(rule["type"]) for rule in rules]


def registries(host: Any) -> list[dict[str, str]]:
    """registries.conf and its drop-ins, those that are there."""
    main = next((path for path in REGISTRIES if host.exists(path)), None)
    paths = [main] if main else []
    for folder in REGISTRIES_FOLDERS:
        paths += [f"{folder}/{name}" for name in host.names(folder) if name.endswith(".conf")]
    texts = ((path, host.read(path)) for path in paths)
    return [{"path": path, "text": text} for path, text in texts if text is not None]


def dnf(host: Any) -> dict[str, Any] | None:
    """dnf, whether the platform's Python finds its library, and whether its plugin for version locks is switched on."""
    path = host.which("dnf")
    if path is None:
        return None
    locks = host.read(_LOCK_CONFIG)
    off = re.search(r"^\s*enabled\s*=\s*(0|no|false|off)\s*$", locks or "", re.M | re.I)
    return {
        "path": path,
        "python": host.run("/usr/bin/python3", "-c", _FINDS_DNF).ok,
        "version_locks": locks is not None and not off,
    }
