"""Read the history of a node and show it; note in it that an upgrade failed. See the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_node.generations.run import FACT
from vllm_node.generations.told import history, reason_of

_display = Display()


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes what the module takes; `failed_result`, the result of the task that failed, gives its reason.

    With `action: list` the answer has the history as `history` and is shown.
    """

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's answer; `said` is all that the failed task said."""
        super().run(tmp, task_vars)
        variables, args = task_vars or {}, dict(self._task.args)
        host = str(variables["inventory_hostname"])
        more: dict[str, Any] = {}
        if "failed_result" in args:
            more["said"] = said(args.pop("failed_result"))
            args["reason"] = reason_of(host, more["said"])
        args["run"] = str(variables.get(FACT) or "")
        answer: dict[str, Any] = self._execute_module("node_generation", module_args=args, task_vars=variables)
        if answer.get("failed"):
            return {**answer, "msg": f"{host}: {answer.get('msg')}"}
        if args.get("action") == "list":
            told = {"generations": answer["generations"], "differs": answer["differs"]}
            more |= {"history": told, "msg": history(host, told)}
            _display.display(more["msg"])
        if args.get("action") == "give_up":
            more["instead_of"] = answer["generations"][-1]["number"] if answer["generations"] else None
        return {"instead_of": None, **answer, **more}


def said(result: Any) -> str:
    """All that a failed task said."""
    # What reads results of a whole run is only needed here.
    from vllm_node.summary import failure_text

    return failure_text(result)
