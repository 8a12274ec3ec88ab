"""The sandbox of container units, for the templates of all roles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from vllm_node import sandbox


def container_sandbox(reach: str) -> str:
    """Lines for `[Service]`; see `vllm_node.sandbox`."""
    try:
        return sandbox.container_sandbox(reach)
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """Names that the roles use."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → function."""
        return {"container_sandbox": container_sandbox}
