"""How large the journal may become, and on what disk."""

from __future__ import annotations

import os
from typing import Any

FOLDER = "/var/log/journal"
_MAIN = "/etc/systemd/journald.conf"
# The later folder wins where two hold a file of one name.
_DROP_INS = tuple(f"{base}/systemd/journald.conf.d" for base in ("/usr/lib", "/usr/local/lib", "/run", "/etc"))
_DEFAULT = 4 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def probe(host: Any) -> dict[str, Any] | None:
    """{cap_bytes, keep_free_bytes, used_bytes, free_bytes, total_bytes} of the journal on disk.

    `cap_bytes` is what journald will let it grow to, `keep_free_bytes` what it leaves free for others; both are
    journald's own defaults (a tenth and 15 % of the file system, 4 GiB at most) where nothing is configured. None where
    the journal is kept in memory only.
    """
    settings = configured(host)
    kept = settings.get("Storage", "auto")
    folder = host.path(FOLDER)
    if kept in ("volatile", "none") or not os.path.isdir(folder):
        return None
    state = os.statvfs(folder)
    total = state.f_blocks * state.f_frsize
    return {
        "cap_bytes": _size(settings.get("SystemMaxUse")) or min(total // 10, _DEFAULT),
        "keep_free_bytes": _size(settings.get("SystemKeepFree")) or min(total * 15 // 100, _DEFAULT),
        "used_bytes": _used(folder),
        "free_bytes": state.f_bavail * state.f_frsize,
        "total_bytes": total,
    }


def configured(host: Any) -> dict[str, str]:
    """What journald's files set, in the order in which journald reads them; an empty value takes a setting back."""
    places = {name: f"{folder}/{name}" for folder in _DROP_INS for name in host.names(folder) if name.endswith(".conf")}
    found: dict[str, str] = {}
    for path in (_MAIN, *(places[name] for name in sorted(places))):
        section = ""
        for line in (host.read(path) or "").splitlines():
            text = line.strip()
            if text.startswith("["):
                section = text
            elif section == "[Journal]" and "=" in text and not text.startswith(("#", ";")):
                key, _, value = text.partition("=")
                found[key.strip()] = value.strip()
    return found


def _size(value: str | None) -> int | None:
    """Bytes of `500M`; None for nothing, and for what journald does not take either."""
    text = (value or "").removesuffix("B")
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "")
    return int(number) * _UNITS[unit] if number.isdecimal() else None


def _used(folder: str) -> int:
    used = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                used += os.stat(os.path.join(base, name)).st_blocks * 512
            except OSError:
                continue
    return used
