"""What ran on a node, and when: a generation holds the files as they were installed, so that a node can go back.

`STATE_DIR/generations/0003.json` tells of one, `generations/content/ID/` holds its files by their paths; generations
with the same files share them. Secrets are in neither: of a podman secret and of a secret file there is a keyed hash.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import shutil
import tempfile
import time

from ansible.module_utils.node_manifest import make_directory, write_atomically

SCHEMA = 1
SCOPES = ("host", "stack")
# `installing` and `applied` of a run that has ended: it was interrupted.
UNFINISHED = ("installing", "applied", "interrupted")
UNPROVEN = (*UNFINISHED, "failed")
# What a node may go back to by itself. `found` is what ran before generations were kept.
PROVEN = ("ready", "found")
NEEDED = (
    *("number", "run", "verb", "who", "toolkit", "back_to", "instead_of", "outcome", "reason", "installed"),
    *("begun_at", "ready_at", "files", "content", "secret_files", "secrets", "images", "units", "changes"),
)
NAME = re.compile(r"(\d{4,})\.json")
# Entries that share their files with others cost next to nothing, but a history has to end somewhere.
ENTRIES_A_GENERATION = 4
DAMAGED = "generation %d is damaged (%s): nobody can go back to it; `vllm-node history` names the others"


class Store:
    """The generations of a node. Times are seconds since 1970, by the node's clock."""

    def __init__(self, state_dir):
        self.folder = os.path.join(state_dir, "generations")

    def numbers(self):
        """Numbers of all generations, the newest last."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        return sorted(int(match.group(1)) for match in map(NAME.fullmatch, names) if match)

    def read(self, number):
        """What is told of a generation; ValueError when it is damaged."""
        try:
            with open(self._path(number), encoding="utf-8") as handle:
                data = json.load(handle)
        except (OSError, ValueError) as error:
            raise ValueError(DAMAGED % (number, error)) from error
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ValueError(DAMAGED % (number, "it is none of this toolkit's"))
        lacking = [name for name in NEEDED if name not in data]
        if lacking or data["number"] != number or content_id(data["files"]) != data["content"]:
            raise ValueError(DAMAGED % (number, "it lacks " + ", ".join(lacking) if lacking else "it was altered"))
        return data

    def all(self):
        """All generations, the newest last; of a damaged one only its number and what is wrong."""
        return [self._whole_or_damaged(number) for number in self.numbers()]

    def newest(self):
        """The newest generation, whole or damaged; None when there is none."""
        numbers = self.numbers()
        return self._whole_or_damaged(numbers[-1]) if numbers else None

    def files(self, number):
        """{path: {content, mode, owner, group, scope}} of a generation; ValueError unless each is as it was."""
        generation = self.read(number)
        found = {}
        for path, entry in generation["files"].items():
            try:
                with open(self._kept(generation["content"], path), "rb") as handle:
                    data = handle.read()
            except OSError as error:
                raise ValueError(DAMAGED % (number, error)) from error
            if hashlib.sha256(data).hexdigest() != entry["sha256"]:
                raise ValueError(DAMAGED % (number, "what it keeps of %s was altered" % path))
            found[path] = {**entry, "content": data}
        return found

    def add(self, files, **told):
        """Keep files ({path: {content, mode, owner, group, scope}}) as a new generation; returns what is told of it."""
        entries = {path: described(entry) for path, entry in files.items()}
        number = (self.numbers() or [0])[-1] + 1
        generation = {"schema": SCHEMA, "number": number, "files": entries, "content": content_id(entries), **told}
        self._keep(generation["content"], files)
        self._write(generation)
        return generation

    def change(self, number, files=None, **told):
        """Tell something else of a generation, or other files of it. A damaged one stays as it is."""
        try:
            generation = {**self.read(number), **told}
        except ValueError:
            return None
        if files is not None:
            generation["files"] = {path: described(entry) for path, entry in files.items()}
            generation["content"] = content_id(generation["files"])
            self._keep(generation["content"], files)
        self._write(generation)
        return generation

    def ready(self):
        """Note that every unit of the newest generation was ready, unless it is known or it was never whole."""
        newest = self.newest()
        if not newest or not newest.get("installed") or newest["outcome"] in ("ready", "rolled_back"):
            return
        self.change(newest["number"], outcome="ready", ready_at=time.time(), reason=None)
        if newest["instead_of"]:
            self.change(newest["instead_of"], outcome="rolled_back")

    def failed(self, run, reason):
        """Note why the newest generation is not what was wanted. What has been ready fails in its own run only."""
        newest = self.newest()
        if newest and "run" in newest and (newest["run"] == run or newest["outcome"] in UNPROVEN):
            self.change(newest["number"], outcome="failed", reason=reason)

    def prune(self, keep):
        """Drop what is older than the newest `keep` sets of files; what was proven last always stays.

        Returns the images that nothing names any more which is still kept.
        """
        generations = self.all()
        proven = [one["number"] for one in generations if one["outcome"] in PROVEN][-1:]
        kept, dropped, content = [], [], []
        for one in reversed(generations):
            known = one.get("content")
            if known not in content and len(content) < keep:
                content.append(known)
            if one["number"] in proven or (known in content and len(kept) < keep * ENTRIES_A_GENERATION):
                kept.append(one)
            else:
                dropped.append(one)
                os.unlink(self._path(one["number"]))
        wanted = {one.get("content") for one in kept}
        # Of a damaged one nobody knows what it needs.
        if None in wanted:
            return []
        for name in os.listdir(os.path.join(self.folder, "content")):
            if name not in wanted:
                shutil.rmtree(os.path.join(self.folder, "content", name), ignore_errors=True)
        named = {image for one in kept for image in one["images"].values()}
        return sorted({image for one in dropped for image in (one.get("images") or {}).values()} - named)

    def _whole_or_damaged(self, number):
        try:
            return self.read(number)
        except ValueError as error:
            return {"number": number, "outcome": "damaged", "reason": str(error)}

    def _path(self, number):
        return os.path.join(self.folder, "%04d.json" % number)

    def _kept(self, content, path):
        return os.path.join(self.folder, "content", content, path.lstrip("/"))

    def _write(self, generation):
        make_directory(self.folder, 0o700)
        write_atomically(self._path(generation["number"]), json.dumps(generation, indent=1).encode(), 0o600)

    def _keep(self, content, files):
        """Lay files down once; a folder that is there under its name, but not whole, is laid down anew."""
        place = os.path.join(self.folder, "content", content)
        if is_whole(place, files):
            return
        for folder in (self.folder, os.path.dirname(place)):
            make_directory(folder, 0o700)
        partial = tempfile.mkdtemp(prefix=".new-", dir=os.path.dirname(place))
        try:
            for path, entry in files.items():
                copy = os.path.join(partial, path.lstrip("/"))
                os.makedirs(os.path.dirname(copy), exist_ok=True)
                with open(copy, "wb") as handle:
                    handle.write(entry["content"])
                os.chmod(copy, entry["mode"])
                os.chown(copy, entry["owner"], entry["group"])
            shutil.rmtree(place, ignore_errors=True)
            os.rename(partial, place)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def described(entry):
    """What is told of a file: all but its content."""
    told = {key: entry[key] for key in ("mode", "owner", "group", "scope")}
    return {"sha256": hashlib.sha256(entry["content"]).hexdigest(), **told}


def content_id(entries):
    """Name of a set of files, by their paths, contents, modes and owners."""
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()[:16]


def is_whole(place, files):
    """Whether a folder holds exactly these contents."""
    for path, entry in files.items():
        try:
            with open(os.path.join(place, path.lstrip("/")), "rb") as handle:
                if handle.read() != entry["content"]:
                    return False
        except OSError:
            return False
    return os.path.isdir(place)


def keyed(salt, value):
    """Hash of a secret that tells whether it has changed, and nothing else."""
    data = value if isinstance(value, bytes) else value.encode()
    return hmac.new(bytes.fromhex(salt), data, "sha256").hexdigest()[:24]


def read_file(path):
    """{content, mode, owner, group} of a regular file, or None."""
    try:
        status = os.lstat(path)
        if os.path.islink(path):
            return None
        with open(path, "rb") as handle:
            content = handle.read()
    except OSError:
        return None
    return {"content": content, "mode": status.st_mode & 0o7777, "owner": status.st_uid, "group": status.st_gid}
