"""Reads settings out of a JSON document and collects everything that is wrong with them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

_KINDS = {
    "a text": lambda value: isinstance(value, str),
    "a number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "a whole number": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "true or false": lambda value: isinstance(value, bool),
    "an object": lambda value: isinstance(value, Mapping),
    "a list": lambda value: isinstance(value, list),
}
REQUIRED = object()


class Fields:
    """One object of the document. `problems` is shared by all of a document."""

    def __init__(self, place: str, values: object, problems: list[str]) -> None:
        """`place` is where the object stands in the document, as problems name it."""
        self.place = place
        self.problems = problems
        self.values: Mapping[str, Any] = values if isinstance(values, Mapping) else {}
        self._known: list[str] = []
        if not isinstance(values, Mapping):
            problems.append(f"{place or 'the plan'} is no object")

    def take(self, name: str, kind: str, default: Any = REQUIRED, *, least: float | None = None) -> Any:
        """The value of a field; its default where it is missing, null or wrong."""
        self._known.append(name)
        value = self.values.get(name)
        if value is None:
            if default is REQUIRED:
                self.problem(name, f"is missing ({kind})")
                return None
            return default
        if not _KINDS[kind](value):
            self.problem(name, f"should be {kind}, not {value!r}")
        elif least is not None and value < least:
            self.problem(name, f"should be at least {least:g}, not {value!r}")
        else:
            return value
        return None if default is REQUIRED else default

    def choice(self, name: str, choices: Sequence[str], default: Any = REQUIRED) -> str:
        """A field that is one of a few words."""
        value = self.take(name, "a text", default)
        if value is not None and value not in choices:
            self.problem(name, f"should be one of {', '.join(choices)}, not {value!r}{_meant(value, choices)}")
        return str(value)

    def part(self, name: str, default: Mapping[str, Any] | None = None) -> Fields:
        """A field that is an object of its own; required without a default."""
        value = self.take(name, "an object", REQUIRED if default is None else default)
        return Fields(f"{self.place}.{name}" if self.place else name, value or {}, self.problems)

    def any(self, name: str, default: Any = None) -> Any:
        """A field that somebody else judges."""
        self._known.append(name)
        return self.values.get(name, default)

    def problem(self, name: str, text: str) -> None:
        """Take note of a problem with a field."""
        self.problems.append(f"{self.place}.{name} {text}" if self.place else f"{name} {text}")

    def end(self) -> None:
        """Whatever has not been taken is misspelt."""
        for name in self.values:
            if name not in self._known:
                self.problem(name, f"is unknown{_meant(name, self._known)}")


def _meant(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {close[0]}?" if close else ""
