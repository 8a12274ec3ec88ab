"""Judges a node: its variables against the roles' specifications, its snapshot against the site's wishes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase

from vllm_node import inputs
from vllm_node.paths import project_root
from vllm_node.preflight import Finding, judge, render, wanted_from
from vllm_node.preflight.findings import ordered, softened


class ActionModule(ActionBase):  # type: ignore[misc]
    """Action plugin `preflight`: runs on the control host only and changes nothing.

    Argument `snapshot`: the snapshot of the node; without it only the variables are judged. `fails_only`: warnings were
    told before.
    Answer: `findings` (list of {id, level, host, seen, why, mend}), `msg` with all of them as text, and
    `failed` when one of them is of level `fail`.
    """

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Collect all findings and answer with them."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables: dict[str, Any] = task_vars or {}
        host = str(variables.get("inventory_hostname", "localhost"))
        findings = self._findings(host, variables, self._task.args.get("snapshot"))
        if self._task.args.get("fails_only"):
            findings = [each for each in findings if each.level == "fail"]
        result.update(
            changed=False,
            failed=any(each.level == "fail" for each in findings),
            findings=[each.as_dict() for each in findings],
            msg=render(host, findings),
        )
        return result

    def _findings(self, host: str, variables: dict[str, Any], snapshot: Any) -> list[Finding]:
        specs = inputs.load_specs(project_root() / "roles")
        values, undefined = inputs.resolve(inputs.names(specs), variables, self._templar.template)
        wanted = wanted_from(host, inputs.with_defaults(values, specs))
        found = inputs.check(values, specs, defined=_site_names(variables), undefined=undefined, host=host)
        found = softened(found, wanted.limits.ignore)
        if isinstance(snapshot, Mapping):
            found += judge(snapshot, wanted)
        return ordered(found)


def _site_names(variables: Mapping[str, Any]) -> list[str]:
    """Names that the inventory, the playbook or the command line may have set."""
    return [name for name in variables if isinstance(name, str)]
