"""Bring models to a node and prove that they are what was meant; see `vllm_node.models.delivery`.

model_store: {models, dir, copy, workers, bandwidth, state_dir}, the role's variables.
"""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_node.connection import ReachError, reach
from vllm_node.models.delivery import Delivery, DeliveryError, Settings
from vllm_node.models.store import StoreError, wanted

_display = Display()


class ActionModule(ActionBase):  # type: ignore[misc]
    """Runs the module `model_tree` on the node, and rsync in between."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"models", "dir", "copy", "workers", "bandwidth", "state_dir"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Answer `verified`, `delivered` (name to bytes sent), `read` and `unlisted`; fails naming every file."""
        super().run(tmp, task_vars)
        args = self._task.args
        host = str((task_vars or {})["inventory_hostname"])
        values = {f"model_store_{name}": value for name, value in args.items()}

        def step(arguments: dict[str, Any]) -> dict[str, Any]:
            found: dict[str, Any] = self._execute_module("model_tree", module_args=arguments, task_vars=task_vars)
            for text in found.get("warnings", []):
                _display.warning(f"{host}: {text}")
            return found

        try:
            models = wanted(values)
            settings = Settings(
                store=args["dir"],
                state_dir=args["state_dir"],
                workers=int(args["workers"]),
                bandwidth=str(args["bandwidth"]),
                dry=self._task.check_mode,
            )
            outcome = Delivery(
                models,
                settings,
                lambda: reach(self._connection),
                step,
                lambda text: _display.display(f"{host}: {text}"),
            ).run()
        except (StoreError, DeliveryError, ReachError) as error:
            raise AnsibleActionFail("\n".join(f"{host}: {line}" for line in str(error).splitlines())) from error
        for tree in outcome.unlisted:
            _display.display(f"{host}: {tree} is still in the store, and model_store_models does not name it any more")
        return vars(outcome)
