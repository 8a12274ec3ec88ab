"""Remember what measuring an instance has come to, until the report of the bring-up."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from vllm_node.smoke import Measurement

FACT = "_smoke_measurements"


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes `instance` and either `result` (of `benchmark`) or `refused` (why it was not measured)."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset({"instance", "result", "refused"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the fact that carries the measurements of this run by instance."""
        super().run(tmp, task_vars)
        args, variables = self._task.args, task_vars or {}
        refused = args.get("refused")
        # The line that tells it begins with the host already.
        reason = " ".join(str(refused).split()).removeprefix(f"{variables['inventory_hostname']}: ")
        found = (
            Measurement(args["instance"], reason=reason)
            if refused
            else Measurement.of(args["result"]["benchmark"], args["result"]["reports"])
        )
        known = variables.get(FACT) or {}
        return {"changed": False, "ansible_facts": {FACT: {**known, found.instance: found.as_dict()}}}
