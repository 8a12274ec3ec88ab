"""Print what runs where, what each model answered, and how fast each instance is."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_node import smoke
from vllm_node.report import Report, text
from vllm_node.staging import collect

_display = Display()


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes the role's findings.

    `question`, `answered` (results of `smoke_check`), `stack` (result of `stack_up`), `images_lock`, `measurements` (of
    this run, by instance), `unmeasured` (why there is none for an instance), `output` (where earlier ones lie).
    """

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(
        {"question", "answered", "stack", "images_lock", "measurements", "unmeasured", "output"}
    )

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the report as `vllm_node_report`, having printed it."""
        super().run(tmp, task_vars)
        variables, args = task_vars or {}, self._task.args
        host = str(variables["inventory_hostname"])
        units = [unit for scope in ("host", "stack") for unit in collect(variables, scope).units]
        report = Report.build(
            host, units, args["stack"]["states"], args["images_lock"], [one["answer"] for one in args["answered"]]
        )
        report.question = args["question"]
        report.measurements = smoke.settled(
            host,
            [one["instance"]["name"] for one in args["answered"]],
            args.get("measurements") or {},
            args["unmeasured"],
            args.get("output") or "",
        )
        _display.display(text(report))
        return {"changed": False, "vllm_node_report": report.as_dict()}
