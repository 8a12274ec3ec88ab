"""A cache whose entries are keyed by the recipe that makes them.

An entry is made beside its final name and renamed into place when it is whole, so an interrupted build is
never taken for a finished one. A lock per key lets two runs share one build.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vllm_node.paths import cache_dir


def recipe_hash(*parts: object) -> str:
    """Twelve hex digits over `parts`: JSON-able values, or paths of files whose content counts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(
            part.read_bytes() if isinstance(part, Path) else json.dumps(part, sort_keys=True).encode()
        )
        digest.update(b"\0")
    return digest.hexdigest()[:12]


def entry(kind: str, key: str, build: Callable[[Path], None]) -> Path:
    """Return the folder `kind-key`, calling `build(folder)` first when it does not exist yet.

    Older entries of the same kind stay: the root of a running node may be an overlay over one of them.
    """
    final = cache_dir() / f"{kind}-{key}"
    with lock(f"{kind}-{key}"):
        if not final.is_dir():
            partial = final.with_name(f".{final.name}.partial")
            remove_tree(partial)
            partial.mkdir(parents=True)
            build(partial)
            os.sync()
            partial.rename(final)
    return final


@contextmanager
def lock(name: str) -> Iterator[None]:
    """Hold the cache's lock `name`; it is released when the process ends, however it ends."""
    folder = cache_dir() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def remove_tree(path: Path) -> None:
    """Remove a folder that may not exist; anything else that is in the way is an error."""
    if path.exists():
        shutil.rmtree(path)
