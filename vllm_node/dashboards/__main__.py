"""`python -m vllm_node.dashboards` stores all dashboards with the role."""

from __future__ import annotations

from vllm_node.dashboards import build, store

for path in build.write(store.folder()):
    print(path)  # noqa: T201 - it is what the command is asked for
