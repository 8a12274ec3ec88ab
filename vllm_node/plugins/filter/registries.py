"""Names of images and places of packages, for templates and tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm_node.packages import repository_url
from vllm_node.registries import through_mirrors


class FilterModule:
    """Filters `through_mirrors` and `repository_url`."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Filters by name."""
        return {"through_mirrors": through_mirrors, "repository_url": repository_url}
