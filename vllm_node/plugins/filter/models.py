"""The filter of `vllm_node.models.store`, for units that serve what the role `model_store` brings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm_node.models import store


class FilterModule:
    """Names that the roles use."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → function."""
        return {"model_fingerprint": store.fingerprint}
