"""Judge a host's variables without its snapshot, and put a word in the place of each secret."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from vllm_node.paths import project_root
from vllm_node.preflight import render as told
from vllm_node.render import judge_inputs


class ActionModule(ActionBase):  # type: ignore[misc]
    """For `render.yml`: all findings at once, before a template can fail over one of them.

    The facts that it returns hide the secrets of the inventory, so that nothing which is rendered later can
    hold one; a vault need not even be open.
    """

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS: frozenset[str] = frozenset()
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return `findings`, failed when one of them stops; and `ansible_facts` with the words."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        host = str(variables["inventory_hostname"])
        judged = judge_inputs(host, variables, self._templar.template, project_root() / "roles")
        return {
            "changed": False,
            "failed": any(each.level == "fail" for each in judged.findings),
            "findings": [each.as_dict() for each in judged.findings],
            "msg": told(host, judged.findings),
            "ansible_facts": judged.placeholders,
            "not_validated": judged.not_validated,
        }
