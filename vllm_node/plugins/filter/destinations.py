"""The filters of `vllm_node.destinations`, for the roles `alertmanager` and `prometheus`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm_node import destinations


class FilterModule:
    """Names that the roles use."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → function."""
        return {
            name: getattr(destinations, name)
            for name in ("destination_secrets", "destination_authorities", "scrape_target")
        }
