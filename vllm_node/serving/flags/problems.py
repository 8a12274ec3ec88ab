"""What is wrong with the flags or the environment of an instance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["fail", "warn"]
# unknown, gone and new: no such flag in this version. type: not a value that the flag takes. conflict: it does not go
# together with another, or with the instance's GPUs. owned: the instance has a key of its own for it, or all that
# watches the instance would look in vain. secret: it would stand in the unit. environment: a trap among the variables.
Kind = Literal["unknown", "gone", "new", "type", "conflict", "owned", "secret", "environment"]


@dataclass(frozen=True)
class Problem:
    """One problem. `subject` is the key as the site wrote it; `seen` and `mend` are short sentences.

    `name` is the right name of a flag, where there is one.
    """

    kind: Kind
    level: Level
    subject: str
    seen: str
    mend: str
    name: str | None = None
