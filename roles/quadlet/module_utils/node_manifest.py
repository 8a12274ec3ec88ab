"""The manifest of a node: everything that the toolkit created there, so that everything can be taken away.

An entry is written before the thing is made. A run that dies half way has therefore never made something
that the manifest does not name; an entry without its thing does no harm.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import tempfile

SCHEMA = 1
LISTS = ("directories", "secrets", "volumes", "units")


class Manifest:
    """`STATE_DIR/manifest.json`, mode 0600.

    files: {path: {sha256, scope, backup: file name below STATE_DIR/backup | None}}; images: {reference: name};
    directories, secrets, volumes, units: lists of names. `salt` keys the hashes of secrets.
    """

    def __init__(self, state_dir, data):
        self.state_dir = state_dir
        self.data = data

    @classmethod
    def load(cls, state_dir):
        """Read the manifest; an empty one when the node has none. A damaged one is an error, never ignored."""
        try:
            with open(os.path.join(state_dir, "manifest.json"), encoding="utf-8") as handle:
                data = json.load(handle)
        except FileNotFoundError:
            data = {"schema": SCHEMA, "salt": secrets.token_hex(16), "files": {}, "images": {}}
            data.update({name: [] for name in LISTS})
        if data.get("schema") != SCHEMA:
            raise ValueError(
                "%s/manifest.json has schema %r, this toolkit knows %d: use the version that wrote it"
                % (state_dir, data.get("schema"), SCHEMA)
            )
        return cls(state_dir, data)

    def save(self):
        """Replace the file in one step; it survives a power cut either old or new."""
        make_directory(self.state_dir, 0o700)
        write_atomically(
            os.path.join(self.state_dir, "manifest.json"), json.dumps(self.data, indent=1).encode(), 0o600
        )

    def add(self, kind, name):
        """Note that `name` is about to be made; `kind` is one of LISTS."""
        if name not in self.data[kind]:
            self.data[kind].append(name)
            self.save()

    def add_image(self, reference, name):
        """Note that the image `reference` is about to be pulled."""
        if reference not in self.data["images"]:
            self.data["images"][reference] = name
            self.save()

    def install(self, path, content, mode, owner, group, scope):
        """Write a file that is ours from now on. A foreign file of that name is kept aside for teardown."""
        for folder in missing_directories(os.path.dirname(path)):
            self.add("directories", folder)
            make_directory(folder, 0o755)
        known = self.data["files"].get(path)
        backup = known["backup"] if known else self._keep_aside(path)
        digest = hashlib.sha256(content).hexdigest()
        self.data["files"][path] = {"sha256": digest, "backup": backup, "scope": scope}
        self.save()
        write_atomically(path, content, mode, owner, group)

    def remove(self, path):
        """Remove a file of ours, bringing back what lay there before."""
        known = self.data["files"][path]
        if known["backup"]:
            kept = os.path.join(self.state_dir, "backup", known["backup"])
            if os.path.exists(kept):
                shutil.move(kept, path)
        elif os.path.lexists(path):
            os.unlink(path)
        del self.data["files"][path]
        self.save()

    def remove_empty_directories(self):
        """Remove the directories that we made, innermost first; one that somebody else uses by now stays."""
        for folder in sorted(self.data["directories"], key=len, reverse=True):
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                pass
            except OSError:
                continue
            self.data["directories"].remove(folder)
        self.save()

    def _keep_aside(self, path):
        if not os.path.lexists(path):
            return None
        folder = os.path.join(self.state_dir, "backup")
        make_directory(folder, 0o700)
        name = hashlib.sha256(path.encode()).hexdigest()[:16]
        shutil.copy2(path, os.path.join(folder, name), follow_symlinks=False)
        status = os.lstat(path)
        os.chown(os.path.join(folder, name), status.st_uid, status.st_gid, follow_symlinks=False)
        return name


def missing_directories(folder):
    """Folders that must be made for `folder` to exist, outermost first."""
    found = []
    while folder and not os.path.isdir(folder):
        found.insert(0, folder)
        folder = os.path.dirname(folder)
    return found


def make_directory(path, mode):
    """Make one folder with exactly that mode; an existing one is left as it is."""
    if not os.path.isdir(path):
        os.makedirs(path)
        os.chmod(path, mode)


def write_atomically(path, content, mode, owner=-1, group=-1):
    """Write `content` (bytes) beside `path` and rename it into place."""
    handle, partial = tempfile.mkstemp(prefix=".vllm-node-", dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            os.fchmod(stream.fileno(), mode)
            os.fchown(stream.fileno(), owner, group)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
