"""The complaints of `vllm_node.smoke`, for the role `smoke`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllm_node import smoke


def smoke_complaints(answered: Sequence[Mapping[str, Any]], host: str) -> list[str]:
    """A line for each check that failed on a host; empty when all is well."""
    return smoke.complaints(host, answered)


class FilterModule:
    """Names that the role uses."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → function."""
        return {"smoke_complaints": smoke_complaints}
