#!/usr/bin/python
"""As the module of the role says it of an instance that serves nobody."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule

FACTS = {
    "version": "0.32.0",
    "max_model_len": 2048,
    "model": {"facts": {"vocab_size": 4096, "special_token_ids": [0, 1, 2]}},
    "activity": {"running": 0, "waiting": 0, "finished_last_minute": 0},
}


def main() -> None:
    module = AnsibleModule({"instance": {}, "port": {"type": "int"}, "model_path": {}, "prometheus_url": {}})
    module.exit_json(facts=FACTS)


if __name__ == "__main__":
    main()
