"""A profile applied to an instance: only what vLLM would not do by itself, and never against the site's own args.

A step must take at least as many tokens as requests run in it, or vLLM does not start. Where the site says one of the
two numbers, the profile's other one follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_node.serving.defaults import Batch, batch
from vllm_node.serving.own import too_old
from vllm_node.serving.place import Place
from vllm_node.serving.profiles import CUSTOM, OfRunning, Profile, ProfileValue
from vllm_node.serving.settings import SEQS, TOKENS, LeftOut, Setting, Site


def applied(profile: Profile, site: Site, place: Place) -> tuple[dict[str, Setting], list[LeftOut]]:
    """The flags that the profile writes, and those that it does not write for another reason than the site's args."""
    if profile.name == CUSTOM or place.version is None:
        return {}, []
    origin = f"profile {profile.name}"
    wanted, left_out = _possible(profile, origin, site, place)
    numbers, remarks = _batch(wanted, site, place)
    found: dict[str, Setting] = {}
    for flag in dict.fromkeys((*numbers, *wanted)):
        value = numbers[flag] if flag in numbers else _value(wanted[flag], numbers, site, place)
        if value is None:
            left_out.append(LeftOut(flag, f"{origin}: vLLM's own default is right here."))
        else:
            texts = (wanted[flag].reason if flag in wanted else "", remarks.get(flag, ""))
            found[flag] = Setting(flag, flag, value, origin, " ".join(filter(None, texts)))
    return found, left_out


def usual_batch(site: Site, place: Place, *, tokens: int | None, seqs: int | None) -> Batch | None:
    """What vLLM makes of a batch of which `tokens` and `seqs` are given; None where its defaults are not known."""
    if place.version is None or place.tier is None:
        return None
    ranks = (site.number("tensor-parallel-size") or 1) * (site.number("pipeline-parallel-size") or 1)
    return batch(
        place.version,
        place.tier,
        tokens=tokens,
        seqs=seqs,
        context=site.number("max-model-len"),
        ranks=ranks,
        throughput=site.value("performance-mode") == "throughput",
    )


def _possible(
    profile: Profile, origin: str, site: Site, place: Place
) -> tuple[dict[str, ProfileValue], list[LeftOut]]:
    """What the version has, what can be told without knowing more, and what the site leaves to the profile."""
    assert place.version is not None
    wanted: dict[str, ProfileValue] = {}
    left_out = []
    for each in profile.values:
        if each.flag in site:
            continue
        if place.version < each.since:
            left_out.append(LeftOut(each.flag, too_old(origin, place.version, each.since)))
        elif each.flag == "performance-mode" and site.value("enforce-eager") is True:
            left_out.append(LeftOut(each.flag, f"{origin}: with enforce-eager there are no CUDA graphs."))
        elif place.tier is None and not isinstance(each.values, int | str):
            left_out.append(LeftOut(each.flag, f"{origin}: it depends on the GPU, which is not known."))
        else:
            wanted[each.flag] = each
    return wanted, left_out


def _value(wanted: ProfileValue, numbers: Mapping[str, int | None], site: Site, place: Place) -> Any:
    if isinstance(wanted.values, OfRunning):
        given = {flag: site.number(flag) if flag in site else numbers.get(flag) for flag in (TOKENS, SEQS)}
        runs = usual_batch(site, place, tokens=given[TOKENS], seqs=given[SEQS])
        return None if runs is None else wanted.values.of(runs.seqs * (site.number("data-parallel-size") or 1))
    if isinstance(wanted.values, Mapping):
        return wanted.values.get(place.tier) if place.tier else None
    return wanted.values


def _batch(
    wanted: Mapping[str, ProfileValue], site: Site, place: Place
) -> tuple[dict[str, int | None], dict[str, str]]:
    """Both numbers as the profile writes them, None for vLLM's own; and what to say of those that were bent."""
    said_tokens, said_seqs = site.number(TOKENS), site.number(SEQS)
    seqs = said_seqs if said_seqs is not None else _number(wanted, SEQS, place)
    tokens = said_tokens if said_tokens is not None else _number(wanted, TOKENS, place)
    remarks: dict[str, str] = {}
    if said_tokens is not None and said_seqs is None and seqs is not None and seqs > said_tokens:
        seqs = said_tokens
        remarks[SEQS] = f"No more than {TOKENS}, which the instance sets: vLLM would not start."
    usual = usual_batch(site, place, tokens=None, seqs=seqs)
    if usual is None:
        return {}, {}
    if TOKENS not in site:
        context, least = site.number("max-model-len"), usual.seqs
        if tokens is not None and context is not None and tokens > least * context:
            tokens = least * context
            remarks[TOKENS] = f"No more than {least} requests of {context} tokens can need."
        if (usual.tokens if tokens is None else tokens) < least:
            tokens = least
            remarks[TOKENS] = f"No less than {SEQS}, which the instance sets: vLLM would not start."
    found: dict[str, int | None] = {}
    if TOKENS not in site and (TOKENS in wanted or TOKENS in remarks):
        found[TOKENS] = None if tokens == usual.tokens else tokens
    if SEQS in wanted:
        left = usual_batch(site, place, tokens=tokens, seqs=None)
        found[SEQS] = None if left is not None and seqs == left.seqs else seqs
    return found, remarks


def _number(wanted: Mapping[str, ProfileValue], flag: str, place: Place) -> int | None:
    values = wanted[flag].values if flag in wanted else None
    value = values.get(place.tier) if isinstance(values, Mapping) and place.tier else None
    return value if isinstance(value, int) else None
