"""Hold everything that rules, dashboards and diagnosis ask for against what a node offers."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_node import inputs
from vllm_node.metrics import schema
from vllm_node.metrics.check import check
from vllm_node.metrics.uses import all_uses

_display = Display()


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes `endpoints`, as `metrics_schema` answers; alerts are as the inventory's `prometheus_alerts` has them."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset({"endpoints"})
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return `metrics_check` (see `vllm_node.metrics.problems.Report`), failed when something is missing."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        host = str(variables["inventory_hostname"])
        values, _ = inputs.resolve(["prometheus_alerts"], variables, self._templar.template)
        try:
            uses = all_uses(values.get("prometheus_alerts"))
        except ValueError as error:
            raise AnsibleActionFail(f"{host}: {error}") from error
        report = check(host, uses, schema.parse(self._task.args["endpoints"]))
        if report.ok:
            _display.display(report.text())
        return {"changed": False, "failed": not report.ok, "msg": report.text(), "metrics_check": report.as_dict()}
