"""What the role `gateway` makes of instances and clients; see `vllm_node.gateway`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError


def gateway_plan(
    instances: Sequence[Mapping[str, Any]], clients: Sequence[Mapping[str, Any]], connections: int
) -> dict[str, Any]:
    """Upstreams, ports and limits, for the template of nginx's configuration."""
    # Ansible loads this file in nearly every task's process, and one of them needs what is behind it.
    from vllm_node.gateway import plan

    return plan.plan(instances, clients, connections)


def gateway_routes(instances: Sequence[Mapping[str, Any]]) -> str:
    """The file with the way to each model."""
    from vllm_node.gateway import plan

    return plan.routes(instances)


def gateway_clients_file(clients: Sequence[Mapping[str, Any]]) -> str:
    """The file with the hash of each client's key."""
    from vllm_node.gateway import keys
    from vllm_node.render import PLACEHOLDER

    # Where nothing secret is to be rendered, a word stands in the place of each key.
    shown = [
        {"key_sha256": keys.digest(PLACEHOLDER), **{name: value for name, value in client.items() if name != "key"}}
        if client.get("key") == PLACEHOLDER
        else client
        for client in clients
    ]
    try:
        return keys.table(shown)
    except ValueError as error:
        raise AnsibleFilterError(f"gateway_clients: {error}") from error


class FilterModule:
    """Names that the role uses."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → function."""
        return {
            "gateway_plan": gateway_plan,
            "gateway_routes": gateway_routes,
            "gateway_clients_file": gateway_clients_file,
        }
