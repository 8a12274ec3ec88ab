"""The flags that an instance gets, and who set each of them: vllm-node < profile < the instance's own args.

The role `vllm` writes the unit with this, and `explain` tells it: there is no second place that decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_node.serving.applied import applied, usual_batch
from vllm_node.serving.defaults import DEFAULTS, Batch
from vllm_node.serving.flags.known import written
from vllm_node.serving.own import own
from vllm_node.serving.place import Place
from vllm_node.serving.profiles import CUSTOM, PROFILES
from vllm_node.serving.settings import DEFAULT, INVENTORY, SEQS, TOKENS, LeftOut, Setting, Site, number


@dataclass(frozen=True)
class Effective:
    """`settings` are written into the unit, in their order; `defaults` are what vLLM does besides."""

    name: str
    profile: str
    place: Place
    settings: tuple[Setting, ...]
    defaults: tuple[Setting, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def args(self) -> dict[str, Any]:
        """Flags and values as `vllm_node.units.vllm_args` takes them."""
        return {each.key: each.written for each in self.settings}

    def value(self, flag: str) -> Any:
        """What holds for a flag, whoever set it; None where nothing is set or known."""
        return next((each.value for each in (*self.settings, *self.defaults) if each.flag == flag), None)


def effective(entry: Mapping[str, Any], place: Place, drain_s: int = 60) -> Effective:
    """What an entry of `vllm_instances` comes to at a place. Raises nothing for what the site wrote."""
    site = Site(entry.get("args"))
    profile = PROFILES.get(str(entry.get("profile") or CUSTOM), PROFILES[CUSTOM])
    found, left_out = own(entry, site, place, drain_s)
    more, not_written = applied(profile, site, place)
    found |= more
    for flag, key, value in site:
        found[flag] = Setting(key, flag, value, INVENTORY, _said(value, found.get(flag)))
    return Effective(
        name=str(entry.get("name")),
        profile=profile.name,
        place=place,
        settings=tuple(found.values()),
        defaults=_defaults(found, site, place),
        left_out=(*left_out, *not_written),
    )


def conflict(found: Effective) -> Batch | None:
    """The batch that vLLM would refuse: fewer tokens in a step than requests that run in it. None where it is fine."""
    tokens, seqs = number(found.value(TOKENS)), number(found.value(SEQS))
    return Batch(tokens, seqs) if tokens is not None and seqs is not None and tokens < seqs else None


def _said(value: Any, before: Setting | None) -> str:
    told = "args of the instance leave it out." if value is None else "Set in args of the instance."
    if before is None or before.value == value:
        return told
    return f"{told} {before.origin} would have written {before.value}."


def _defaults(found: Mapping[str, Setting], site: Site, place: Place) -> tuple[Setting, ...]:
    """What vLLM does where nobody said anything, as far as it is known."""
    if place.version is None:
        return ()
    rows = [
        Setting(each.flag, each.flag, each.value(place.version), DEFAULT, each.reason)
        for each in DEFAULTS
        if each.flag not in found
    ]
    said = {flag: number(found[flag].value) if flag in found else None for flag in (TOKENS, SEQS)}
    usual = usual_batch(site, place, tokens=said[TOKENS], seqs=said[SEQS])
    if usual is not None:
        whose = f"vLLM {written(place.version)} takes this {place.told[1]}."
        for flag, value, meaning in (
            (TOKENS, usual.tokens, "Tokens of a step, those of prompts and of answers together."),
            (SEQS, usual.seqs, "Requests that run at once."),
        ):
            if flag not in found:
                rows.append(Setting(flag, flag, value, DEFAULT, f"{meaning} {whose}"))
    return tuple(rows)
