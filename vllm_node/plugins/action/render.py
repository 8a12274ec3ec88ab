"""Write everything that was staged for a host to a folder of the control host, and validate it there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from vllm_node.preflight import render as told
from vllm_node.render import RenderError, render
from vllm_node.staging import collect


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes `output`: files go to `output/<host>/`, below their paths on the node."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset({"output"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return `rendered` (see `vllm_node.render.Rendered`) and `findings`."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        host = str(variables["inventory_hostname"])
        try:
            staged = [collect(variables, scope) for scope in ("host", "stack")]
            done = render(host, Path(self._task.args["output"]).absolute() / host, staged)
        except (RenderError, ValueError) as error:
            raise AnsibleActionFail(f"{host}: {error}") from error
        where = f"{host}: {len(done.written)} files in {done.folder}"
        return {
            "changed": False,
            "failed": bool(done.findings),
            "findings": [each.as_dict() for each in done.findings],
            "msg": told(host, done.findings) if done.findings else where,
            "rendered": done.as_dict(),
        }
