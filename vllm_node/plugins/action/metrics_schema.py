"""Tells the module of the same name where the node's metrics are, by the variables of the roles that bring them."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from vllm_node import inputs
from vllm_node.metrics.endpoints import VARIABLES, endpoints
from vllm_node.paths import project_root


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes `limit_s`; answers as the module does."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"limit_s"})
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module with the node's endpoints."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        specs = inputs.load_specs(project_root() / "roles")
        values, _ = inputs.resolve(VARIABLES, variables, self._templar.template)
        arguments = {**self._task.args, "endpoints": endpoints(inputs.with_defaults(values, specs))}
        answer: dict[str, Any] = self._execute_module("metrics_schema", module_args=arguments, task_vars=variables)
        return answer
