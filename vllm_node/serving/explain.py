"""The flags of one instance explained, as text and as a document."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from vllm_node.bench.flags import HIDDEN
from vllm_node.serving.effective import Effective, effective
from vllm_node.serving.place import declared_gpu, place_of
from vllm_node.serving.profiles import PROFILES
from vllm_node.serving.reported import differences, observed, reported, secret
from vllm_node.serving.settings import LeftOut, Setting

SCHEMA = 1
_WIDTH = 116


def chosen(instances: Any, name: str = "") -> list[Mapping[str, Any]]:
    """The entries of `vllm_instances` that are meant: all of them, or the one of that name.

    Raises:
        ValueError: there is no such instance; the text is the end of a sentence that begins with the host.
    """
    entries = [entry for entry in instances or [] if isinstance(entry, Mapping)]
    found = [entry for entry in entries if not name or entry.get("name") == name]
    if name and not found:
        names = ", ".join(str(entry.get("name")) for entry in entries) or "none"
        raise ValueError(f"has no instance {name}; it has {names}")
    return found


def settings(
    entry: Mapping[str, Any], values: Mapping[str, Any], snapshot: Mapping[str, Any] | None = None
) -> Effective:
    """What an entry of `vllm_instances` comes to by a node's variables (`images_lock`, `vllm_*`)."""
    declared = declared_gpu(values.get("vllm_gpu_name"), values.get("vllm_gpu_memory_gib"))
    drain = values.get("vllm_drain_s")
    return effective(
        entry,
        place_of(entry, values.get("images_lock"), snapshot, declared),
        60 if drain is None else int(drain),
    )


def explanation(
    found: Effective,
    facts: Mapping[str, Any] | None = None,
    start: Mapping[str, Any] | None = None,
    silent: str | None = None,
) -> dict[str, Any]:
    """The document of one instance.

    facts, start: answers of the modules `instance_facts` and `instance_start`; None where the node was not asked, and
    `silent` then says why. `running` is None in that case, and a list of differences is never empty because nothing was
    seen: `running.observed` counts the settings of which vLLM told anything.
    """
    place = found.place
    told: dict[str, Any] = {
        "schema": SCHEMA,
        "instance": found.name,
        "profile": found.profile,
        "tag": place.tag,
        "version": ".".join(map(str, place.version)) if place.version else None,
        "gpu": {"name": place.gpu.name, "memory_bytes": place.gpu.memory_bytes} if place.gpu else None,
        "cpu": place.cpu,
        "place": " ".join(place.told),
        "settings": [_row(each) for each in (*found.settings, *found.defaults)],
        "left_out": [_left_out(each) for each in found.left_out],
        "remarks": list(place.remarks),
        "running": None,
        "silent": silent,
    }
    if facts is not None and start is not None:
        seen = reported(facts, start)
        anything = seen.command or seen.arguments is not None or facts.get("cache_config") or facts.get("served_models")
        if not anything:
            told["silent"] = "; ".join(seen.unseen) or "nothing was told"
        else:
            told["running"] = {
                "version": seen.version,
                "observed": observed(found, seen),
                "reported": {
                    flag: {each.place: _shown(flag, each.value) for each in values}
                    for flag, values in seen.told.items()
                },
                "differences": [
                    {
                        "flag": each.flag,
                        "wanted": _shown(each.flag, each.wanted),
                        "reported": _shown(each.flag, each.reported),
                        "place": each.place,
                    }
                    for each in differences(found, seen)
                ],
                "unseen": list(seen.unseen),
            }
    return told


def text(host: str, told: Mapping[str, Any]) -> str:
    """The document for people: two lines a flag."""
    lines = [
        f"{host}: instance {told['instance']}, profile {told['profile']} ({PROFILES[told['profile']].aim}), "
        f"{told['place']}"
    ]
    for remark in told["remarks"]:
        lines += _wrapped(remark, "  ")
    for row in told["settings"]:
        lines += ["", f"  {row['flag']} = {_plain(row['value'])}    [{row['origin']}]"]
        lines += _wrapped(row["reason"], "      ")
    if told["left_out"]:
        lines += ["", "  Not written:"]
        for row in told["left_out"]:
            lines += _wrapped(f"{row['flag']}: {row['reason']}", "      ")
    lines += ["", *_running(told)]
    return "\n".join(lines)


def _running(told: Mapping[str, Any]) -> list[str]:
    running = told["running"]
    if running is None:
        return _wrapped(f"Not held against what runs: {told['silent'] or 'the node was not asked'}.", "  ")
    count = len(told["settings"])
    version = running["version"] or "(version not told)"
    lines = [f"  vLLM {version} reports {running['observed']} of these {count} settings."]
    for row in running["differences"]:
        lines += _wrapped(
            f"DIFFERS {row['flag']}: {_plain(row['wanted'])} here, {_plain(row['reported'])} there ({row['place']})",
            "  ",
        )
    if not running["differences"]:
        lines[0] = lines[0].rstrip(".") + ", and all of them agree."
    for why in running["unseen"]:
        lines += _wrapped(f"Not seen: {why}", "  ")
    return lines


def _row(setting: Setting) -> dict[str, Any]:
    return {
        "flag": setting.flag,
        "value": _shown(setting.flag, setting.value),
        "origin": setting.origin,
        "reason": setting.reason,
    }


def _left_out(each: LeftOut) -> dict[str, str]:
    return {"flag": each.flag, "reason": each.reason}


def _shown(flag: str, value: Any) -> Any:
    return HIDDEN if value is not None and secret(flag) else value


def _plain(value: Any) -> str:
    if value is None:
        return "(not set)"
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _wrapped(words: str, indent: str) -> list[str]:
    return textwrap.wrap(
        words,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
