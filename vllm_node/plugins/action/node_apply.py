"""Hand everything that was staged for a scope to the module of the same name, in one call."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from vllm_node.staging import collect
from vllm_node.units import image_reference


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes `scope`, `state_dir` and, for checks, the image lock; the rest comes from the host's staged facts."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"scope", "state_dir", "lock"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Collect, then run the module on the node."""
        super().run(tmp, task_vars)
        scope = self._task.args["scope"]
        lock = self._task.args.get("lock") or {}
        try:
            staged = collect(task_vars or {}, scope)
            checks = [_check(entry, lock) for entry in staged.checks]
        except KeyError as error:
            raise AnsibleActionFail(f"the image lock has no {error}") from error
        except ValueError as error:
            raise AnsibleActionFail(str(error)) from error
        result: dict[str, Any] = self._execute_module(
            module_name="node_apply",
            module_args={
                "scope": scope,
                "state_dir": self._task.args["state_dir"],
                "files": [_file(entry) for entry in staged.files if not entry["secret"]],
                "secret_files": [_file(entry) for entry in staged.files if entry["secret"]],
                "secrets": staged.secrets,
                "volumes": staged.volumes,
                "checks": checks,
            },
            task_vars=task_vars,
        )
        return result


def _file(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "secret"}


def _check(entry: dict[str, Any], lock: dict[str, Any]) -> dict[str, Any]:
    told = {key: value for key, value in entry.items() if key != "image"}
    return {"reference": image_reference(lock[entry["image"]]), **told}
