"""What goes wrong in a lab, in words for the person who started it."""

from __future__ import annotations


class LabError(Exception):
    """A lab operation failed; the text says what was seen and what to do next."""
