#!/usr/bin/python3
"""Answers questions for names on loopback, and writes down who asked for what.

Started by the module egress_watch for the time of a rehearsal, as `name_watch.py FOLDER`. Each unit has a port of its
own, so that a question tells by its port who asked. A name that is allowed has its real addresses. Any other has an
address that nobody has (198.18.0.0/15 is kept for measurements), another one for each name: so what is tried with the
answer tells which name was meant.
"""

from __future__ import annotations

import ipaddress
import json
import os
import select
import socket
import struct
import sys

A, AAAA, IN = 1, 28, 1
NO_SUCH_NAME = 3
FIRST = int(ipaddress.ip_address("198.18.0.1"))
MOST_NAMES = 100_000
MOST_BYTES = 65_535
READ_LIMIT_S = 2


class QuestionError(Exception):
    """This is no question for a name."""


def question(data):
    """(name in lower case, type, where the question ends) of a message.

    Raises:
        QuestionError: it is none, or one that is cut off.
    """
    try:
        _, flags, count = struct.unpack_from("!HHH", data)
        if flags & 0x8000 or count != 1:
            raise QuestionError("no question")
        labels, at = [], 12
        while data[at]:
            length = data[at]
            if length > 63 or at + 1 + length >= len(data):
                raise QuestionError("a label is cut off")
            labels.append(data[at + 1 : at + 1 + length].decode("ascii", "backslashreplace"))
            at += 1 + length
        kind, _ = struct.unpack_from("!HH", data, at + 1)
    except (struct.error, IndexError) as error:
        raise QuestionError(str(error)) from error
    return ".".join(labels).lower(), kind, at + 5


def answer(data, end, addresses):
    """The message that answers a question; None says that there is no such name."""
    flags = 0x8180 | (NO_SUCH_NAME if addresses is None else 0)
    head = data[:2] + struct.pack("!HHHHH", flags, 1, len(addresses or ()), 0, 0)
    records = b""
    for address in addresses or ():
        kind = A if address.version == 4 else AAAA
        # 0xc00c: the name of the question; not to be remembered, as the rehearsal is soon over.
        records += struct.pack("!HHHIH", 0xC00C, kind, IN, 0, len(address.packed)) + address.packed
    return head + data[12:end] + records


class Names:
    """What is known of names. `allowed`: name → its addresses as words; `given`: name → the address it was given."""

    def __init__(self, allowed):
        self.allowed = {
            name.lower(): [ipaddress.ip_address(one) for one in addresses] for name, addresses in allowed.items()
        }
        self.given = {}

    def ask(self, name, kind):
        """Addresses of one kind, or None when there is no such name; and whether it is allowed."""
        if name in self.allowed:
            wanted = {A: 4, AAAA: 6}.get(kind)
            return [one for one in self.allowed[name] if one.version == wanted], True
        if name.endswith(".arpa"):
            return None, False
        if name not in self.given and len(self.given) < MOST_NAMES:
            self.given[name] = ipaddress.ip_address(FIRST + len(self.given))
        return [self.given[name]] if kind == A and name in self.given else [], False


class Watch:
    """Sockets of all units, and the log: a line of JSON for each question."""

    def __init__(self, folder, units, names):
        self.names = names
        self.log = open(os.path.join(folder, "asked.jsonl"), "a", encoding="utf-8", buffering=1)  # noqa: SIM115
        self.sockets = {}
        ports = {unit: self.open(unit) for unit in units}
        partial = os.path.join(folder, "ports.json.partial")
        with open(partial, "w", encoding="utf-8") as handle:
            json.dump(ports, handle)
        os.rename(partial, os.path.join(folder, "ports.json"))

    def open(self, unit):
        """The same port for both protocols and both families; returns it."""
        for _ in range(100):
            first = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            opened = [first]
            try:
                opened.append(self.one(socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1", port))
                if os.path.exists("/proc/net/if_inet6"):
                    both = (socket.SOCK_DGRAM, socket.SOCK_STREAM)
                    opened.extend(self.one(socket.AF_INET6, kind, "::1", port) for kind in both)
            except OSError:
                for one in opened:
                    one.close()
                continue
            self.sockets.update(dict.fromkeys(opened, unit))
            return port
        raise OSError("no port is free for both UDP and TCP")

    @staticmethod
    def one(family, kind, address, port):
        made = socket.socket(family, kind)
        try:
            made.bind((address, port))
            if kind == socket.SOCK_STREAM:
                made.listen(16)
        except OSError:
            made.close()
            raise
        return made

    def reply(self, unit, data):
        """The answer to a message, and its line in the log; None for what is no question."""
        try:
            name, kind, end = question(data)
        except QuestionError:
            return None
        addresses, allowed = self.names.ask(name, kind)
        given = None if allowed or name not in self.names.given else str(self.names.given[name])
        line = {"unit": unit, "name": name, "allowed": allowed, "given": given}
        self.log.write(json.dumps(line) + "\n")
        return answer(data, end, addresses)

    def serve(self):
        """Answer until the unit is stopped."""
        while True:
            for one in select.select(list(self.sockets), [], [])[0]:
                try:
                    self.turn(one)
                except OSError:
                    continue  # who asked has gone away

    def turn(self, one):
        if one.type == socket.SOCK_DGRAM:
            data, sender = one.recvfrom(MOST_BYTES)
            reply = self.reply(self.sockets[one], data)
            if reply:
                one.sendto(reply, sender)
            return
        connection, _ = one.accept()
        with connection:
            connection.settimeout(READ_LIMIT_S)
            length = int.from_bytes(whole(connection, 2), "big")
            reply = self.reply(self.sockets[one], whole(connection, length))
            if reply:
                connection.sendall(len(reply).to_bytes(2, "big") + reply)


def whole(connection, length):
    data = b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise OSError("the question was cut off")
        data += part
    return data


def main():
    folder = sys.argv[1]
    with open(os.path.join(folder, "wanted.json"), encoding="utf-8") as handle:
        wanted = json.load(handle)
    Watch(folder, wanted["units"], Names(wanted["allowed"])).serve()


if __name__ == "__main__":
    main()
