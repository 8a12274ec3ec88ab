"""Start everything that was staged and wait until each unit is ready, showing what the others still do."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_node.generations.run import FACT
from vllm_node.generations.told import reason_of
from vllm_node.preflight.start_budget import by_unit, estimate_s, weights_s
from vllm_node.staging import collect
from vllm_node.waiting import DEFAULT_BUDGET_S, Patience, Watch, explained, shortened, waiting_line

_display = Display()


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes `target`, `state_dir` and, in place of the host's staged facts, `units` with how long each may take."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"target", "state_dir", "units"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Step until all are ready; fails with the last lines of the units that are not, and the likely cause."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        host = variables["inventory_hostname"]
        try:
            staged = [unit for scope in ("host", "stack") for unit in collect(variables, scope).units]
        except ValueError as error:
            raise AnsibleActionFail(str(error)) from error
        units = self._task.args.get("units", staged)
        args = {**self._task.args, "units": units, "begin": True}
        models = dict(by_unit((variables.get("node_snapshot_result") or {}).get("snapshot") or {}))
        watch = Watch({unit["unit"]: _patience(unit, models.get(unit["unit"]) or {}) for unit in units})
        reading_s = {unit: seconds for unit, model in models.items() if (seconds := weights_s(model)) is not None}
        actions: list[str] = []
        started_at = time.monotonic()
        while True:
            step: dict[str, Any] = self._execute_module("stack_step", module_args=args, task_vars=variables)
            args["begin"] = False
            actions += step.get("actions", [])
            states = step.get("states") or {}
            result = {**step, "states": shortened(states), "actions": actions, "changed": bool(actions)}
            if step.get("failed") or self._task.check_mode:
                return result
            elapsed = time.monotonic() - started_at
            waiting = {unit: state for unit, state in states.items() if state["state"] != "ready"}
            if not waiting:
                return result
            lost = watch.lost(states, elapsed)
            if lost:
                said = explained(host, lost, states, elapsed)
                self._remember(said, variables)
                return {**result, "failed": True, "msg": said}
            _display.display(waiting_line(host, waiting, elapsed, reading_s))

    def _remember(self, said: str, variables: dict[str, Any]) -> None:
        """Tell the history of the node that what was installed last has not become ready."""
        reason = reason_of(str(variables["inventory_hostname"]), said)
        told = {"action": "failed", "run": str(variables.get(FACT) or ""), "reason": reason}
        told["state_dir"] = self._task.args["state_dir"]
        self._execute_module("node_generation", module_args=told, task_vars=variables)


def _patience(unit: Mapping[str, Any], model: Mapping[str, Any]) -> Patience:
    """A time that the site has set is waited for to its end; only its default gives way to the estimate."""
    budget_s = float(unit.get("start_budget_s") or DEFAULT_BUDGET_S)
    estimated = str(unit.get("estimated")).lower() == "true"
    return Patience(budget_s, estimate_s(model) if estimated else None)
