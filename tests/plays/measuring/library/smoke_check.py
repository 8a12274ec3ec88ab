#!/usr/bin/python
"""As the module of the role says it of an instance that answers rightly."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    module = AnsibleModule({"url": {}, "model": {}})
    module.exit_json(checks=[{"check": "usage counts the tokens", "outcome": "pass", "seen": "8 and 8"}])


if __name__ == "__main__":
    main()
