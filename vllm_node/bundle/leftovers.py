"""Ends programs that an earlier run had started in a folder, when that run was killed and they were not.

A skopeo that nobody waits for goes on for as long as its image is large, and writes where the next run works.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path

_PROGRAMS = ("skopeo", "python", "dnf", "createrepo_c")
_GRACE_S = 10.0


def end(folder: Path) -> None:
    """End our programs whose arguments name something in `folder`. The caller holds the folder's lock."""
    for entry in Path("/proc").iterdir():
        # It may end by itself meanwhile, or be somebody else's.
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and int(entry.name) != os.getpid() and _is_ours(entry, folder):
                _end(entry, folder)


def _is_ours(process: Path, folder: Path) -> bool:
    words = (process / "cmdline").read_bytes().split(b"\0")
    program = os.path.basename(words[0]).decode(errors="replace")  # noqa: PTH119 - no path of ours
    return program.startswith(_PROGRAMS) and any(os.fsencode(f"{folder}/") in word for word in words[1:])


def _end(process: Path, folder: Path) -> None:
    descriptor = os.pidfd_open(int(process.name))
    try:
        # The number may have become another process's since; this one cannot any more.
        if _is_ours(process, folder):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [], _GRACE_S)
    finally:
        os.close(descriptor)
