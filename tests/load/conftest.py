"""What the tests of the measuring engine share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest


@pytest.fixture
def first_in_line() -> Iterator[None]:
    """This process and those that it starts come before all others, where this user may ask for that.

    Tests that compare times to the millisecond would else measure what other programs do on the machine.
    """
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    yield
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
