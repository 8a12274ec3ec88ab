"""What has been verified of a tree: a file beside it, by which the next run sees that nothing has changed since."""

from __future__ import annotations

import json
import os

from ansible.module_utils.node_manifest import write_atomically

SCHEMA = 1


class Mark:
    """`files`: path → [size, mtime_ns, inode, SHA-256] of each file as it was when it was read to its end.

    `manifest` is the fingerprint of the manifest that the whole tree was found to agree with, or None.
    """

    def __init__(self, path, manifest=None, files=None):
        self.path, self.manifest, self.files = path, manifest, files or {}

    @classmethod
    def load(cls, path):
        """Read a mark. One that is missing or damaged vouches for nothing, and its tree is read again."""
        try:
            with open(path, encoding="utf-8") as handle:
                data = json.load(handle)
            if data["schema"] == SCHEMA and all(len(entry) == 4 for entry in data["files"].values()):
                return cls(path, data["manifest"], data["files"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        return cls(path)

    def vouches(self, name, status, sha256):
        """Whether a file, as `os.stat` tells it now, was read before and had this SHA-256."""
        return self.files.get(name) == [*_identity(status), sha256]

    def note(self, name, status, sha256):
        """A file was read to its end; `status` is that of the file that was read."""
        self.files[name] = [*_identity(status), sha256]

    def save(self):
        """Write it in one step."""
        os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
        data = {"schema": SCHEMA, "manifest": self.manifest, "files": self.files}
        write_atomically(self.path, json.dumps(data, sort_keys=True).encode(), 0o644)


def _identity(status):
    return [status.st_size, status.st_mtime_ns, status.st_ino]
