"""Start everything that was staged and wait until each unit is ready, showing what the others still do."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_node.last_words import likely_cause
from vllm_node.staging import collect

_display = Display()


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes `target` and `state_dir`; units and how long each may take come from the host's staged facts."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"target", "state_dir"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Step until all are ready; fails with the last lines of the units that are not, and the likely cause."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        host = variables["inventory_hostname"]
        try:
            units = [unit for scope in ("host", "stack") for unit in collect(variables, scope).units]
        except ValueError as error:
            raise AnsibleActionFail(str(error)) from error
        args = {**self._task.args, "units": units, "begin": True}
        budgets = {unit["unit"]: float(unit.get("start_budget_s") or 180) for unit in units}
        actions: list[str] = []
        started_at = time.monotonic()
        while True:
            step: dict[str, Any] = self._execute_module("stack_step", module_args=args, task_vars=variables)
            args["begin"] = False
            actions += step.get("actions", [])
            result = {**step, "actions": actions, "changed": bool(actions)}
            if step.get("failed") or self._task.check_mode:
                return result
            elapsed = time.monotonic() - started_at
            waiting = {unit: state for unit, state in step["states"].items() if state["state"] != "ready"}
            if not waiting:
                return result
            lost = {
                unit: state
                for unit, state in waiting.items()
                if state["state"] == "dead" or elapsed > budgets[unit]
            }
            if lost:
                return {**result, "failed": True, "msg": _explain(host, lost, elapsed)}
            for unit, state in waiting.items():
                _display.display(f"{host}: {unit} for {elapsed:.0f} s: {state['detail']}")


def _explain(host: str, lost: dict[str, dict[str, Any]], elapsed: float) -> str:
    parts = []
    for unit, state in lost.items():
        parts.append(f"{host}: {unit} is not ready after {elapsed:.0f} s: {state['detail']}")
        log = state.get("log", "")
        if log:
            parts.append("its last lines:\n" + "\n".join("  | " + line for line in log.splitlines()))
        cause = likely_cause(log)
        parts.append("likely cause: " + (cause or "not one that is known; the lines above are all there is"))
        parts.append(f"next: journalctl -u {unit} on {host}; mend it and run the same playbook again")
    return "\n".join(parts)
