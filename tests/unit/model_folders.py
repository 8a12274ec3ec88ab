"""Small folders that are whole models, and ways to spoil them."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"


def safetensors(*names: str, fill: int = 0, size: int = 4096) -> bytes:
    """A file with these tensors, each of `size` bytes that are all `fill`."""
    entries = {
        name: {"dtype": "U8", "shape": [size], "data_offsets": [size * at, size * at + size]}
        for at, name in enumerate(names)
    }
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + bytes([fill]) * (size * len(names))


def model(folder: Path, *, size: int = 4096, **config: Any) -> Path:
    """A model of two shards of the same length, a tokenizer and a vocabulary one level below."""
    (folder / "vocabulary").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **config}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "vocabulary/o200k_base.tiktoken").write_text("AA== 0\n")
    index = {"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for number, (shard, name) in enumerate(zip(SHARDS, "ab", strict=True)):
        (folder / shard).write_bytes(safetensors(name, fill=number + 1, size=size))
    return folder


def flip(path: Path, at: int = -1) -> None:
    """Change one byte; size and time stay as they were, as they do when a disk rots."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def swap(folder: Path) -> None:
    """The two shards have each other's name."""
    one, other = (folder / shard for shard in SHARDS)
    aside = one.rename(folder / "aside")
    other.rename(one)
    aside.rename(other)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


Spoil = Callable[[Path], Any]
SPOILT: dict[str, tuple[Spoil, dict[str, str]]] = {
    "a flipped byte": (lambda folder: flip(folder / SHARDS[1]), {SHARDS[1]: "has other content"}),
    "a missing shard": (lambda folder: (folder / SHARDS[0]).unlink(), {SHARDS[0]: "is missing"}),
    "a file too many": (lambda folder: (folder / "vocabulary/x").write_text(""), {"vocabulary/x": "is not in the manifest"}),
    "a cut file": (lambda folder: cut(folder / SHARDS[0]), {SHARDS[0]: "bytes instead of"}),
    "swapped shards": (swap, dict.fromkeys(SHARDS, "has other content")),
    "a git-lfs pointer": (lambda folder: (folder / SHARDS[0]).write_text(POINTER), {SHARDS[0]: "bytes instead of"}),
    "an empty folder": (lambda folder: shutil.rmtree(folder / "vocabulary"), {"vocabulary/o200k_base.tiktoken": "is missing"}),
}
"""Kind → what does it to a folder, and the differences that must be told: path → words among them."""
