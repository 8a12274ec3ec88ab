"""How long the start of an instance is to take, from the size of its model and the speed of the disk it lies on.

The estimate never reaches a unit: its text would differ with each measurement, and every run would restart vLLM. A unit
has the fixed `start_budget_s`; the estimate ends the wait for a start that stands still, and warns in preflight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_node.preflight.reading import number, rows

# The disk is measured for half a second with one reader, in the order of the file; loading reads in another order,
# by several readers, and converts what it reads.
MARGIN = 3.0
# Start of Python, compilation, trial runs and graphs: minutes on a large model, whatever the disk.
FIXED_S = 600.0
_STEP_S = 600.0
_NO_DISK_BYTES = 1 << 60


def weights_s(model: Mapping[str, Any]) -> float | None:
    """Seconds that it takes to read the model once (a row of `models` in a snapshot); None where that is unknown."""
    size, speed = number(model, "bytes") or 0, number(model, "read", "bytes_per_s") or 0
    # What no disk holds, and what is slower than a byte in a second, is no figure.
    return size / speed if 0 < size < _NO_DISK_BYTES and speed >= 1 else None


def estimate_s(model: Mapping[str, Any]) -> float | None:
    """Seconds by which a start that goes well is over, in coarse steps; None where that is unknown."""
    reading_s = weights_s(model)
    return None if reading_s is None else math.ceil((FIXED_S + MARGIN * reading_s) / _STEP_S) * _STEP_S


def by_unit(snapshot: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The models of a snapshot by the unit that serves them."""
    for row in rows(snapshot, "models"):
        yield f"vllm-{row.get('name')}.service", row
