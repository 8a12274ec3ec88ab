"""RPM packages of a node: what the site's variables ask for, what dnf would do about it, and what its refusals mean."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

REPOSITORY = "vllm-node"
LOCK_PLUGIN = "python3-dnf-plugin-versionlock"
_NEVRA = re.compile(r"(?P<name>.+)-(?:\d+:)?(?P<rest>[^-:]+-[^-]+\.[^.-]+)")
_SPEC = re.compile(r"(?P<name>[A-Za-z0-9][\w.+-]*)( (?P<sign>>=|<=|=|>|<) (?P<version>[\w.:~^+-]+))?")


@dataclass(frozen=True)
class Plan:
    """A transaction that dnf would do. packages: full name → full name of what it replaces, or None."""

    packages: Mapping[str, str | None] = field(default_factory=dict)
    removed: tuple[str, ...] = ()


def repository_url(place: str) -> str | None:
    """URL of a repository given as a URL or as a path on the node; None when it is neither."""
    if re.fullmatch(r"/\S*", place):
        return f"file://{place}"
    return place if re.fullmatch(r"(file:///|https?://[^\s/@]+(/|$))\S*", place) else None


def package_name(spec: str) -> str | None:
    """Name in a wish like `podman >= 5.4`; None for what is no such wish: a group, a file, an option."""
    match = _SPEC.fullmatch(spec)
    return match["name"] if match else None


def plan(answer: Mapping[str, Any]) -> Plan:
    """What the answer of Ansible's dnf module says it did, or in check mode would do."""
    installed: dict[str, str] = {}
    removed: dict[str, str] = {}
    for line in answer.get("results") or []:
        word, _, text = str(line).partition(": ")
        match = _NEVRA.fullmatch(text.strip())
        if match and word in ("Installed", "Removed"):
            (installed if word == "Installed" else removed)[f"{match['name']}-{match['rest']}"] = match["name"]
    before = {name: full for full, name in removed.items()}
    return Plan(
        {full: before.get(name) for full, name in sorted(installed.items())},
        tuple(sorted(full for full, name in removed.items() if name not in installed.values())),
    )


def explain(answer: Mapping[str, Any], url: str) -> str:
    """What dnf's refusal means, and the next step."""
    said = "\n".join([str(answer.get("msg") or ""), *map(str, answer.get("failures") or [])]).strip()
    absent = re.findall(r"No package (.+?) available", said)
    if absent:
        return (
            f"{url} has no package {', '.join(dict.fromkeys(absent))} that this node can take: add it to the "
            "repository (and run createrepo_c there), or correct packages_install. A version lock hides packages too "
            "(dnf versionlock list)"
        )
    signature = re.search(r"GPG signature for (\S+): (.*)", said)
    if signature and "not signed" in signature[2]:
        return (
            f"{signature[1]} in {url} is not signed, and nothing was installed: sign it (rpmsign --addsign) with the "
            "key in packages_gpg_key, or take it from where it is signed"
        )
    if signature:
        return (
            f"{signature[1]} in {url} is not signed with the key in packages_gpg_key, and nothing was installed "
            f"({signature[2]}): give the key of whoever signed it, or sign it anew"
        )
    if re.search(r"metadata|repomd|synchroni[sz]e", said):
        return f"{url} cannot be read from the node: {said}. Check packages_repository, and that it is served"
    if "Depsolve" in said or "nothing provides" in said:
        return f"packages of {url} do not fit this node: {said}\nAdd what is missing to it: no other one is asked"
    return f"dnf: {said or 'it gave no reason'}"


def missing_of(specs: Sequence[str]) -> list[str]:
    """Names in the wishes, for a node that has no repository yet to ask dnf about."""
    return [name for spec in specs if (name := package_name(spec))]
