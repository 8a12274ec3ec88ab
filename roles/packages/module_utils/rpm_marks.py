"""What the toolkit leaves in a node's RPM database and beside it: packages, keys, version locks, a repository's cache.

All of it stands in the manifest below C(rpm), noted before it is made:

    packages: {name-version-release.arch: what it replaced, or None}
    keys: {name of the key's entry in the RPM database: SHA-256 of the text it came from}; importing: names of the
        entries before an import that was begun and not noted as done
    locks: lines of ours in the version lock plugin's list; locks_made: whether that list is a file of ours
    changes: {"area:item": state}, how a snapshot of the node shows what the packages brought
"""

from __future__ import annotations

import configparser
import fnmatch
import glob
import hashlib
import os
import shutil
import subprocess
import tempfile

from ansible.module_utils.node_manifest import make_directory, read_text, write_atomically

PLUGIN_CONFIG = "/etc/dnf/plugins/versionlock.conf"
CACHE = "/var/cache/dnf/vllm-node-*"
_LIMIT_S = 300


class RpmError(Exception):
    """rpm did not do what it was asked for; the text is its own."""


def marks(manifest):
    """The part of the manifest that this module keeps."""
    known = manifest.data.setdefault("rpm", {})
    for name, kind in (("packages", dict), ("keys", dict), ("locks", list), ("changes", dict)):
        known.setdefault(name, kind())
    return known


def rpm(*words):
    """Output of an rpm command. Raises RpmError."""
    try:
        done = subprocess.run(("rpm", *words), capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RpmError("rpm %s: %s" % (words[0], error)) from error
    if done.returncode != 0:
        raise RpmError((done.stderr or done.stdout).strip() or "rpm %s: exit code %d" % (words[0], done.returncode))
    return done.stdout


def installed():
    """(name, epoch, version, release) of each installed package. Raises RpmError."""
    lines = rpm("-qa", "--qf", "%{NAME}\\t%{EPOCHNUM}\\t%{VERSION}\\t%{RELEASE}\\n").splitlines()
    return {tuple(line.split("\t")) for line in lines}


def full_names():
    """name-version-release.arch of each installed package. Raises RpmError."""
    return set(rpm("-qa", "--qf", "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}\\n").split())


def key_names():
    """Entries of the RPM database that are keys."""
    try:
        return set(rpm("-q", "gpg-pubkey").split())
    except RpmError as error:
        if "not installed" in str(error):
            return set()
        raise


def trust(manifest, text):
    """Have rpm trust the keys in `text`, and no longer those of an earlier text. Returns whether anything changed.

    Raises RpmError.
    """
    known, digest = marks(manifest), hashlib.sha256(text.encode()).hexdigest()
    changed = forget_keys(manifest, but=digest)
    if digest in known["keys"].values():
        return bool(changed)
    before = key_names()
    known["importing"] = sorted(before)
    manifest.save()
    with tempfile.NamedTemporaryFile("w", prefix="vllm-node-", suffix=".asc") as file:
        file.write(text)
        file.flush()
        rpm("--import", file.name)
    # A key that was there already is not ours: nobody may take it away.
    known["keys"].update(dict.fromkeys(key_names() - before, digest))
    del known["importing"]
    manifest.save()
    return True


def forget_keys(manifest, but=None):
    """Take keys of ours out of the RPM database, except those of the text with the digest `but`. Returns their names.

    Raises RpmError.
    """
    known, gone = marks(manifest), []
    if not known["keys"] and "importing" not in known:
        return gone
    there = key_names()
    # A run that ended between the import and the note has left keys that only the difference tells.
    known["keys"].update(dict.fromkeys(there - {*known.pop("importing", there), *known["keys"]}, ""))
    for name, digest in list(known["keys"].items()):
        if digest == but:
            continue
        if name in there:
            rpm("--erase", name)
            gone.append(name)
        del known["keys"][name]
        manifest.save()
    return gone


def lock_list():
    """Path of the version lock plugin's list, or None where the plugin is not there or switched off."""
    config = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        config.read(PLUGIN_CONFIG, encoding="utf-8")
        if config.get("main", "enabled", fallback="1").strip().lower() in ("0", "no", "false", "off"):
            return None
        return config.get("main", "locklist", fallback=None)
    except configparser.Error:
        return None


def wanted_locks(patterns):
    """Lines that lock what is installed of `patterns` in its version, in the plugin's own words. Raises RpmError."""
    return sorted(
        "%s-%s:%s-%s.*" % package
        for package in installed()
        if any(fnmatch.fnmatchcase(package[0], pattern) for pattern in patterns)
    )


def set_locks(manifest, lines):
    """Have exactly these lines of ours in the list, and leave everybody else's as they are. Returns whether it changed.

    Raises RpmError when there is no plugin to heed them.
    """
    known, path = marks(manifest), lock_list()
    if path is None:
        if lines:
            raise RpmError(
                "dnf has no version lock plugin (%s), so nothing keeps %s in its version: install the package "
                "python3-dnf-plugin-versionlock, or empty packages_versionlock" % (PLUGIN_CONFIG, ", ".join(lines))
            )
        # The plugin has gone, and its list with it, or with nobody to read it.
        known["locks"] = []
        return False
    text = read_text(path)
    before = (text or "").splitlines()
    mine = [line for line in known["locks"] if line in lines]
    theirs = [line for line in before if line not in known["locks"]]
    after = theirs + mine + [line for line in lines if line not in mine and line not in theirs]
    known["locks"] = [line for line in lines if line not in theirs]
    known["locks_made"] = known.get("locks_made", text is None)
    manifest.save()
    if sorted(after) == sorted(before):
        return False
    if not after and known["locks_made"]:
        os.unlink(path)
        return True
    mode = os.stat(path).st_mode & 0o7777 if text is not None else 0o644
    make_directory(os.path.dirname(path), 0o755)
    write_atomically(path, "".join(line + "\n" for line in after).encode(), mode)
    return True


def forget_cache():
    """Remove what dnf keeps of our repository."""
    for path in glob.glob(CACHE):
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)

