"""Asks the node's Prometheus for all signals at once and weighs what it answers."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from vllm_node import inputs
from vllm_node.diagnosis import report, request
from vllm_node.diagnosis.diagnosis import diagnose
from vllm_node.paths import project_root


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes `snapshot`, `window`, `at`, `client` and `time_limit_s`; all else comes from the inventory."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"snapshot", "window", "at", "client", "time_limit_s"})
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return `diagnosis` (see `vllm_node.diagnosis.report.document`) and `msg`, the same as text."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        host = str(variables["inventory_hostname"])
        specs = inputs.load_specs(project_root() / "roles")
        values, _ = inputs.resolve(request.VARIABLES, variables, self._templar.template)
        try:
            asked = request.build(host, inputs.with_defaults(values, specs), self._task.args)
        except ValueError as error:
            raise AnsibleActionFail(f"{host}: {error}") from error
        answer: dict[str, Any] = self._execute_module(
            "prometheus_query", module_args=asked.module_args, task_vars=variables
        )
        if answer.get("failed"):
            return {**answer, "msg": f"{host}: {answer.get('msg')}"}
        found = diagnose(asked.facts(answer, self._task.args.get("snapshot") or {}))
        return {"changed": False, "diagnosis": report.document(found), "msg": report.text(found)}
