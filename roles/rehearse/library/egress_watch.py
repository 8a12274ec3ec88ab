#!/usr/bin/python
"""Closes the way out of the toolkit's containers for a while, and tells who tried to take it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: egress_watch
short_description: Deny containers what is outside of the node, and write down each attempt
description:
  - With O(state=begin) it puts a table of its own into nftables, begins to answer questions for names in place of the
    site's name server, and restarts the containers' units. Each of them then reaches loopback, the node's own
    addresses, whoever asked it, and what is allowed; all else is refused at once and written down.
  - With O(state=end) it tells what was tried and takes everything away. The containers go on as they are.
  - It goes by itself after O(limit_s), so that a control host that dies leaves no node without a way out.
options:
  state: {type: str, required: true, choices: [begin, end], description: What to do.}
  program: {type: str, description: Text of C(name_watch.py). Needed for C(begin).}
  allowed: {type: list, elements: str, default: [], description: "Addresses, networks and names that may be reached."}
  state_dir: {type: path, required: true, description: Folder of the manifest.}
  limit_s: {type: int, default: 7200, description: When it goes by itself.}
author: [vllm-node maintainers]
"""

RETURN = r"""
units: {description: The units that are watched., type: list, returned: for C(begin)}
attempts:
  description: C(unit), C(name), C(address), C(protocol), C(port), C(packets) of each; null where it is not known.
  type: list
  returned: for C(end)
told: {description: The same as a line for people each., type: list, returned: for C(end)}
"""

import ipaddress
import json
import os
import shutil
import socket
import subprocess
import sys
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_manifest import Manifest

NAME = "vllm-node-rehearsal"
FOLDER = "/run/" + NAME
TABLE = "inet vllm_node_rehearsal"
DROP_INS = "/run/systemd/system"
DROP_IN = NAME + ".conf"
START_LIMIT_S = 20
# Level 2 is the unit, whatever its containers make below it.
CLEAN = """#!/bin/sh
nft delete table {table} 2>/dev/null
for unit in {units}; do
  rm -f {folder}/$unit.d/{name}
  rmdir {folder}/$unit.d 2>/dev/null
done
systemctl daemon-reload
"""
# A unit has a new group at each start, and a rule knows the group and not its name.
ATTACH = """#!/bin/sh
set -e
unit=$1 chain=$2 port=$3
nft -f - <<END
add rule {table} out socket cgroupv2 level 2 "system.slice/$unit" jump $chain
add rule {table} names socket cgroupv2 level 2 "system.slice/$unit" udp dport 53 redirect to :$port
add rule {table} names socket cgroupv2 level 2 "system.slice/$unit" tcp dport 53 redirect to :$port
END
"""


class WatchError(Exception):
    """The watch cannot begin, or cannot be ended; the text says why and what to do."""


def run(*argv, text=None):
    try:
        return subprocess.run(argv, input=text, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(argv, 127, "", str(error))


def good(what, *argv, text=None):
    done = run(*argv, text=text)
    if done.returncode != 0:
        raise WatchError("%s: %s" % (what, done.stderr.strip() or "exit code %d" % done.returncode))
    return done.stdout


def containers(state_dir):
    """Services of the toolkit's containers, as the manifest has them."""
    names = [os.path.basename(path) for path in Manifest.load(state_dir).data["files"]]
    return sorted(name[: -len(".container")] + ".service" for name in names if name.endswith(".container"))


def chain_of(unit):
    return "u_" + "".join(letter if letter.isalnum() else "_" for letter in unit)


def resolve(allowed):
    """(networks, {name: addresses}) of what is allowed; names are asked here, where the way is still open."""
    networks, names = [], {}
    for word in allowed:
        try:
            networks.append(ipaddress.ip_network(word, strict=False))
            continue
        except ValueError:
            pass
        try:
            found = {one[4][0].partition("%")[0] for one in socket.getaddrinfo(word, None, type=socket.SOCK_STREAM)}
        except (OSError, UnicodeError) as error:
            raise WatchError(
                "%s may be reached (rehearse_allowed), but the node does not find its address: %s" % (word, error)
            ) from error
        names[word] = sorted(found)
        networks += [ipaddress.ip_network(one) for one in names[word]]
    return networks, names


def rules(units, networks):
    """The table, with a chain and the sets of attempts for each unit."""
    lines = ["table %s {" % TABLE]
    for version in (4, 6):
        collapsed = ipaddress.collapse_addresses([one for one in networks if one.version == version])
        elements = ", ".join(map(str, collapsed))
        lines += [
            " set allowed%d { type ipv%d_addr; flags interval; %s }"
            % (version, version, "elements = { %s }" % elements if elements else "")
        ]
    for unit in units:
        chain = chain_of(unit)
        for version in (4, 6):
            lines += [
                " set %s_%d { type ipv%d_addr . inet_proto . inet_service; flags dynamic; size 65535; counter; }"
                % (chain, version, version),
                " set %s_other_%d { type ipv%d_addr . inet_proto; flags dynamic; size 65535; counter; }"
                % (chain, version, version),
            ]
        lines += [
            " chain %s {" % chain,
            "  oif lo accept",
            # An answer to whoever asked the unit is no attempt to leave.
            "  ct direction reply accept",
            "  ip daddr @allowed4 accept",
            "  ip6 daddr @allowed6 accept",
        ]
        for version, word in ((4, "ip"), (6, "ip6")):
            lines += [
                "  meta nfproto ipv%d meta l4proto { tcp, udp } update @%s_%d { %s daddr . meta l4proto . th dport }"
                % (version, chain, version, word),
                "  meta nfproto ipv%d meta l4proto != { tcp, udp } update @%s_other_%d { %s daddr . meta l4proto }"
                % (version, chain, version, word),
            ]
        # At once, as a network without a way out refuses; a program that waits for an answer would hide others.
        lines += ["  meta l4proto tcp reject with tcp reset", "  reject with icmpx admin-prohibited", " }"]
    lines += [
        " chain out {",
        "  type filter hook output priority 0; policy accept;",
        # Changes nothing: a kernel that cannot tell groups apart refuses it here, and not at the start of a unit.
        '  socket cgroupv2 level 1 "system.slice" counter',
        " }",
        " chain names { type nat hook output priority -100; policy accept; }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def write(name, text, mode=0o600):
    path = os.path.join(FOLDER, name)
    with open(path, "w", encoding="utf-8") as handle:
        handle.write(text)
    os.chmod(path, mode)
    return path


def begin(args):
    units = containers(args["state_dir"])
    if not units:
        raise WatchError("this node has no unit of the toolkit; next: vllm-node up")
    if shutil.which("nft") is None:
        raise WatchError("nft is not there, and the way out cannot be closed without it; next: install nftables")
    end()
    networks, names = resolve(args["allowed"])
    os.makedirs(FOLDER, mode=0o700)
    program = write("name_watch.py", args["program"])
    write("wanted.json", json.dumps({"units": units, "allowed": names}))
    values = {"table": TABLE, "folder": DROP_INS, "name": DROP_IN, "units": " ".join(units)}
    attach = write("attach", ATTACH.format(**values), 0o700)
    clean = write("clean", CLEAN.format(**values), 0o700)
    good(
        "the names cannot be watched",
        *("systemd-run", "--quiet", "--collect", "--unit=" + NAME, "--property=RuntimeMaxSec=%d" % args["limit_s"]),
        *("--property=ExecStopPost=" + clean, sys.executable, program, FOLDER),
    )
    ports = wait_for_ports()
    good("the way out cannot be closed", "nft", "-f", "-", text=rules(units, networks))
    for unit in units:
        folder = os.path.join(DROP_INS, unit + ".d")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, DROP_IN), "w", encoding="utf-8") as handle:
            handle.write("[Service]\nExecStartPre=%s %s %s %d\n" % (attach, unit, chain_of(unit), ports[unit]))
    good("systemd cannot be reloaded", "systemctl", "daemon-reload")
    good("the units cannot be restarted", "systemctl", "restart", "--no-block", *units)
    return units


def wait_for_ports():
    until = time.monotonic() + START_LIMIT_S
    while time.monotonic() < until:
        try:
            with open(os.path.join(FOLDER, "ports.json"), encoding="utf-8") as handle:
                return json.load(handle)
        except FileNotFoundError:
            time.sleep(0.1)
    raise WatchError("the watch over names does not start; see journalctl -u " + NAME)


def attempts():
    """What was tried, each once."""
    asked, names = questions()
    found = []
    listed = json.loads(good("the attempts cannot be read", "nft", "-j", "list", "table", *TABLE.split()))
    sets = {one["set"]["name"]: one["set"].get("elem", []) for one in listed["nftables"] if "set" in one}
    with open(os.path.join(FOLDER, "wanted.json"), encoding="utf-8") as handle:
        units = json.load(handle)["units"]
    for unit in units:
        for suffix in ("4", "6", "other_4", "other_6"):
            for element in sets.get("%s_%s" % (chain_of(unit), suffix), []):
                value, packets = element["elem"]["val"], element["elem"]["counter"]["packets"]
                address, protocol, port = [*value["concat"], None][:3]
                name = names.get(address)
                asked.discard((unit, name))
                found.append((unit, name, None if name else address, str(protocol), port, packets))
    found += [(unit, name, None, None, None, None) for unit, name in asked]
    keys = ("unit", "name", "address", "protocol", "port", "packets")
    return [dict(zip(keys, one)) for one in sorted(found, key=lambda each: tuple(map(str, each)))]


def questions():
    """({(unit, name)} of what was asked for and is not allowed, {address that was given: name})."""
    asked, names = set(), {}
    try:
        with open(os.path.join(FOLDER, "asked.jsonl"), encoding="utf-8") as handle:
            lines = [json.loads(line) for line in handle if line.endswith("\n")]
    except FileNotFoundError:
        return asked, names
    for line in lines:
        if not line["allowed"]:
            asked.add((line["unit"], line["name"]))
            names[line["given"]] = line["name"]
    return asked, names


def line_of(attempt):
    where = attempt["name"] or attempt["address"]
    if attempt["protocol"] is None:
        return "%s asked for the name %s" % (attempt["unit"], where)
    port = "" if attempt["port"] is None else ":%s" % attempt["port"]
    words = (attempt["unit"], where, port, attempt["protocol"], attempt["packets"])
    return "%s tried to reach %s%s (%s, packets: %d)" % words


def end():
    """Take everything away; what is not there is no error."""
    run("systemctl", "stop", NAME + ".service")
    clean = os.path.join(FOLDER, "clean")
    # The unit has run it at its end; a begin that failed half way had no unit yet.
    if os.path.exists(clean):
        run("sh", clean)
    if run("nft", "list", "table", *TABLE.split()).returncode == 0:
        raise WatchError("the table %s cannot be removed; next: nft delete table %s" % (TABLE, TABLE))
    shutil.rmtree(FOLDER, ignore_errors=True)


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "required": True, "choices": ["begin", "end"]},
            "program": {"type": "str"},
            "allowed": {"type": "list", "elements": "str", "default": []},
            "state_dir": {"type": "path", "required": True},
            "limit_s": {"type": "int", "default": 7200},
        },
        required_if=[("state", "begin", ("program",))],
    )
    args = module.params
    try:
        if args["state"] == "begin":
            try:
                module.exit_json(changed=True, units=begin(args))
            except (WatchError, OSError):
                end()
                raise
        if run("systemctl", "is-active", "--quiet", NAME + ".service").returncode != 0:
            end()
            raise WatchError(
                "no rehearsal is under way on this node; one ends by itself after rehearse_limit_s, which has to be "
                "longer than the starts of all units and the watch (rehearse_seconds)"
            )
        try:
            found = attempts()
        finally:
            end()
        module.exit_json(changed=True, attempts=found, told=[line_of(one) for one in found])
    except (WatchError, OSError, ValueError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
