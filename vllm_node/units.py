"""Text that goes into unit files: image references, vLLM's flags, and systemd's quoting."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# Quadlet takes the quotes away: it drops an empty word and all that follow, and at a lone ; systemd begins a command.
_LOST = ("", ";")
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")


def image_reference(image: Mapping[str, Any]) -> str:
    """`repository@digest` of an entry of the image lock; its tag is for people and does not count.

    Raises:
        ValueError: the entry has no digest, or not one of SHA-256.
    """
    digest = str(image.get("digest") or "")
    if not _DIGEST.fullmatch(digest):
        raise ValueError(
            f"image {image.get('repository')}:{image.get('tag')} is not pinned: its digest is {digest!r}; "
            "an image lock holds `sha256:` and 64 hex digits for each image"
        )
    return f"{image['repository']}@{digest}"


def image_references(lock: Mapping[str, Mapping[str, Any]]) -> list[dict[str, str]]:
    """`[{name, reference}]` of a whole image lock, in the order of the names."""
    return [{"name": name, "reference": image_reference(lock[name])} for name in sorted(lock)]


def vllm_args(args: Mapping[str, Any]) -> list[str]:
    """Words of a `vllm serve` command line from `{flag: value}`.

    `true` gives `--flag`, `false` gives `--no-flag`, a list several words, a dictionary its JSON (inside a list as
    well); `None` leaves the flag out, which takes a default of the role away. A value that cannot be a word of its own
    is joined to its flag: `--flag=`.
    """
    words: list[str] = []
    for flag, value in args.items():
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            words += [f"--{flag}", *map(_argument, value)]
        elif _argument(value) in _LOST:
            words.append(f"--{flag}={_argument(value)}")
        else:
            words += [f"--{flag}", _argument(value)]
    return words


def _argument(value: object) -> str:
    return json.dumps(value, separators=(",", ":")) if isinstance(value, Mapping) else str(value)


def systemd_word(word: object) -> str:
    """One word for `Exec=` or `Environment=`, quoted so that systemd and Quadlet hand on exactly these characters.

    Raises:
        ValueError: a line break, which a unit file cannot carry, or a word that would be lost on the way.
    """
    text = str(word)
    if text in _LOST:
        raise ValueError(f"a unit file cannot carry {text!r} as a word of its own")
    if "\n" in text or "\r" in text:
        raise ValueError(f"a unit file cannot carry a line break: {text!r}")
    # % starts a specifier and $ a variable, quoted or not.
    escaped = text.replace("%", "%%").replace("$", "$$")
    if _PLAIN.fullmatch(text):
        return escaped
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'


def systemd_words(words: Sequence[object]) -> str:
    """Several words on one line."""
    return " ".join(systemd_word(word) for word in words)
