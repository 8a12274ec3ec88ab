"""Ctrl-C while a benchmark runs: Ansible's own process hears it, and what measures is in a worker forked from that.

Left to itself, Ansible passes the signal on and ends. Its workers then end all that they started and themselves, and
no `always` of the play is run: a load would go on on the node, and what was measured would be lost. So the first
signal leaves a note that the workers can read, and no more. The next one is Ansible's again.
"""

from __future__ import annotations

import mmap
import signal
from types import FrameType

# Tasks of these actions end by themselves, and in order, once the note is there.
ACTIONS = frozenset({"benchmark"})
# One byte that belongs to all processes that are forked from the one that loaded this module.
_note = mmap.mmap(-1, 1)


def asked() -> bool:
    """Whether somebody wants this run to end."""
    return _note[0] != 0


class Listener:
    """Takes one SIGINT for the note while it listens. For the main thread of Ansible's own process."""

    def __init__(self) -> None:
        """It does not listen yet."""
        self._before: signal._HANDLER = None
        self._listens = False

    def listen(self, wanted: bool) -> None:
        """Begin to listen, or leave the signal to whoever had it before."""
        if wanted and not self._listens and not asked():
            self._before = signal.signal(signal.SIGINT, self._take)
            self._listens = True
        elif self._listens and not wanted:
            signal.signal(signal.SIGINT, self._before)
            self._listens = False

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        self.listen(False)
        _note[0] = 1
