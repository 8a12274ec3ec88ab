"""Explains the flags of a node's instances, and asks the node what its vLLM reports of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

from vllm_node import inputs
from vllm_node.paths import project_root
from vllm_node.serving import explain

_VARIABLES = (
    "vllm_instances",
    "images_lock",
    "vllm_drain_s",
    "vllm_gpu_name",
    "vllm_gpu_memory_gib",
)


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes `instance` (empty: all), `offline` and `time_limit_s`; all else comes from the inventory."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"instance", "offline", "time_limit_s"})
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return `explanations` (see `vllm_node.serving.explain.explanation`) and `msg`, the same as text."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        host = str(variables["inventory_hostname"])
        specs = inputs.load_specs(project_root() / "roles")
        values, undefined = inputs.resolve(_VARIABLES, variables, self._templar.template)
        if undefined:
            raise AnsibleActionFail(f"{host}: {'; '.join(f'{name}: {why}' for name, why in undefined.items())}")
        values = inputs.with_defaults(values, specs)
        try:
            entries = explain.chosen(values.get("vllm_instances"), str(self._task.args.get("instance") or ""))
        except ValueError as error:
            raise AnsibleActionFail(f"{host} {error}") from error
        told = [self._explained(entry, values, variables) for entry in entries]
        return {
            "changed": False,
            "explanations": told,
            "msg": "\n\n".join(explain.text(host, each) for each in told) or f"{host}: no instances",
        }

    def _explained(
        self, entry: Mapping[str, Any], values: Mapping[str, Any], variables: dict[str, Any]
    ) -> dict[str, Any]:
        if self._task.args.get("offline"):
            return explain.explanation(explain.settings(entry, values), silent="the node was not asked")
        limit = self._task.args.get("time_limit_s", 20)
        asked = {"instance": entry.get("name"), "time_limit_s": limit}
        try:
            start = self._ask("instance_start", "start", {**asked, "gpus": bool(entry.get("gpus"))}, variables)
            facts = self._ask("instance_facts", "facts", {**asked, "port": entry.get("port")}, variables)
        except AnsibleConnectionFailure as error:
            return explain.explanation(explain.settings(entry, values), silent=f"the node does not answer: {error}")
        found = explain.settings(entry, values, {"gpu": {"devices": start.get("devices")}})
        return explain.explanation(found, facts, start)

    def _ask(self, module: str, part: str, args: dict[str, Any], variables: dict[str, Any]) -> Mapping[str, Any]:
        answer = self._execute_module(module, module_args=args, task_vars=variables)
        if answer.get("failed") or not isinstance(answer.get(part), Mapping):
            raise AnsibleActionFail(f"{variables['inventory_hostname']}: {module}: {answer.get('msg')}")
        found: Mapping[str, Any] = answer[part]
        return found
