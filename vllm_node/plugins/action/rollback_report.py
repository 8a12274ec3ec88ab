"""Tell what a node went back to, what has not come back, and what the inventory has to say now."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_node.generations.told import Returned
from vllm_node.plugins.action.node_generation import said

_display = Display()


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes `chosen`, the answer of `node_generation`, and `problem`, the result of the task that hindered it.

    Fails after a failed upgrade, whatever the node went back to.
    """

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset({"chosen", "problem"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return `rollback` for a program, and `msg` for a person."""
        super().run(tmp, task_vars)
        args, host = self._task.args, str((task_vars or {})["inventory_hostname"])
        problem = said(args["problem"]) if args.get("problem") else None
        told = Returned.of(host, args["chosen"], problem, dry=self._task.check_mode)
        if told.reason is None:
            _display.display(told.text())
        return {"changed": False, "failed": told.reason is not None, "rollback": told.as_dict(), "msg": told.text()}
