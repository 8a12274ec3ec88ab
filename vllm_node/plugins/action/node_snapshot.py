"""Calls the module of the same name and adds what only the control host knows: the clocks' difference."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase

from vllm_node.clock import skew_s


class ActionModule(ActionBase):  # type: ignore[misc]
    """Action plugin `node_snapshot`; arguments and answer are the module's, plus `snapshot.time.skew_s`."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module and complete its answer."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        asked_at = time.time()
        result.update(self._execute_module(task_vars=task_vars))
        answered_at = time.time()
        snapshot = result.get("snapshot")
        if isinstance(snapshot, dict):
            snapshot["time"]["skew_s"] = skew_s(snapshot["time"]["epoch"], asked_at, answered_at)
        return result
