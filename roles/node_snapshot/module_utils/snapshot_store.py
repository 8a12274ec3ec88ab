"""How fast the file systems can be read on which models lie: half a second each, past the cache of the node."""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import time
from typing import Any

LIMIT_S = 0.5
LIMIT_BYTES = 256 << 20
_BLOCK = 8 << 20
# Less than this says nothing about a disk.
_LEAST = 64 << 20
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt")

Speed = dict[str, Any]


def speeds(paths: list[str], limit_s: float = LIMIT_S) -> dict[str, Speed]:
    """{path: {bytes_per_s, past_cache, why}} of each model; one measurement for each file system.

    `bytes_per_s` is None, and `why` says so, where nothing can be measured. `past_cache` is False where what was read
    may have come from memory: then the figure is only the best that can be said. Nothing is kept, as a disk that is
    busy today is idle tomorrow. May hang on a dead mount: call it in a process that can be left behind.
    """
    found: dict[str, Speed] = {}
    measured: dict[int, Speed] = {}
    for path in sorted(set(paths)):
        try:
            place, size, device = largest(path)
        except OSError as error:
            found[path] = _unknown(error.strerror or str(error))
            continue
        if size < _LEAST:
            found[path] = _unknown("its largest file of weights is too small to measure by")
            continue
        if device not in measured:
            measured[device] = speed(place, size, limit_s)
        found[path] = measured[device]
    return found


def largest(path: str) -> tuple[str, int, int]:
    """(path, bytes, device) of the largest file of weights. OSError where there is none."""
    files = [path] if os.path.isfile(path) else [os.path.join(path, name) for name in os.listdir(path)]
    states = [(place, os.stat(place)) for place in files if place.endswith(_WEIGHTS)]
    if not states:
        raise FileNotFoundError(errno.ENOENT, "there are no weights")
    place, state = max(states, key=lambda each: each[1].st_size)
    return place, state.st_size, state.st_dev


def speed(place: str, size: int, limit_s: float = LIMIT_S, limit_bytes: int = LIMIT_BYTES) -> Speed:
    """Read a stretch of a file, elsewhere each time: a server of files may still have the last one in its memory."""
    begin = secrets.randbelow(max(1, (size - limit_bytes) // _BLOCK + 1)) * _BLOCK
    try:
        handle, past_cache = _opened(place)
    except OSError as error:
        return _unknown(error.strerror or str(error))
    try:
        if not past_cache:
            os.posix_fadvise(handle, begin, limit_bytes, os.POSIX_FADV_DONTNEED)
        return _timed(handle, begin, past_cache, limit_s, limit_bytes)
    except OSError as error:
        # A file system may take the flag and then refuse to read by it.
        return _unknown(error.strerror or str(error))
    finally:
        os.close(handle)


def _opened(place: str) -> tuple[int, bool]:
    try:
        return os.open(place, os.O_RDONLY | os.O_DIRECT), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.open(place, os.O_RDONLY), False


def _timed(handle: int, begin: int, past_cache: bool, limit_s: float, limit_bytes: int) -> Speed:
    # Reads past the cache need memory that begins on a page.
    with mmap.mmap(-1, _BLOCK) as block, memoryview(block) as buffer:
        read = 0
        started = time.monotonic()
        while read < limit_bytes and time.monotonic() - started < limit_s:
            part = os.preadv(handle, [buffer], begin + read)
            if part <= 0:
                break
            read += part
        took = time.monotonic() - started
    if not read:
        return _unknown("nothing could be read")
    why = None if past_cache else "this file system cannot be read past the cache of the node"
    return {"bytes_per_s": int(read / max(took, 1e-6)), "past_cache": past_cache, "why": why}


def _unknown(why: str) -> Speed:
    return {"bytes_per_s": None, "past_cache": None, "why": why}
