"""The registry program that the lab has in a root of its own, as one that is installed here."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_node.lab import host, registry


def install(folder: Path) -> Path:
    """Put `docker-registry` into a folder, for a PATH; skips the test where the lab cannot have it."""
    missing = host.missing()
    if missing:
        pytest.skip("no registry can be had here: " + "; ".join(thing.what for thing in missing))
    root = registry._root()
    library = root / "usr/lib/x86_64-linux-gnu"
    words = [root / "lib64/ld-linux-x86-64.so.2", "--library-path", library, root / "usr/bin/docker-registry"]
    (folder / "docker-registry").write_text(f'#!/bin/sh\nexec {" ".join(map(str, words))} "$@"\n')
    (folder / "docker-registry").chmod(0o755)
    return folder
