"""How a program of ours gets to a node: by the connection that Ansible has to it, with the rights that Ansible gets."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from vllm_node.transfer import Reach


class ReachError(Exception):
    """The node cannot be reached that way. The text says what Ansible uses instead."""


def reach(connection: Any) -> Reach:
    """What Ansible's connection plugin knows, as words of a command line. Raises ReachError.

    Ask once the connection stands: a program that joins it needs no password of its own.
    """
    elevate = _elevate(connection)
    if connection.transport == "local":
        return Reach(elevate=elevate)
    if connection.transport != "ssh":
        raise ReachError(f"files are brought with rsync over ssh, and the connection is {connection.transport}")
    words = [connection.get_option("ssh_executable")]
    for name in ("ssh_args", "ssh_common_args", "ssh_extra_args"):
        words += shlex.split(connection.get_option(name) or "")
    if connection.get_option("host_key_checking") is False:
        words += ["-o", "StrictHostKeyChecking=no"]
    for option, flag in (("port", "-p"), ("remote_user", "-l")):
        if value := connection.get_option(option):
            words += [flag, str(value)]
    if key := connection.get_option("private_key_file"):
        words += ["-i", str(Path(key).expanduser())]
    # A connection that stands already needs no password, and one that hangs shall not hang for ever.
    if control := getattr(connection, "control_path", None):
        words += ["-o", f"ControlPath={control % {'directory': connection.control_path_dir}}"]
    words += ["-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=8"]
    return Reach(tuple(words), str(connection.get_option("host")), elevate)


def _elevate(connection: Any) -> tuple[str, ...]:
    become = connection.become
    if become is None:
        return ()
    user = become.get_option("become_user") or "root"
    if user == (_user_there(connection) or ""):
        return ()
    if become.name not in ("sudo", "ansible.builtin.sudo"):
        raise ReachError(f"rsync gets its rights on the node by sudo, and become_method is {become.name}")
    return ("sudo", "-n", "-u", str(user))


def _user_there(connection: Any) -> str:
    if connection.transport == "local":
        return Path.home().owner()
    return str(connection.get_option("remote_user") or "")
