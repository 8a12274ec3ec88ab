"""What the role `rollback` needs of a generation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllm_node import smoke


def generation_images(generation: Mapping[str, Any]) -> list[dict[str, str]]:
    """Its images as `image_pull` takes them; two units may have the same."""
    first = {reference: unit for unit, reference in sorted(generation["images"].items(), reverse=True)}
    return [{"name": unit, "reference": reference} for reference, unit in sorted(first.items())]


def generation_units(generation: Mapping[str, Any], component: str) -> list[dict[str, Any]]:
    """Its units of one component."""
    return [unit for unit in generation["units"] if unit.get("component") == component]


def generation_complaints(answered: Sequence[Mapping[str, Any]], host: str) -> list[str]:
    """A line for each check of `smoke_check` (a loop over `unit`) that failed."""
    named = [
        {**one, "instance": {"name": one["unit"]["unit"].removeprefix("vllm-").removesuffix(".service")}}
        for one in answered
    ]
    return smoke.complaints(host, named)


class FilterModule:
    """Names that the role uses."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → function."""
        return {
            "generation_images": generation_images,
            "generation_units": generation_units,
            "generation_complaints": generation_complaints,
        }
