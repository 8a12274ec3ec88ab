"""What a bundle in the making knows of itself: which files are whole, what they hold, and to which part they belong.

A line of JSON for each thing that has come true, written when it has. The file may be cut anywhere: what it does not
tell is only made again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from vllm_node.bundle.layout import Folder, Part


@dataclass(frozen=True)
class Known:
    """What a file holds, and how it looked when it was seen to hold that: size in bytes, last change in ns.

    source: both of the file that it was copied from, if it was.
    """

    sha256: str
    bytes: int
    mtime_ns: int
    source: tuple[int, int] | None = None


class Journal:
    """`files` by path; `parts` with the paths of their files, by path and name. Threads may write to it."""

    def __init__(self, path: Path) -> None:
        """Read what is there."""
        self._path = path
        self._lock = Lock()
        self.files: dict[str, Known] = {}
        self.parts: dict[tuple[str, str], tuple[Part, tuple[str, ...]]] = {}

    def read(self) -> None:
        """Take in what an earlier run has written."""
        with contextlib.suppress(FileNotFoundError):
            for line in self._path.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    self._take(json.loads(line))

    def note_file(self, path: str, known: Known) -> None:
        """A file is whole."""
        self._add({"path": path, **asdict(known)})

    def note_part(self, part: Part, files: tuple[str, ...]) -> None:
        """A part is whole."""
        self._add({"part": part.as_dict(), "files": files})

    def begin(self, folder: Folder) -> None:
        """The parts of a folder are chosen anew."""
        self._add({"begin": folder})

    def _add(self, line: Mapping[str, Any]) -> None:
        with self._lock:
            self._take(line)
            with self._path.open("a") as file:
                # The end of a line comes first: a line that was cut by a kill then spoils only itself.
                file.write("\n" + json.dumps(line))

    def _take(self, said: Mapping[str, Any]) -> None:
        if "part" in said:
            part = Part.of(said["part"])
            self.parts[part.path, part.name] = part, tuple(said["files"])
        elif "begin" in said:
            self.parts = {key: pair for key, pair in self.parts.items() if pair[0].folder != said["begin"]}
        else:
            source = said["source"] and (int(said["source"][0]), int(said["source"][1]))
            self.files[str(said["path"])] = Known(said["sha256"], said["bytes"], said["mtime_ns"], source)
