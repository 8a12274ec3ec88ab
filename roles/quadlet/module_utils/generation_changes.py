"""What a generation changed, in words: images by twelve digits of their digest, flags, and which other files."""

from __future__ import annotations

import os
import re

# Values of flags whose names sound like these are not told.
HUSH = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)
SHOWN = 4


def texts(files):
    """{path: text} of files with their content."""
    return {path: entry["content"].decode(errors="replace") for path, entry in files.items()}


def images(files):
    """{unit without its kind: image} of Quadlet files."""
    found = {}
    for path, text in texts(files).items():
        match = re.search(r"^Image=(\S+)", text, re.MULTILINE) if path.endswith(".container") else None
        if match:
            found[os.path.splitext(os.path.basename(path))[0]] = match.group(1)
    return found


def changes(before, after, old, new):
    """Sentences about what a generation changed; `old` and `new` are the texts of its files by path."""
    if before is None:
        return ["first: " + ", ".join(sorted(after["images"]) or ["no unit"])]
    said, others = [], []
    for path in sorted({*old, *new}):
        name, kind = os.path.splitext(os.path.basename(path))
        if old.get(path) == new.get(path):
            continue
        if kind != ".container":
            others.append(path)
        elif path not in old:
            said.append("%s: new, %s" % (name, short(after["images"].get(name))))
        elif path not in new:
            said.append("%s: gone" % name)
        else:
            said += unit_changes(name, old[path], new[path])
    if others:
        more = " and %d more" % (len(others) - SHOWN) if len(others) > SHOWN else ""
        said.append("files: " + ", ".join(others[:SHOWN]) + more)
    secret = {name for name, value in after["secrets"].items() if before["secrets"].get(name) != value}
    # Of what was found nobody knows the secrets.
    if secret and before["secrets"]:
        said.append("secrets: " + ", ".join(sorted(secret)))
    return said or ["nothing but what had been changed by hand"]


def unit_changes(name, old, new):
    """What differs between two texts of a Quadlet file: its image, its words, and which other keys."""
    before, after = keys_of(old), keys_of(new)
    said = []
    if before.get("Image") != after.get("Image"):
        pair = tuple(short((one.get("Image") or [""])[0]) for one in (before, after))
        said.append("%s: image %s → %s" % (name, *pair))
    words = [flags(" ".join(one.get("Exec") or [])) for one in (before, after)]
    for flag in sorted({*words[0], *words[1]}):
        pair = [one.get(flag) for one in words]
        if pair[0] != pair[1]:
            said.append("%s: %s" % (name, flag_change(flag, *pair)))
    differing = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    rest = sorted(differing - {"Image", "Exec"})
    if rest:
        said.append("%s: %s" % (name, ", ".join(rest)))
    return said or ["%s: what it mounts" % name]


def keys_of(text):
    """{key: values} of a unit file; the label over its inputs changes with everything and tells nothing."""
    found = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith(("#", ";")) and not value.startswith("io.vllm-node.inputs="):
            found.setdefault(key, []).append(value)
    return found


def flags(line):
    """{flag: value} of a command line; a word that is no flag belongs to the one before it."""
    found, last = {}, ""
    for word in line.split():
        flag, equals, value = word.partition("=")
        if word.startswith("-"):
            last = flag
            found[last] = value if equals else ""
        else:
            found[last] = (found.get(last, "") + " " + word).strip()
    return found


def flag_change(flag, old, new):
    """A flag that came, went or has another value."""
    shown = flag or "first words"
    if HUSH.search(flag):
        return shown + " changed"
    if old is None:
        return ("%s %s" % (shown, new)).strip() + " is new"
    return shown + " is gone" if new is None else "%s %s → %s" % (shown, old or "(none)", new or "(none)")


def short(reference):
    """Twelve digits of an image's digest."""
    digest = (reference or "").rpartition("@")[2]
    return digest[:19] if digest.startswith("sha256:") else digest or "no image"
