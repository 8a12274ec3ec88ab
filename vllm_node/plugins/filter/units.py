"""The filters of `vllm_node.units`, for the templates of the roles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm_node import units


class FilterModule:
    """Names that templates use."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → function."""
        return {
            name: getattr(units, name)
            for name in ("image_reference", "vllm_args", "systemd_word", "systemd_words")
        }
