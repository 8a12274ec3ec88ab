"""`python -m tests.browser.install`: the browser that these tests need, from the distribution, where that can be done."""

from __future__ import annotations

import sys

from tests.browser.chromium import PACKAGE, program
from vllm_node.lab import host


def main() -> int:
    """Install it unless there is one; an exit code of 1 means that there is none."""
    if program() is None and host.can_install():
        host.install([host.Missing("no Chromium is here", f"apt-get install {PACKAGE}", PACKAGE)])
    if program() is None:
        sys.stderr.write(f"tests/browser is not run: no Chromium is here, and nobody may install {PACKAGE}\n")
    return program() is None


if __name__ == "__main__":
    sys.exit(main())
