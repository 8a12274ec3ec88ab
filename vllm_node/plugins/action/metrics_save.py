"""Write the schema of a node's metrics to a folder of the control host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from vllm_node.metrics import schema


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes `endpoints`, the answer of `metrics_schema`, and `folder`; each host gets a file in it."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset({"endpoints", "folder"})
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return `metrics_schema_file`; failed where an endpoint that is enabled gave nothing."""
        super().run(tmp, task_vars)
        host, args = str((task_vars or {})["inventory_hostname"]), self._task.args
        try:
            path = schema.write(Path(args["folder"]).absolute(), host, args["endpoints"])
        except OSError as error:
            raise AnsibleActionFail(f"{host}: the schema cannot be written: {error}") from error
        silent = [one for one in schema.parse(args["endpoints"]) if one.state == "gone"]
        gone = [f"{one.name} ({one.url}): {one.error}" for one in silent]
        told = f"{host}: {path}"
        if gone:
            told += "\n" + "\n".join(f"{host}: no metrics from {text}" for text in gone)
            told += f"\nnext: `vllm-node status` shows whether the units run; what did answer is in {path}"
        return {"changed": False, "failed": bool(gone), "msg": told, "metrics_schema_file": str(path)}
