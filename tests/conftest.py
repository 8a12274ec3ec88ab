"""What tests share: whether a lab can boot here, and the session's lab."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.labs import Nodes
from vllm_node.lab import host
from vllm_node.lab.lab import Lab
from vllm_node.paths import project_root

# A shell starts its background jobs with SIGINT ignored, and children inherit that; tests of Ctrl-C need it.
signal.signal(signal.SIGINT, signal.default_int_handler)


# A busy machine makes any example slow, which says nothing. `make test-fast` tries a few examples, `make test` all.
settings.register_profile("whole", deadline=None)
settings.register_profile("fast", deadline=None, max_examples=15)
settings.load_profile("whole")


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    """The session's lab; it goes when the session ends, unless VLLM_NODE_KEEP_LAB is set."""
    missing = host.missing()
    if missing:
        pytest.skip("no lab can boot here: " + "; ".join(thing.what for thing in missing))
    # Workers that run side by side have a lab each.
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    name = "test-" + hashlib.sha256(f"{project_root()}{worker}".encode()).hexdigest()[:4]
    keep = bool(os.environ.get("VLLM_NODE_KEEP_LAB"))
    old = Lab.find(name)
    if old is not None and not keep:
        old.down()  # a run that was killed leaves its lab behind
    Lab.up(name, [])
    yield Nodes(name)
    found = Lab.find(name)
    if found is not None and not keep:
        found.down()
