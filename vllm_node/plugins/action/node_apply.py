"""Hand everything that was staged for a scope to the module of the same name, in one call."""

from __future__ import annotations

from typing import Any

from ansible import context
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from vllm_node.generations.run import FACT, described, run_id
from vllm_node.staging import collect
from vllm_node.units import image_reference


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes `scope`, `state_dir` and, for checks, the image lock; the rest comes from the host's staged facts.

    `keep` is how many generations are kept. `generation` is one to install again in place of all that is staged, with
    its `units` and `instead_of`, the number of the one that failed.
    """

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"scope", "state_dir", "lock", "keep", "generation", "units", "instead_of"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Collect, then run the module on the node."""
        super().run(tmp, task_vars)
        args, variables = self._task.args, task_vars or {}
        run = run_id(variables)
        who: dict[str, Any] = dict(described(run, context.CLIARGS.get("args") or ()))
        told: dict[str, Any] = {"state_dir": args["state_dir"], "run": who, "keep": args.get("keep") or 0}
        if args.get("generation"):
            who |= {"back_to": args["generation"], "instead_of": args.get("instead_of")}
            told |= {"generation": args["generation"], "units": args["units"]}
        else:
            told |= self._staged(variables)
        result: dict[str, Any] = self._execute_module("node_apply", module_args=told, task_vars=task_vars)
        return {**result, "ansible_facts": {FACT: run}}

    def _staged(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Arguments of the module that come from what was staged."""
        scope = self._task.args["scope"]
        lock = self._task.args.get("lock") or {}
        try:
            staged = collect(variables, scope)
            units = [unit for one in ("host", "stack") for unit in collect(variables, one).units]
            checks = [_check(entry, lock) for entry in staged.checks]
        except KeyError as error:
            raise AnsibleActionFail(f"the image lock has no {error}") from error
        except ValueError as error:
            raise AnsibleActionFail(str(error)) from error
        return {
            "scope": scope,
            "files": [_file(entry) for entry in staged.files if not entry["secret"]],
            "secret_files": [_file(entry) for entry in staged.files if entry["secret"]],
            "secrets": staged.secrets,
            "volumes": staged.volumes,
            "checks": checks,
            "units": units,
        }


def _file(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "secret"}


def _check(entry: dict[str, Any], lock: dict[str, Any]) -> dict[str, Any]:
    told = {key: value for key, value in entry.items() if key != "image"}
    return {"reference": image_reference(lock[entry["image"]]), **told}
