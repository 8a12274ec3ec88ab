"""`SHA256SUMS`: written so that `sha256sum -c` reads it, read so that nothing in it leads out of the bundle."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from vllm_node.bundle.hashing import open_regular
from vllm_node.bundle.layout import safe_path, shown

_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")
# A bundle has thousands of files; a file of this size has half a million lines, and reading it still is no burden.
MAX_BYTES = 64 << 20


def text(sums: Mapping[str, str]) -> str:
    """The file for `{path: sha256}`, sorted by path as bytes. Raises ValueError for a path that it cannot hold."""
    return "".join(f"{sums[path]}  {safe_path(path)}\n" for path in sorted(sums, key=str.encode))


def read(path: Path) -> tuple[dict[str, str], list[str]]:
    """`{path: sha256}` of a file, and what is wrong with its lines. Raises OSError; a link is not followed."""
    content = read_small(path, MAX_BYTES)
    found: dict[str, str] = {}
    problems = []
    lines = content.decode("utf-8", errors="surrogateescape").split("\n")
    if lines.pop():
        problems.append("its last line has no end: the file was cut")
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if match is None:
            problems.append(f"line {number} is no checksum: {shown(line)}")
            continue
        try:
            name = safe_path(match[2])
        except ValueError as error:
            problems.append(f"line {number}: {error}")
            continue
        if name in found:
            problems.append(f"line {number} names {shown(name)} again")
        found[name] = match[1]
    return found, problems


def read_small(path: Path, limit: int) -> bytes:
    """Content of a regular file of at most `limit` bytes. Raises OSError, also when it is larger."""
    with os.fdopen(open_regular(path, follow=False), "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(f"{path} is larger than {limit} bytes")
    return content
