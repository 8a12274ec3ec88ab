"""Repeat the module of the same name until every image that the staged units need is there, showing how far it is."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_node.staging import collect
from vllm_node.units import image_references

_display = Display()


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes the image lock, or `images` as the module has them; what the module takes, and `limit_s` for all pulls."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Step until done; fails naming each image that could not be pulled and what podman said."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        args = dict(self._task.args)
        host = variables["inventory_hostname"]
        lock = args.pop("lock", None)
        try:
            if lock is not None:
                needed = {unit["image"] for unit in collect(variables, "stack").units if unit.get("image")}
                args["images"] = image_references({name: lock[name] for name in needed})
        except KeyError as error:
            raise AnsibleActionFail(f"{host}: the image lock has no {error}") from error
        except ValueError as error:
            raise AnsibleActionFail(f"{host}: {error}") from error
        started_at = time.monotonic()
        end = started_at + float(args.pop("limit_s", 7200))
        pulled: list[str] = []
        args["begin"] = True
        while True:
            step: dict[str, Any] = self._execute_module("image_pull", module_args=args, task_vars=task_vars)
            args["begin"] = False
            if step.get("failed"):
                return step
            pulled += step["started"]
            problem = None
            if step["failed_images"]:
                problem = "\n".join(
                    f"{host}: image {name} cannot be pulled: {said}" for name, said in step["failed_images"].items()
                )
            elif step["pulling"] and time.monotonic() > end:
                problem = f"{host}: still pulling after the limit (images_limit_s): {step['pulling']}"
            if problem:
                return {**step, "failed": True, "msg": problem, "pulled": pulled, "changed": bool(pulled)}
            if not step["pulling"] or self._task.check_mode:
                return {**step, "pulled": pulled, "changed": bool(pulled) or step["changed"]}
            elapsed = time.monotonic() - started_at
            state = ", ".join(f"{name} {how_far}" for name, how_far in step["pulling"].items())
            _display.display(f"{host}: pulling for {elapsed:.0f} s: {state}")
