"""Rules of ours in the zones of firewalld, and the way back to the zones as they were found.

They stand in the manifest below C(firewall), noted before they are made:

    rules: [zone, C(runtime) or C(permanent), rich rule] of each rule of ours; those that the site had are not there
    zones: {zone: {path: text before the first rule of ours, or None where there was no such file}}

firewalld is never told to reload: that drops the port forwards of podman's own networks. What is made is therefore made
twice, in the rules that run and in those of the next start.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import xml.etree.ElementTree as ET

from ansible.module_utils.node_manifest import read_text, write_atomically

CONFIG = "/etc/firewalld/zones"
SHIPPED = "/usr/lib/firewalld/zones"
WHERE = ("runtime", "permanent")
_LIMIT_S = 60
_NOT_RUNNING, _NO_SUCH_ZONE = 252, 112


class FirewallError(Exception):
    """firewalld did not do what it was asked for; the text is its own."""


class StoppedError(FirewallError):
    """firewalld does not run."""


class NoZoneError(FirewallError):
    """firewalld has no zone of that name."""


def marks(manifest):
    """The part of the manifest that this module keeps."""
    known = manifest.data.setdefault("firewall", {})
    known.setdefault("rules", [])
    known.setdefault("zones", {})
    return known


def rich_rule(source, port):
    """The rule that lets a network (an `ipaddress` network) reach a TCP port, in firewalld's own words."""
    words = 'rule family="ipv%d" source address="%s" port port="%d" protocol="tcp" accept'
    return words % (source.version, source, port)


def present(zone, where):
    """Rich rules of a zone. Raises FirewallError; StoppedError when firewalld does not run."""
    return firewall_cmd(zone, where, "--list-rich-rules").splitlines()


def missing(rules):
    """Those of `rules` ([zone, where, rule]) that the node does not have. Raises FirewallError."""
    there = {(zone, where): present(zone, where) for zone, where in sorted({(rule[0], rule[1]) for rule in rules})}
    return [rule for rule in rules if rule[2] not in there[rule[0], rule[1]]]


def add(manifest, rules):
    """Make rules that are not there yet; they are ours from now on. Raises FirewallError."""
    known = marks(manifest)
    for zone in sorted({rule[0] for rule in rules}):
        # Both files: firewalld keeps the text before a change beside the one after it.
        paths = [os.path.join(CONFIG, zone + ending) for ending in (".xml", ".xml.old")]
        known["zones"].setdefault(zone, {path: read_text(path) for path in paths})
    known["rules"] += [list(rule) for rule in rules if list(rule) not in known["rules"]]
    manifest.save()
    for zone, where in sorted({(rule[0], rule[1]) for rule in rules}):
        firewall_cmd(zone, where, *("--add-rich-rule=" + rule[2] for rule in rules if rule[:2] == [zone, where]))


def take_back(manifest, rules):
    """Remove rules of ours, and bring back the files of a zone that has no more of them. Raises FirewallError."""
    known = marks(manifest)
    for zone, where in sorted({(rule[0], rule[1]) for rule in rules}):
        gone = [rule for rule in rules if rule[:2] == [zone, where]]
        words = ["--remove-rich-rule=" + rule[2] for rule in gone]
        try:
            firewall_cmd(zone, where, *words)
        except StoppedError:
            # What only ran has ended with it.
            if where == "permanent":
                _run("firewall-offline-cmd", "--zone=" + zone, *words)
        except NoZoneError:
            # Somebody took the zone away, and our rules with it.
            pass
        known["rules"] = [rule for rule in known["rules"] if rule not in gone]
        manifest.save()
    for zone in [zone for zone in known["zones"] if all(rule[0] != zone for rule in known["rules"])]:
        restore(zone, known["zones"][zone])
        del known["zones"][zone]
        manifest.save()


def restore(zone, before):
    """Put the files of a zone back as they were, unless somebody else has changed the zone since."""
    path = os.path.join(CONFIG, zone + ".xml")
    was, now = before[path], read_text(path)
    if was is None:
        was = read_text(os.path.join(SHIPPED, zone + ".xml"))
    if now is None or was is None or content(now) != content(was):
        return
    for name, text in before.items():
        if text is None:
            if os.path.lexists(name):
                os.unlink(name)
        elif read_text(name) != text:
            status = os.stat(path)
            write_atomically(name, text.encode(), status.st_mode & 0o7777, status.st_uid, status.st_gid)


def content(text):
    """What a zone's file says, whatever the order and the indentation in which it says it; None when it is no XML."""
    try:
        return _content(ET.fromstring(text))  # noqa: S314 - a file of root's
    except ET.ParseError:
        return None


def _content(element):
    children = sorted((_content(child) for child in element), key=repr)
    return element.tag, sorted(element.attrib.items()), (element.text or "").strip(), children


def firewall_cmd(zone, where, *words):
    """Output of firewall-cmd for a zone, of what runs or of what is kept. Raises FirewallError, StoppedError."""
    place = ["--permanent"] if where == "permanent" else []
    return _run("firewall-cmd", *place, "--zone=" + zone, *words)


def _run(*argv):
    if shutil.which(argv[0]) is None:
        raise StoppedError("%s is not installed" % argv[0])
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise FirewallError("%s did not answer within %d s" % (argv[0], _LIMIT_S)) from error
    if done.returncode == _NOT_RUNNING:
        raise StoppedError("firewalld is not running")
    if done.returncode != 0:
        kind = NoZoneError if done.returncode == _NO_SUCH_ZONE else FirewallError
        raise kind("%s: %s" % (argv[0], (done.stderr or done.stdout).strip()))
    return done.stdout
