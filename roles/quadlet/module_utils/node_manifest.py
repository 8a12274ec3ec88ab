"""The manifest of a node: everything that the toolkit created there, so that everything can be taken away.

An entry is written before the thing is made. A run that dies half way has therefore never made something
that the manifest does not name; an entry without its thing does no harm.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import tempfile

SCHEMA = 1
LISTS = ("directories", "secrets", "volumes", "units")
# What a manifest of an earlier version lacks, because nothing of the kind was made then.
LATER = {"models": dict, "fcontexts": list}
DAMAGED = (
    "%s is damaged (%s): without it nobody knows what vllm-node made on this node; bring it back from a backup, or"
    " compare the node with as-found.json beside it by hand and remove both"
)


class Manifest:
    """`STATE_DIR/manifest.json`, mode 0600.

    files: {path: {sha256, scope, backup: file name below STATE_DIR/backup | None, secret: true if it is one}}; images:
    {reference: name};
    models: {tree: {mark: path, parts: [paths that are there while it is brought]}}; fcontexts: patterns of SELinux file
    contexts; directories, secrets, volumes, units: lists of names. `salt` keys the hashes of secrets.
    """

    def __init__(self, state_dir, data):
        self.state_dir = state_dir
        self.data = data

    @classmethod
    def load(cls, state_dir):
        """Read the manifest; an empty one when the node has none. A damaged one is a ValueError, never ignored."""
        path = os.path.join(state_dir, "manifest.json")
        try:
            with open(path, encoding="utf-8") as handle:
                data = json.load(handle)
        except FileNotFoundError:
            data = {"schema": SCHEMA, "salt": secrets.token_hex(16), "files": {}, "images": {}}
            data.update({name: [] for name in LISTS})
        except ValueError as error:
            raise ValueError(DAMAGED % (path, error)) from error
        if not isinstance(data, dict):
            raise ValueError(DAMAGED % (path, "it holds no object"))
        if data.get("schema") != SCHEMA:
            raise ValueError(
                "%s has schema %r, this toolkit knows %d: use the version that wrote it"
                % (path, data.get("schema"), SCHEMA)
            )
        lacking = [name for name in ("salt", "files", "images", *LISTS) if name not in data]
        if lacking:
            raise ValueError(DAMAGED % (path, "it lacks " + ", ".join(lacking)))
        for name, kind in LATER.items():
            data.setdefault(name, kind())
        return cls(state_dir, data)

    def save(self):
        """Replace the file in one step; it survives a power cut either old or new."""
        make_directory(self.state_dir, 0o700)
        write_atomically(
            os.path.join(self.state_dir, "manifest.json"), json.dumps(self.data, indent=1).encode(), 0o600
        )

    def add(self, kind, name):
        """Note that `name` is about to be made; `kind` is one of LISTS, or a list of LATER."""
        if name not in self.data[kind]:
            self.data[kind].append(name)
            self.save()

    def add_image(self, reference, name):
        """Note that the image `reference` is about to be pulled."""
        if reference not in self.data["images"]:
            self.data["images"][reference] = name
            self.save()

    def add_model(self, tree, mark, parts):
        """Note that a model is about to be brought to the folder `tree`."""
        entry = {"mark": mark, "parts": list(parts)}
        if self.data["models"].get(tree) != entry:
            self.data["models"][tree] = entry
            self.save()

    def make_directories(self, folder):
        """Make a folder and those above it, as far as they are missing; they are ours from now on."""
        for missing in missing_directories(folder):
            self.add("directories", missing)
            make_directory(missing, 0o755)

    def install(self, path, content, mode, owner, group, scope, secret=False):
        """Write a file that is ours from now on. A foreign file of that name is kept aside for teardown."""
        self.make_directories(os.path.dirname(path))
        known = self.data["files"].get(path)
        backup = known["backup"] if known else self._keep_aside(path)
        digest = hashlib.sha256(content).hexdigest()
        self.data["files"][path] = {"sha256": digest, "backup": backup, "scope": scope}
        if secret:
            self.data["files"][path]["secret"] = True
        self.save()
        write_atomically(path, content, mode, owner, group)

    def remove(self, path):
        """Remove a file of ours, bringing back what lay there before."""
        known = self.data["files"][path]
        if known["backup"]:
            kept = os.path.join(self.state_dir, "backup", known["backup"])
            # A link that leads nowhere from here exists as well; what is not there any more was brought back before.
            if os.path.lexists(kept):
                bring_back(kept, path)
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
        copy_exactly(path, os.path.join(folder, name))
        return name


def copy_exactly(source, target):
    """Copy a file or a link with its owner, mode, times and labels; `target` is replaced."""
    if os.path.lexists(target):
        os.unlink(target)
    shutil.copy2(source, target, follow_symlinks=False)
    status = os.lstat(source)
    os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
    if not os.path.islink(target):
        # Giving a file away takes its set-user-ID bit.
        os.chmod(target, status.st_mode & 0o7777)


def bring_back(kept, path):
    """Put `kept` where it lay, in one step. /var and /etc are often file systems of their own: then by a copy."""
    try:
        os.rename(kept, path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        partial = os.path.join(os.path.dirname(path), ".vllm-node-" + os.path.basename(kept))
        copy_exactly(kept, partial)
        os.rename(partial, path)
        os.unlink(kept)


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


def remove_path(path):
    """Remove a file, a link or a whole folder, if it is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def read_text(path):
    """Text of a file, None where there is none."""
    try:
        with open(path, encoding="utf-8") as handle:
            return handle.read()
    except FileNotFoundError:
        return None


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
