"""How GPUs reach each other, from `nvidia-smi topo -m`."""

from __future__ import annotations

import re
from typing import Any

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"GPU(\d{1,3})$")


def probe_links(host: Any) -> list[list[Any]] | None:
    """[first, second, kind] of each pair of GPUs, None when unknown; kinds as NVIDIA writes them: NV18, PIX, SYS."""
    if not host.which("nvidia-smi"):
        return None
    answer = host.run("nvidia-smi", "topo", "-m")
    if not answer.ok:
        host.unseen("gpu.links", answer.trouble)
        return None
    found = links_from_matrix(answer.out)
    if found is None:
        host.unseen("gpu.links", "nvidia-smi topo -m shows no matrix of GPUs")
    return found


def links_from_matrix(text: str) -> list[list[Any]] | None:
    """The pairs out of that table; None when the text is none. With one GPU there is no pair."""
    columns: list[int] | None = None
    found: list[list[Any]] = []
    for line in _COLOURS.sub("", text).splitlines():
        words = line.split()
        if columns is None:
            columns = [int(match.group(1)) for match in map(_GPU.match, words) if match] or None
            continue
        row = _GPU.match(words[0]) if words else None
        if row:
            first = int(row.group(1))
            cells = zip(columns, words[1:])
            found += [[first, second, kind] for second, kind in cells if first < second and kind != "X"]
    return found if columns is not None else None
