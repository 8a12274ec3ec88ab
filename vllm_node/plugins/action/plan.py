"""Plans the instances of a node, and asks those that run how far the plan is from what they have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from vllm_node import inputs
from vllm_node.fit import held, report, site
from vllm_node.fit.held import Difference, Seen
from vllm_node.fit.plan import Plan
from vllm_node.paths import project_root
from vllm_node.preflight import wanted_from
from vllm_node.preflight.wanted import Instance


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes `snapshot`, `instance` (empty: all) and `time_limit_s`; all else comes from the inventory."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"snapshot", "instance", "time_limit_s"})
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return `plans` (a list of `Plan.document`, each with `held`, null where nothing runs) and `msg`."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        host, name = str(variables.get("inventory_hostname")), str(self._task.args.get("instance") or "")
        specs = inputs.load_specs(project_root() / "roles")
        values, _ = inputs.resolve(inputs.names(specs), variables, self._templar.template)
        wanted = wanted_from(host, inputs.with_defaults(values, specs))
        chosen = [one for one in wanted.instances if name in ("", one.name)]
        if not chosen:
            known = ", ".join(one.name for one in wanted.instances) or "none"
            raise AnsibleActionFail(f"{host} has no instance {name or 'at all'}; it has {known}")
        plans, texts = [], []
        for instance in chosen:
            plan = site.plan_of(self._task.args.get("snapshot") or {}, wanted, instance)
            differences = self._held(plan, instance, variables)
            compared = None if differences is None else [one.as_dict() for one in differences]
            plans.append({**plan.document(), "held": compared})
            texts.append(report.text(plan, host, differences))
        return {"changed": False, "plans": plans, "msg": "\n\n".join(texts)}

    def _held(self, plan: Plan, instance: Instance, variables: dict[str, Any]) -> list[Difference] | None:
        """The plan against the instance; None when it does not run, or tells nothing."""
        if instance.port is None:
            return None
        limit = float(self._task.args.get("time_limit_s") or 8)
        arguments = {"instance": instance.name, "port": instance.port, "time_limit_s": limit}
        answer: dict[str, Any] = self._execute_module(
            "instance_facts", module_args=arguments, task_vars=variables
        )
        facts = answer.get("facts")
        if not isinstance(facts, Mapping) or not facts.get("cache_config"):
            return None
        words = {"argv": held.journal(instance.unit, facts.get("started_at"))}
        log = self._execute_module("ansible.builtin.command", module_args=words, task_vars=variables)
        seen = Seen.of_labels(facts["cache_config"], facts.get("max_model_len"))
        return held.held(plan, seen.and_also(Seen.of_log(str(log.get("stdout") or ""))))
