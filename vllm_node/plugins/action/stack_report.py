"""Print what runs where, and what each model answered."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_node.report import Report, text
from vllm_node.staging import collect

_display = Display()


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes `question`, `answers` (results of the requests), `stack` (result of `stack_up`) and `images_lock`."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset({"question", "answers", "stack", "images_lock"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the report as `vllm_node_report`, having printed it."""
        super().run(tmp, task_vars)
        variables, args = task_vars or {}, self._task.args
        units = [unit for scope in ("host", "stack") for unit in collect(variables, scope).units]
        report = Report.build(
            variables["inventory_hostname"], units, args["stack"]["states"], args["images_lock"], args["answers"]
        )
        silent = [answer["model"] for answer in report.answers if answer["tokens"] == 0]
        if silent:
            raise AnsibleActionFail(f"{report.host}: no token came from {', '.join(silent)}")
        report.question = args["question"]
        _display.display(text(report))
        return {"changed": False, "vllm_node_report": report.as_dict()}
