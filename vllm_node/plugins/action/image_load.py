"""Bring images of a bundle to a node without a registry; see `vllm_node.bundle.load`.

image_load: {bundle, lock, state_dir, bandwidth, limit_s}, the role's variables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_node.bundle.load import LoadError, Loading, Settings
from vllm_node.connection import ReachError, reach
from vllm_node.staging import collect

_display = Display()


class ActionModule(ActionBase):  # type: ignore[misc]
    """Runs the modules `image_pull` and `image_layout` on the node, and rsync in between."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"bundle", "lock", "state_dir", "bandwidth", "limit_s"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Answer `present`, `loaded` (names) and `sent_bytes`; fails naming every image that is not there."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        args, host = self._task.args, str(variables["inventory_hostname"])

        def step(module: str, arguments: dict[str, Any]) -> dict[str, Any]:
            found: dict[str, Any] = self._execute_module(module, module_args=arguments, task_vars=task_vars)
            return found

        settings = Settings(
            args["state_dir"], float(args["limit_s"]), str(args["bandwidth"]), dry=self._task.check_mode
        )
        try:
            wanted = self._wanted(variables, args["lock"])
            loading = Loading(
                Path(args["bundle"]),
                wanted,
                settings,
                lambda: reach(self._connection),
                step,
                lambda text: _display.display(f"{host}: {text}"),
            )
            return vars(loading.run())
        except (LoadError, ReachError) as error:
            raise AnsibleActionFail("\n".join(f"{host}: {line}" for line in str(error).splitlines())) from error

    def _wanted(self, variables: dict[str, Any], lock: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Entries of the lock that the staged units need."""
        try:
            names = {unit["image"] for unit in collect(variables, "stack").units if unit.get("image")}
            return {name: lock[name] for name in names}
        except KeyError as error:
            raise LoadError(f"the image lock has no {error}") from error
        except ValueError as error:
            raise LoadError(str(error)) from error
