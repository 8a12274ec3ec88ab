"""Run the module of the same name, and keep the authority that clients have to trust on the control host."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_node.gateway.authority import keep

_display = Display()


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes what the module takes; the answer has `authority_file` beside its own where there is an authority."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run it on the node; the file is written outside of check mode only."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        result: dict[str, Any] = self._execute_module(
            "gateway_certificate", module_args=dict(self._task.args), task_vars=variables
        )
        if result.get("authority") and not self._task.check_mode:
            host = str(variables["inventory_hostname"])
            path = keep(host, result["authority"])
            result["authority_file"] = str(path)
            _display.display(f"{host}: clients trust the gateway by {path}")
        return result
