"""The lab's own bridge: node and registry addresses live on it, and nothing leads out of it."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path

from vllm_node.lab.command import run
from vllm_node.lab.errors import LabError

# A corner of 10/8 that few sites use; a lab takes one /24 of it.
_POOL = ipaddress.IPv4Network("10.213.0.0/16")


def bridge_name(lab: str) -> str:
    """Name of the bridge of `lab`; the kernel allows 15 characters."""
    return f"vn-{lab}"[:15]


def free_subnet(lab: str) -> str:
    """A /24 that no interface of this machine uses, the same for the same lab name where it is free.

    Raises:
        LabError: every /24 of the pool is taken.
    """
    used = {
        ipaddress.IPv4Interface(f"{address['local']}/{address['prefixlen']}").network
        for link in json.loads(run(["ip", "-json", "-4", "address", "show"]))
        for address in link["addr_info"]
    }
    subnets = list(_POOL.subnets(new_prefix=24))
    start = sum(lab.encode()) % len(subnets)
    for subnet in subnets[start:] + subnets[:start]:
        if not any(subnet.overlaps(other) for other in used):
            return str(subnet)
    raise LabError(f"no free /24 in {_POOL}: end old labs with `vllm-node lab down --name NAME`")


def address(subnet: str, number: int) -> str:
    """Address number `number` of `subnet`; 1 is the control host."""
    return str(ipaddress.ip_network(subnet)[number])


def up(lab: str, subnet: str) -> None:
    """Make the bridge with the control host's address on it; an existing one is kept."""
    bridge = bridge_name(lab)
    if not Path(f"/sys/class/net/{bridge}").exists():
        run(["ip", "link", "add", bridge, "type", "bridge"])
        run(["ip", "address", "add", f"{address(subnet, 1)}/24", "dev", bridge])
    run(["ip", "link", "set", bridge, "up"])


def down(lab: str) -> None:
    """Remove the bridge if it is there."""
    if Path(f"/sys/class/net/{bridge_name(lab)}").exists():
        run(["ip", "link", "delete", bridge_name(lab)])
