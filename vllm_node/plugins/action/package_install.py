"""Install packages from the toolkit's own repository and from nowhere else, noted before and looked at afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase

from vllm_node.package_changes import brought
from vllm_node.packages import REPOSITORY, Plan, explain, missing_of, plan

BEFORE = "before-packages.json"


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes `url` (for texts), `install`, `gpg_key`, `locks`, `state_dir`, and whether the repository's file is there.

    Returns `packages`, what was installed: full name → what it replaced; in check mode what would be.
    """

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"url", "install", "gpg_key", "locks", "state_dir", "repository_is_there"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask dnf what it would do; note it; do it; note what came of it."""
        super().run(tmp, task_vars)
        self._vars = task_vars or {}
        try:
            return self._work(bool(self._task.check_mode))
        except _StoppedError as stop:
            return stop.result

    def _work(self, checking: bool) -> dict[str, Any]:
        args = self._task.args
        if not args["install"]:
            return self._kept_as_wanted({})
        if checking and not args["repository_is_there"]:
            # dnf does not know the repository yet, so it cannot be asked.
            names = self._module("node_packages", missing_of=missing_of(args["install"]))["missing"]
            return self._answer(dict.fromkeys(names), bool(names))
        wanted = self._dnf(check=True)
        if checking and wanted.packages:
            return self._answer(wanted.packages, True)
        if wanted.packages:
            self._module("node_packages", packages=wanted.packages, gpg_key=args["gpg_key"])
            self._module("node_snapshot", state_dir=None, keep_as=f"{args['state_dir']}/{BEFORE}")
            self._dnf(check=False)
        return self._kept_as_wanted(wanted.packages)

    def _kept_as_wanted(self, packages: Mapping[str, str | None]) -> dict[str, Any]:
        """Key and locks as they should be; what an installation changed, also one that was interrupted, is noted."""
        args = self._task.args
        kept = self._module("node_packages", gpg_key=args["gpg_key"], locks=args["locks"])
        if kept.get("before"):
            now = self._module("node_snapshot", state_dir=None)["snapshot"]
            kept = self._module("node_packages", changes=brought(kept["before"], now), locks=args["locks"])
        return {**self._answer(packages, bool(packages) or kept["changed"]), "locked": kept["locked"]}

    def _answer(self, packages: Mapping[str, str | None], changed: bool) -> dict[str, Any]:
        names = ", ".join(packages)
        told = f"{'would be ' if self._task.check_mode else ''}installed: {names}" if names else "all are installed"
        return {"changed": changed, "packages": dict(packages), "msg": told}

    def _dnf(self, *, check: bool) -> Plan:
        """Ansible's own dnf module over our repository alone."""
        kept = self._task.check_mode
        self._task.check_mode = check or kept
        try:
            answer = self._module(
                "ansible.legacy.dnf",
                state_dir=None,
                pkg=list(self._task.args["install"]),
                state="present",
                disablerepo=["*"],
                enablerepo=[REPOSITORY],
                # They speak to the vendor's servers at each call.
                disable_plugin=["subscription-manager", "product-id"],
            )
        except _StoppedError as stop:
            if stop.result.get("unreachable"):
                raise
            raise self._refusal(explain(stop.result, self._task.args["url"]), stop.result) from None
        finally:
            self._task.check_mode = kept
        found = plan(answer)
        if found.removed:
            gone, new = ", ".join(found.removed), ", ".join(found.packages)
            raise self._refusal(
                f"installing {new} would remove {gone}, which nobody asked for: remove it by hand first, or leave out "
                "what takes its place"
            )
        return found

    def _refusal(self, text: str, result: Mapping[str, Any] | None = None) -> _StoppedError:
        return _StoppedError({**(result or {}), "failed": True, "msg": f"{self._vars['inventory_hostname']}: {text}"})

    def _module(self, name: str, **args: Any) -> dict[str, Any]:
        """Answer of a module. Raises _StoppedError when it failed."""
        given = {"state_dir": self._task.args["state_dir"], **args}
        result: dict[str, Any] = self._execute_module(
            module_name=name,
            module_args={key: value for key, value in given.items() if value is not None},
            task_vars=self._vars,
        )
        if result.get("failed") or result.get("unreachable"):
            raise _StoppedError(result)
        return result


class _StoppedError(Exception):
    """A module on the node failed; `result` is what the task answers."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__(str(result.get("msg")))
        self.result = result
