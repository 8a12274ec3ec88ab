"""Which files of a folder belong to the model in it, and what a download has left beside them."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

_UNFINISHED = (".incomplete", ".part", ".aria2", ".crdownload")
_FOLDERS = {
    ".cache": "notes of a download",
    ".locks": "locks of a download",
    ".git": "history of a clone",
    "__pycache__": "compiled code, which Python makes anew",
}


class Tree(NamedTuple):
    """Files by their paths below the folder, with / between the parts, each as `os.stat` tells it.

    `left_out` are paths that do not belong to the model, with the reason; `broken` are links that lead nowhere.
    """

    files: dict[str, os.stat_result]
    left_out: dict[str, str]
    broken: list[str]


def walk(root: str) -> Tree:
    """All files below `root`; links to files count as the files. Raises OSError for a folder that cannot be read."""
    found = Tree({}, {}, [])
    _walk(found, root, "")
    return found


def _walk(found: Tree, root: str, prefix: str) -> None:
    with os.scandir(os.path.join(root, prefix)) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        path, place = prefix + name, os.path.join(root, prefix, name)
        try:
            status = os.stat(place)
        except FileNotFoundError:
            found.broken.append(path)
            continue
        if stat.S_ISDIR(status.st_mode):
            if name in _FOLDERS:
                found.left_out[path + "/"] = _FOLDERS[name]
            elif os.path.islink(place):
                # It may lead back to where we come from.
                found.left_out[path + "/"] = "a link to a folder"
            else:
                _walk(found, root, path + "/")
        elif not stat.S_ISREG(status.st_mode):
            found.left_out[path] = "no plain file"
        elif name.endswith(".lock"):
            found.left_out[path] = "a lock of a download"
        elif name.endswith(_UNFINISHED):
            found.left_out[path] = "a download that has not ended"
        else:
            found.files[path] = status


def unfinished(root: str) -> list[str]:
    """Downloads below `root` that have not ended, also those that wait in the cache folder of the hub's client.

    A client renames such a file once it is whole, so one that is there speaks of a file that is not.
    """
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(each for each in folders if each != ".git")
        found += [
            os.path.relpath(os.path.join(folder, name), root) for name in sorted(names) if name.endswith(_UNFINISHED)
        ]
    return found
