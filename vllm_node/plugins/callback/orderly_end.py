"""The first Ctrl-C while a benchmark runs ends its stage and keeps what was measured; the second one ends Ansible."""

from __future__ import annotations

from typing import Any

from ansible.plugins.callback import CallbackBase

from vllm_node.bench.interrupt import ACTIONS, Listener

DOCUMENTATION = """
name: orderly_end
type: aggregate
short_description: An interrupted benchmark ends in order
description:
  - Ansible gives signals to its own process only, and a callback is what a project may have in that.
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """See the module's text."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "orderly_end"

    def __init__(self, *args: Any, **more: Any) -> None:
        """Nothing is listened to yet."""
        super().__init__(*args, **more)
        self._listener = Listener()

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:  # noqa: ARG002 - Ansible's signature
        """Listen in tasks that end by themselves."""
        self._listener.listen(task.action.rpartition(".")[2] in ACTIONS)

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        """Handlers are tasks too."""
        self._listener.listen(task.action.rpartition(".")[2] in ACTIONS)

    def v2_playbook_on_stats(self, stats: Any) -> None:  # noqa: ARG002 - Ansible's signature
        """The run is over."""
        self._listener.listen(False)
