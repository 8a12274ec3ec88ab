"""Writes what a run changes into the history of a node: before it is done, and after."""

from __future__ import annotations

import os
import time

from ansible.module_utils.generation_changes import changes, images, texts
from ansible.module_utils.node_generations import SCOPES, UNFINISHED, content_id, described, keyed, read_file


class Recorder:
    """Writes one run's changes into the history: before they are made, and after."""

    def __init__(self, store, manifest, run):
        self.store, self.manifest, self.run = store, manifest, run
        self.newest = store.newest()
        # A run installs in several calls. When it then goes back, that is a generation of its own.
        same = self.newest and (self.newest.get("run"), self.newest.get("back_to")) == (run["id"], run.get("back_to"))
        self.ours = self.newest if same and run["id"] else None

    def begin(self, scopes, wanted, secret_paths, secrets, units):
        """Note what is about to be installed.

        wanted: {path: {content, mode, owner, group, scope}}, which takes the place of all that is in `scopes`; secrets:
        {name: value}; units: what was staged of units.
        """
        known = self.newest or {}
        hidden = beside(set(secret_paths) | self.secret_paths(), {*wanted, *self.manifest.data["files"]})
        there = self._there(hidden)
        files = {path: entry for path, entry in there.items() if entry["scope"] not in scopes}
        files.update({path: entry for path, entry in wanted.items() if path not in hidden})
        if not self.newest and there:
            self.newest = self._found(there, hidden, units)
        before = self._before()
        told = {
            "secrets": {**(known.get("secrets") or {}), **self._hashes(secrets)},
            "secret_files": self._secret_files(hidden, wanted),
            "images": images(files),
            "units": [unit for unit in units if has_unit(unit, files)],
            "outcome": "installing",
            "installed": False,
        }
        told["changes"] = changes(before, {**told, "files": files}, self._texts(before), texts(files))
        if self.ours:
            self.ours = self.store.change(self.ours["number"], files, **told)
        if not self.ours:
            self._close()
            self.ours = self.store.add(files, **self._head(), **told)
        return self.ours

    def installed(self, keep):
        """Note that everything is in its place; returns the images that no generation needs any more."""
        self.ours = self.store.change(self.ours["number"], outcome="applied", installed=True)
        return self.store.prune(max(keep, 2)) if keep else []

    def nothing_changed(self):
        """The files of a run that was interrupted while it installed may all be there by now."""
        newest = self.newest
        if not newest or newest["outcome"] not in UNFINISHED or newest.get("installed"):
            return
        there = {path: described(entry) for path, entry in self._there(self.secret_paths()).items()}
        if content_id(there) == newest["content"]:
            self.store.change(newest["number"], outcome="applied", installed=True)

    def _head(self):
        told = {key: self.run.get(key) for key in ("verb", "who", "toolkit", "back_to", "instead_of")}
        return {"run": self.run["id"], **told, "begun_at": time.time(), "ready_at": None, "reason": None}

    def _close(self):
        """What an earlier run left unfinished was interrupted."""
        if self.newest and self.newest["outcome"] in ("installing", "applied"):
            self.store.change(self.newest["number"], outcome="interrupted")

    def _before(self):
        """The generation before the one of this run."""
        end = self.ours["number"] if self.ours else float("inf")
        earlier = [one for one in self.store.all() if "files" in one and one["number"] < end]
        return earlier[-1] if earlier else None

    def _texts(self, generation):
        try:
            return texts(self.store.files(generation["number"])) if generation else {}
        except ValueError:
            return {}

    def _found(self, there, hidden, units):
        """What ran before generations were kept, so that the first change can be taken back as well."""
        told = {
            "secrets": {},
            "secret_files": self._secret_files(hidden, {}),
            "images": images(there),
            "units": [unit for unit in units if has_unit(unit, there)],
            "changes": ["what ran before a history was kept"],
        }
        head = {**dict.fromkeys(self._head()), "run": "", "begun_at": time.time()}
        return self.store.add(there, outcome="found", installed=True, **head, **told)

    def secret_paths(self):
        """Files of ours that are secret. Earlier versions did not mark them: what not everybody may read is one."""
        known = self.newest or {}
        found, plain = set(known.get("secret_files") or ()), known.get("files") or ()
        for path, entry in self.manifest.data["files"].items():
            there = read_file(path) if path not in plain else None
            if entry.get("secret") or (there and not there["mode"] & 0o004):
                found.add(path)
        return found

    def _there(self, hidden):
        """Files of ours as they lie on the node, but for secret ones."""
        found = {}
        for path, entry in self.manifest.data["files"].items():
            there = read_file(path) if path not in hidden and entry["scope"] in SCOPES else None
            if there:
                found[path] = {**there, "scope": entry["scope"]}
        return found

    def _hashes(self, secrets):
        return {name: keyed(self.manifest.data["salt"], value) for name, value in secrets.items()}

    def _secret_files(self, hidden, wanted):
        there = {path: wanted.get(path) or read_file(path) for path in hidden}
        return {path: keyed(self.manifest.data["salt"], one["content"]) for path, one in there.items() if one}


def beside(secret, paths):
    """Secret files, and those of `paths` in their folders: a certificate is of no use without its key."""
    folders = {os.path.dirname(path) for path in secret}
    return set(secret) | {path for path in paths if os.path.dirname(path) in folders}


def has_unit(unit, files):
    """Whether the file of a staged unit is among these."""
    base, _ = os.path.splitext(unit["unit"])
    names = {os.path.basename(path) for path in files}
    return unit["unit"] in names or base + ".container" in names
