"""Figures as a person reads them: four digits, a unit, and a word where there is no honest number."""

from __future__ import annotations

import math
from typing import Any

UNOBSERVABLE = "unobservable"
_UNITS = {"/s": "/s", "tokens/s": " tokens/s", "W": " W", "J": " J", "s": " s", "": ""}
# By the end of a name, for figures that this version does not know.
_ENDINGS = (
    ("_per_s", "/s"),
    ("_s", "s"),
    ("_w", "W"),
    ("_j", "J"),
    ("_ratio", "share"),
    ("_share", "share"),
    ("_rate", "share"),
)


def shown(value: Any, unit: str = "") -> str:
    """`value` in words. None is what nobody could observe, never 0. `share` is given in per cent, `s` below 1 in ms."""
    if value is None:
        return UNOBSERVABLE
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if unit == "share":
        return f"{digits(round(100 * value, 10))} %"
    if unit == "s" and value != 0 and abs(value) < 1:
        return f"{digits(1000 * value)} ms"
    return digits(value) + _UNITS.get(unit, f" {unit}")


def digits(value: float) -> str:
    """Four digits that count; whole numbers in full."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "∞" if value > 0 else "-∞"
    if value == round(value) and abs(value) < 1e9:
        return str(round(value))
    if not 1e-4 <= abs(value) < 1e9:
        return f"{value:.3e}"
    return f"{value:.{max(0, 3 - math.floor(math.log10(abs(value))))}f}"


def unit_of(name: str) -> str:
    """The unit that a name ends with; none for a bare count."""
    return next((unit for ending, unit in _ENDINGS if name.endswith(ending)), "")


def is_number(value: Any) -> bool:
    """Whether there is a number, not a word and not nothing."""
    return isinstance(value, int | float) and not isinstance(value, bool)
