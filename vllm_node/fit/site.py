"""Plans for the instances of a node: what the site wants and what the snapshot saw, brought together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_node.fit import machine, settings, shape
from vllm_node.fit.plan import Plan, make, without_shape
from vllm_node.fit.reckoning import Case
from vllm_node.fit.settings import Settings
from vllm_node.preflight.reading import Snapshot, mapping, number, rows, text
from vllm_node.preflight.wanted import Instance, Wanted
from vllm_node.serving.site import settings_of


def case_of(snapshot: Snapshot, wanted: Wanted, instance: Instance) -> Case | str:
    """What a plan for this instance starts from, or in words why there can be none."""
    model: Mapping[str, Any] = next((row for row in rows(snapshot, "models") if text(row, "name") == instance.name), {})
    try:
        asked = _asked(snapshot, wanted, instance)
        found = shape.read(mapping(model, "config"))
    except ValueError as error:
        return str(error)
    return Case(
        found,
        asked,
        machine.of_instance(snapshot, instance, _others(snapshot, wanted, instance)),
        mapping(model, "weights") or None,
        number(model, "bytes"),
        settings_of(instance, wanted, snapshot).place.version,
    )


def plan_of(snapshot: Snapshot, wanted: Wanted, instance: Instance) -> Plan:
    """The plan of one instance; its verdict is `unknown`, with the reason, where there can be none."""
    case = case_of(snapshot, wanted, instance)
    return without_shape(instance.name, case) if isinstance(case, str) else make(instance.name, case)


def _asked(snapshot: Snapshot, wanted: Wanted, instance: Instance) -> Settings:
    """What the unit will hold: profile and args together."""
    return settings.read(settings_of(instance, wanted, snapshot).args, instance.env)


def _others(snapshot: Snapshot, wanted: Wanted, instance: Instance) -> list[tuple[Instance, float]]:
    """The other instances with GPUs, with the share of memory that each takes."""
    found = []
    for other in wanted.gpu_instances:
        if other.name == instance.name:
            continue
        try:
            asked = _asked(snapshot, wanted, other)
        except ValueError:
            continue  # told where that instance is planned
        found.append((other, asked.share(settings_of(other, wanted, snapshot).place.version)[0]))
    return found
