"""How many bytes of a bundle's blobs other programs have read: by where their open files stand, as Linux tells it.

skopeo draws its progress for a terminal only. What it sends, it reads from here; so its open files say how far it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

_POLL_S = 0.5


class Readers:
    """Watches programs while they read. `told` gets bytes since it was called last, from one thread at a time.

    Use it as a context; what is watched is added with `add`, and settled with `end`.
    """

    def __init__(self, told: Callable[[int], None]) -> None:
        """Nothing is watched yet."""
        self._told = told
        self._readers: dict[int, _Reader] = {}
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="readers", daemon=True)

    def __enter__(self) -> Readers:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Look no more."""
        self._end.set()
        self._thread.join()

    def add(self, pid: int, sizes: Mapping[str, int]) -> None:
        """Watch a program that reads these blobs: file name and size in bytes."""
        with self._lock:
            self._readers[pid] = _Reader(pid, sizes)

    def end(self, pid: int | None, total: int) -> None:
        """A program has done its work, all `total` bytes of it, whatever was seen; without pid, none was needed."""
        with self._lock:
            reader = self._readers.pop(pid, None) if pid is not None else None
            self._told(total - (reader.told if reader else 0))

    def forget(self, pid: int | None) -> None:
        """A program has failed: what it has read will be read again."""
        with self._lock:
            reader = self._readers.pop(pid, None) if pid is not None else None
            self._told(-reader.told if reader else 0)

    def _watch(self) -> None:
        while not self._end.wait(_POLL_S):
            with self._lock:
                for reader in self._readers.values():
                    self._told(reader.news())


class _Reader:
    """One program: `told` is how many bytes of it were told of."""

    def __init__(self, pid: int, sizes: Mapping[str, int]) -> None:
        self._folder = Path("/proc") / str(pid)
        self._sizes = sizes
        self._seen: dict[str, int] = {}
        self.told = 0

    def news(self) -> int:
        """Bytes since the last look."""
        now = self._open()
        # A file that was open and is not any more was read to its end.
        self._seen |= {name: now.get(name, self._sizes[name]) for name in {*self._seen, *now}}
        done = sum(self._seen.values())
        new, self.told = done - self.told, done
        return new

    def _open(self) -> dict[str, int]:
        found = {}
        try:
            for descriptor in (self._folder / "fd").iterdir():
                try:
                    name = descriptor.readlink().name
                    if name in self._sizes:
                        found[name] = min(self._position(descriptor.name), self._sizes[name])
                except (OSError, ValueError, IndexError):
                    continue  # closed between two looks
        except OSError:
            return {}  # the program has ended
        return found

    def _position(self, descriptor: str) -> int:
        return int((self._folder / "fdinfo" / descriptor).read_text().split()[1])
