"""Compare a node with what it was before, write the certificate, and fail when anything is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from vllm_node import certificate
from vllm_node.paths import state_dir


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes the results of `node_teardown` and of the snapshot after it, and the folder for the files."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset({"teardown", "snapshot", "folder"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return `certificate` and `report_files`; failed when the certificate is not clean."""
        super().run(tmp, task_vars)
        args = self._task.args
        host = (task_vars or {})["inventory_hostname"]
        folder = Path(args.get("folder") or state_dir() / "reports") / host
        issued = certificate.issue(host, args["teardown"], args["snapshot"], folder)
        files = certificate.write(issued, folder)
        told = issued.summary()
        result: dict[str, Any] = {"changed": False, "certificate": told, "report_files": [str(path) for path in files]}
        if not issued.clean:
            lines = [f"{host} is not as it was found; the certificate is in {files[1]}"]
            lines += [f"left over: {text}" for text in told["left"]]
            lines += [f"different: {text}" for text in told["difference"]]
            result.update(failed=True, msg="\n".join(lines))
        return result
