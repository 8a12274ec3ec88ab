"""What every instance gets from vllm-node, before its profile and its own args."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_node.serving.flags.known import Version, written
from vllm_node.serving.place import Place
from vllm_node.serving.settings import OURS, LeftOut, Setting, Site


@dataclass(frozen=True)
class _Own:
    flag: str
    value: Callable[[Mapping[str, Any], int], Any]
    reason: str
    since: Version = (0,)


_OWN: tuple[_Own, ...] = (
    _Own(
        "served-model-name",
        lambda entry, _: entry.get("served_model_name") or entry.get("name"),
        "The model's name in the API: served_model_name of the instance, or else the instance's own name.",
    ),
    _Own(
        "host",
        lambda _, __: "127.0.0.1",
        "Loopback only: many paths of the API ask for no key, so that nobody but the node itself may reach them.",
    ),
    _Own("port", lambda entry, _: entry.get("port"), "The instance's port."),
    _Own(
        "shutdown-timeout",
        lambda _, drain_s: drain_s,
        "Requests that run when a stop is asked for may go on for so many seconds (vllm_drain_s).",
        (0, 18),
    ),
    _Own(
        "disable-uvicorn-access-log",
        lambda _, __: True,
        "A line for each scrape and health check would bury what the log is read for.",
    ),
    _Own(
        "uvicorn-log-level",
        lambda _, __: "warning",
        "What the web server says of each connection is of no use here; its warnings are.",
    ),
)


def own(
    entry: Mapping[str, Any], site: Site, place: Place, drain_s: int
) -> tuple[dict[str, Setting], list[LeftOut]]:
    """The flags in their order, and those that this version of vLLM does not have."""
    found: dict[str, Setting] = {}
    left_out = []
    for each in _OWN:
        if place.version is None or place.version >= each.since:
            found[each.flag] = Setting(each.flag, each.flag, each.value(entry, drain_s), OURS, each.reason)
        elif each.flag not in site:
            left_out.append(LeftOut(each.flag, too_old(OURS, place.version, each.since)))
    return found, left_out


def too_old(origin: str, version: Version, since: Version) -> str:
    """Why a flag is not written for a version."""
    return f"{origin}: vLLM {written(version)} does not have it; it came with {written(since)}."
