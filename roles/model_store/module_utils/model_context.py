"""SELinux: trees of models carry a type that containers may read, by a rule for the whole store and never by :Z or :z.

Relabelling at each start takes as long as walking the tree, and a private label (:Z) locks out the second container.
"""

from __future__ import annotations

import os
import re
import subprocess

TYPE = "container_file_t"
_READABLE = (TYPE, "container_ro_file_t", "svirt_sandbox_file_t")
# Labels of file systems that have none of their own: preflight speaks about those.
_MOUNTED = ("nfs_t", "cifs_t", "fusefs_t")
_ENFORCE = "/sys/fs/selinux/enforce"


def is_enforcing():
    """Whether the node's SELinux is on and means it."""
    try:
        with open(_ENFORCE, encoding="ascii") as handle:
            return handle.read().strip() == "1"
    except OSError:
        return False


def is_closed(path):
    """Whether containers may not read what carries the label of `path`, in so far as that can be told."""
    if not is_enforcing():
        return False
    try:
        label = os.getxattr(path, "security.selinux").decode().rstrip("\0")
    except OSError:
        return False
    return _type(label) not in (*_READABLE, *_MOUNTED)


def set_for(store, manifest):
    """Make the rule for everything below `store`, unless there is one already; True when one was made.

    Raises ValueError when that is not possible.
    """
    if not is_enforcing() or _type(_run("matchpathcon", "-n", os.path.join(store, "model"))[1]) in _READABLE:
        return False
    pattern = re.escape(store) + "(/.*)?"
    manifest.add("fcontexts", pattern)
    code, text = _run("semanage", "fcontext", "--add", "--type", TYPE, pattern)
    if code != 0:
        raise ValueError(
            "SELinux is enforcing, and semanage cannot give %s the type %s: %s (semanage is in"
            " policycoreutils-python-utils)" % (store, TYPE, text or "exit code %d" % code)
        )
    return True


def restore(path, recursive=True):
    """Give a folder, and what is in it, the labels that the rules say. Raises ValueError when that is not possible."""
    if is_enforcing():
        code, text = _run("restorecon", *(["-R"] if recursive else []), path)
        if code != 0:
            raise ValueError("restorecon %s: %s" % (path, text or "exit code %d" % code))


def _type(label):
    return (label.split(":") + [""] * 3)[2]


def _run(*argv):
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=300
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, done.stdout.strip()
