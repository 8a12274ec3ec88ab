"""Asks the images of vLLM instances, keeps their flags, and judges the instances by the answers."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from vllm_node import inputs
from vllm_node.paths import project_root
from vllm_node.preflight import wanted_from
from vllm_node.preflight.reading import mapping, rows
from vllm_node.serving import probe


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes `snapshot`, `state_dir` and `limit_s`.

    Answer: what the module of the same name answers, without the pages; `findings`, `msg` with all of them as text, and
    `failed` when one of them is of level `fail`: then no unit has been installed yet.
    """

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """One module call, then everything else on the control host."""
        super().run(tmp, task_vars)
        variables: dict[str, Any] = task_vars or {}
        given = self._task.args
        snapshot = mapping(given, "snapshot")
        specs = inputs.load_specs(project_root() / "roles")
        values, _ = inputs.resolve(inputs.names(specs), variables, self._templar.template)
        wanted = wanted_from(str(variables["inventory_hostname"]), inputs.with_defaults(values, specs))
        asked = probe.questions(snapshot, wanted)
        if not asked["images"]:
            return {"changed": False, "findings": [], "msg": probe.told(wanted.host, [])}
        args = {**asked, "state_dir": given["state_dir"], "limit_s": given.get("limit_s", 300)}
        answer: dict[str, Any] = self._execute_module("image_probe", module_args=args, task_vars=task_vars)
        if answer.get("failed"):
            return answer
        # Nobody wants to read twice what preflight warned of.
        before = {(str(row.get("id")), str(row.get("seen"))) for row in rows(variables, "preflight_result", "findings")}
        found = [each for each in probe.judged(snapshot, wanted, answer) if (each.id, each.seen) not in before]
        del answer["pages"]
        return {
            **answer,
            "failed": any(each.level == "fail" for each in found),
            "findings": [each.as_dict() for each in found],
            "msg": probe.told(wanted.host, found),
        }
