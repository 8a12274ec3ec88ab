"""Remember what a role wants on its node for `quadlet` and `stack`; nothing is written, nobody is connected to.

stage:
  part: prometheus                 # whose these are; unique in the run
  scope: stack                     # or host: what has to be there before images are pulled
  files: [{path: /etc/..., content: "{{ lookup('ansible.builtin.template', 'x.j2') }}", mode: "0644", live: false}]
  secrets: [{name: ..., value: ...}]
  volumes: [prometheus-data]
  units: [{unit: prometheus.service, component: ..., image: ..., address: ..., ready: {...}, reload: {...}}]
  checks: [{image: prometheus, folder: /etc/..., at: /etc/prometheus, argv: [promtool, check, config, ...]}]

A file that is `live` is taken up by its program without a restart. A check is a program of the image that judges a
folder of staged files on the node before any of them is installed.
"""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from vllm_node.staging import fact_name

_FILE_DEFAULTS = {"mode": "0644", "owner": 0, "group": 0, "secret": False, "live": False}


class ActionModule(ActionBase):  # type: ignore[misc]
    """See the module's text."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset({"part", "scope", "files", "secrets", "volumes", "units", "checks"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the fact that carries the part."""
        super().run(tmp, task_vars)
        args = self._task.args
        files = [{**_FILE_DEFAULTS, **entry} for entry in args.get("files") or []]
        for entry in files:
            if not isinstance(entry.get("content"), str):
                raise AnsibleActionFail(f"{args['part']}: the content of {entry['path']} is not text")
        staged = {
            "part": args["part"],
            "scope": args.get("scope", "stack"),
            "files": files,
            "secrets": args.get("secrets") or [],
            "volumes": args.get("volumes") or [],
            "units": args.get("units") or [],
            "checks": args.get("checks") or [],
        }
        return {"changed": False, "ansible_facts": {fact_name(args["part"]): staged}}
