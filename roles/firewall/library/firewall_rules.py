#!/usr/bin/python
"""Have exactly the wanted rich rules of ours in firewalld."""

from __future__ import annotations

DOCUMENTATION = r"""
module: firewall_rules
short_description: Let networks reach one port through firewalld
description:
  - Each rule is made in what runs and in what is kept, without a reload, and noted in the manifest of the node before.
    Rules that the site has already are left to it. Rules of ours that are no longer wanted go.
options:
  state_dir: {type: path, required: true, description: Folder of the manifest.}
  zone: {type: str, required: true, description: Zone of firewalld that the rules belong to.}
  port: {type: int, required: true, description: TCP port.}
  sources: {type: list, elements: str, required: true, description: Networks in CIDR form. None means no rule.}
author: [vllm-node maintainers]
"""

RETURN = r"""
changes: {description: "What was changed, or would be, a line each.", type: list, returned: always}
"""

import ipaddress

from ansible.module_utils import firewall_zones
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_manifest import Manifest


def main():
    module = AnsibleModule(
        argument_spec={
            "state_dir": {"type": "path", "required": True},
            "zone": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "sources": {"type": "list", "elements": "str", "required": True},
        },
        supports_check_mode=True,
    )
    args = module.params
    try:
        sources = [ipaddress.ip_network(source) for source in args["sources"]]
        rules = [firewall_zones.rich_rule(source, args["port"]) for source in sources]
        wanted = [[args["zone"], where, rule] for where in firewall_zones.WHERE for rule in dict.fromkeys(rules)]
        manifest = Manifest.load(args["state_dir"])
        stale = [rule for rule in firewall_zones.marks(manifest)["rules"] if rule not in wanted]
        new = firewall_zones.missing(wanted)
        if not module.check_mode:
            # What is to go goes first: a failure must not leave a door open.
            if stale:
                firewall_zones.take_back(manifest, stale)
            if new:
                firewall_zones.add(manifest, new)
    except (OSError, ValueError, firewall_zones.FirewallError) as error:
        module.fail_json(msg="firewall: %s" % error)
    changes = ["gone from zone %s (%s): %s" % tuple(rule) for rule in stale]
    changes += ["added to zone %s (%s): %s" % tuple(rule) for rule in new]
    module.exit_json(changed=bool(changes), changes=changes)


if __name__ == "__main__":
    main()
