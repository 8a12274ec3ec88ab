"""The node's clock against the control host's."""

from __future__ import annotations


def skew_s(node_epoch_s: float, asked_at_s: float, answered_at_s: float) -> float:
    """Seconds by which the node's clock is surely ahead (positive) or behind (negative).

    The node read its clock at some moment between question and answer, so a reading within these bounds says
    nothing against it: the result is then 0.0, and transport time is never taken for skew.
    """
    if node_epoch_s > answered_at_s:
        return round(node_epoch_s - answered_at_s, 3)
    if node_epoch_s < asked_at_s:
        return round(node_epoch_s - asked_at_s, 3)
    return 0.0
