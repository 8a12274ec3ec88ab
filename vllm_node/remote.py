"""Reading a node over one ssh connection: commands, and a socket on the node brought here.

Nothing stays on the node: what is started there ends when our side hangs up, however that happens.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jinja2
import jinja2.sandbox

from vllm_node.runner import environment, find_inventory

CONNECT_TIMEOUT_S = 10
_READY = "vllm-node-ready"
# Longest path of a Unix socket, less what ssh appends to it while it binds.
_MAX_SOCKET_PATH = 104 - 18


class InventoryError(Exception):
    """ansible-inventory refused. The text is its own."""


class RemoteError(Exception):
    """A node could not be asked. `seen` is what it said, `next_step` what to do about it."""

    def __init__(self, seen: str, next_step: str) -> None:
        """Both as whole sentences for people."""
        super().__init__(seen)
        self.seen = seen
        self.next_step = next_step


@dataclass(frozen=True)
class Target:
    """How to reach one host of the inventory. None: ssh's own default."""

    host: str
    address: str
    port: int | None = None
    user: str | None = None
    key: str | None = None
    args: tuple[str, ...] = ()
    local: bool = False
    become: bool = False
    problem: str | None = None

    def by_hand(self) -> str:
        """The same connection as a command to try by hand."""
        return shlex.join(["ssh", *_where(self)])


class Connection(Protocol):
    """A node that answers."""

    def run(self, script: str, timeout_s: float) -> str:
        """Standard output of a shell script, whatever its exit code. Raises RemoteError if it cannot run."""

    def hold(self, script: str, timeout_s: float) -> contextlib.AbstractContextManager[None]:
        """Run a script that prints READY and waits for the end of its input; it ends with the context."""

    def bring(self, remote_socket: str) -> contextlib.AbstractContextManager[str]:
        """Local path of a Unix socket of the node."""


def read_inventory(
    inventory: Sequence[str], limit: str | None = None, vault_password_file: Path | None = None
) -> list[Target]:
    """The hosts of an inventory, in its order. Raises InventoryError, and RunError for a missing path."""
    command = ["ansible-inventory", "--list"]
    for one in inventory:
        command += ["-i", find_inventory(one)]
    command += ["--limit", limit] if limit else []
    command += ["--vault-password-file", str(vault_password_file)] if vault_password_file else []
    variables = {**os.environ, **environment()}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InventoryError((done.stderr or done.stdout).strip())
    return targets(json.loads(done.stdout), Path(find_inventory(inventory[0])))


def targets(document: Mapping[str, Any], inventory: Path) -> list[Target]:
    """Targets from the document of `ansible-inventory --list`."""
    hostvars: Mapping[str, Mapping[str, Any]] = document.get("_meta", {}).get("hostvars", {})
    # A host without variables has no entry under hostvars; groups name every host.
    names: dict[str, None] = {}
    for group in document.values():
        if isinstance(group, Mapping):
            names.update(dict.fromkeys(str(name) for name in group.get("hosts", [])))
    names.update(dict.fromkeys(map(str, hostvars)))
    folder = inventory if inventory.is_dir() else inventory.parent
    return [_target(name, hostvars.get(name, {}), folder) for name in names]


def _target(name: str, variables: Mapping[str, Any], folder: Path) -> Target:
    try:
        get = _Rendered(name, variables, folder)
        port = get("ansible_port")
        args: list[str] = []
        for variable in ("ansible_ssh_common_args", "ansible_ssh_extra_args"):
            args += shlex.split(get(variable) or "")
        key = get("ansible_ssh_private_key_file") or get("ansible_private_key_file")
        return Target(
            host=name,
            address=get("ansible_host") or name,
            port=int(port) if port else None,
            user=get("ansible_user"),
            key=str(Path(key).expanduser()) if key else None,
            args=tuple(args),
            local=get("ansible_connection") == "local",
            become=(get("ansible_become") or "").lower() in ("true", "yes", "1"),
        )
    except (jinja2.TemplateError, ValueError) as error:
        return Target(host=name, address=name, problem=str(error))


class _Rendered:
    """Variables of one host. ansible-inventory prints templates as they are; plain ones are rendered here."""

    def __init__(self, name: str, variables: Mapping[str, Any], folder: Path) -> None:
        self._variables = {**variables, "inventory_hostname": name, "inventory_dir": str(folder)}
        self._jinja = jinja2.sandbox.SandboxedEnvironment(undefined=jinja2.StrictUndefined)  # no HTML here
        self._jinja.globals["lookup"] = _lookup

    def __call__(self, key: str) -> str | None:
        value = self._variables.get(key)
        if isinstance(value, Mapping):
            raise ValueError(f"{key} is encrypted; status needs --vault-password-file")
        text = "" if value is None else str(value)
        for _ in range(5):  # a template may give a template
            if "{{" not in text:
                break
            try:
                text = self._jinja.from_string(text).render(self._variables)
            except jinja2.TemplateError as error:
                raise ValueError(
                    f"{key} is a template that only Ansible can fill ({error}): {text}"
                ) from error
        return text or None


def _lookup(plugin: str, name: str) -> str:
    if plugin not in ("env", "ansible.builtin.env"):
        raise jinja2.TemplateError(f"lookup {plugin} is not known here")
    return os.environ.get(name, "")


@contextlib.contextmanager
def connect(target: Target) -> Iterator[Connection]:
    """A connection to the target. Raises RemoteError when it does not answer."""
    if target.problem:
        raise RemoteError(target.problem, f"Write the value of {target.host} out in the inventory.")
    if target.local:
        yield LocalConnection(target)
        return
    with tempfile.TemporaryDirectory(prefix="vn-", dir=_short_tmp()) as folder:
        connection = SshConnection(target, Path(folder))
        with connection.opened():
            yield connection


def service_script(socket_path: str, idle_s: int = 30) -> str:
    """Script for `hold`: a podman service on this socket, for as long as our side is there and no longer.

    It ends and removes its socket when its input ends, which is what happens when our side is gone. The idle
    time is for the case that even this shell is killed.
    """
    path = shlex.quote(socket_path)
    return f"""
podman system service --time {idle_s} unix://{path} </dev/null >/dev/null 2>&1 &
pid=$!
trap 'kill $pid 2>/dev/null; wait $pid 2>/dev/null; rm -f {path}' EXIT
trap 'exit 1' HUP INT TERM
tries=0
while [ ! -S {path} ] && kill -0 $pid 2>/dev/null && [ $tries -lt 100 ]; do
    sleep 0.1; tries=$((tries+1))
done
[ -S {path} ] || {{ echo "podman did not open its socket {path}"; exit 1; }}
[ -n "${{SUDO_UID:-}}" ] && chown "$SUDO_UID" {path}
echo {_READY}
cat >/dev/null
"""


def service_socket() -> str:
    """Path for a podman service's socket on a node, new for each call."""
    return f"/run/vllm-node-status-{secrets.token_hex(4)}.sock"


class LocalConnection:
    """The control host itself, for an inventory with `ansible_connection: local`."""

    def __init__(self, target: Target) -> None:
        """No connection is needed."""
        self._target = target

    def run(self, script: str, timeout_s: float) -> str:
        """See Connection."""
        return _run(_shell(self._target, script), timeout_s, self._target)

    def hold(self, script: str, timeout_s: float) -> contextlib.AbstractContextManager[None]:
        """See Connection."""
        return _held(_shell(self._target, script), timeout_s, self._target)

    @contextlib.contextmanager
    def bring(self, remote_socket: str) -> Iterator[str]:
        """The socket is here already."""
        yield remote_socket


class SshConnection:
    """One ssh control connection; every command and the socket go through it."""

    def __init__(self, target: Target, folder: Path) -> None:
        """`folder` is for the control socket and for sockets brought here; its path must be short."""
        self._target = target
        self._folder = folder
        self._control = folder / "c"

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """The connection stands inside this context."""
        # The first session stays open as long as its input: should we die, ssh ends by itself.
        options = ["-M", "-o", "ControlPersist=no"]
        wait = f"echo {_READY}; exec cat >/dev/null"
        command = self._ssh(*options, remote=f"sh -c {shlex.quote(wait)}")
        with _held(command, CONNECT_TIMEOUT_S + 5, self._target):
            yield

    def run(self, script: str, timeout_s: float) -> str:
        """See Connection."""
        return _run(self._ssh(remote=shlex.join(_shell(self._target, script))), timeout_s, self._target)

    def hold(self, script: str, timeout_s: float) -> contextlib.AbstractContextManager[None]:
        """See Connection."""
        return _held(self._ssh(remote=shlex.join(_shell(self._target, script))), timeout_s, self._target)

    @contextlib.contextmanager
    def bring(self, remote_socket: str) -> Iterator[str]:
        """See Connection."""
        local = str(self._folder / "p")
        forward = ["-L", f"{local}:{remote_socket}"]
        done = subprocess.run(
            self._ssh("-O", "forward", *forward), capture_output=True, text=True, check=False, timeout=10
        )
        if done.returncode != 0:
            raise RemoteError(
                f"sshd does not forward a Unix socket: {(done.stderr or done.stdout).strip()}",
                "Allow it on the node (sshd_config: AllowStreamLocalForwarding yes, DisableForwarding no).",
            )
        try:
            yield local
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    self._ssh("-O", "cancel", *forward), capture_output=True, check=False, timeout=5
                )

    def _ssh(self, *options: str, remote: str | None = None) -> list[str]:
        fixed = [
            "-S",
            str(self._control),
            "-o",
            "BatchMode=yes",
            "-o",
            f"ConnectTimeout={CONNECT_TIMEOUT_S}",
            "-o",
            "ServerAliveInterval=5",
            "-o",
            "ServerAliveCountMax=3",
            "-T",
        ]
        return ["ssh", *fixed, *options, *_where(self._target), *([remote] if remote else [])]


def _where(target: Target) -> list[str]:
    """ssh's arguments that say which node, and how it is reached."""
    words = [*target.args]
    words += ["-p", str(target.port)] if target.port else []
    words += ["-i", target.key] if target.key else []
    words += ["-l", target.user] if target.user else []
    return [*words, target.address]


def _shell(target: Target, script: str) -> list[str]:
    sudo = ["sudo", "-n"] if target.become and target.user != "root" else []
    return [*sudo, "sh", "-c", script]


def _run(command: Sequence[str], timeout_s: float, target: Target) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except subprocess.TimeoutExpired as error:
        raise RemoteError(
            f"The node did not answer within {timeout_s:.0f} s.",
            f"Look whether it hangs: {target.by_hand()} uptime",
        ) from error
    if done.returncode == 255 and not done.stdout:
        raise _refused(done.stderr, target)
    if done.returncode != 0 and "sudo:" in done.stderr:
        raise RemoteError(
            f"sudo refused: {done.stderr.strip()}",
            "Let the inventory's ansible_user be root, or let it use sudo without a password.",
        )
    return done.stdout


@contextlib.contextmanager
def _held(command: Sequence[str], timeout_s: float, target: Target) -> Iterator[None]:
    with tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, bufsize=0
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            said = _wait_for_ready(process.stdout.fileno(), timeout_s)
            if said is not None:
                complaints.seek(0)
                raise _refused(f"{complaints.read()}{said}", target)
            yield
        finally:
            process.stdin.close()  # the far end sees the end of its input, and tidies up
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def _wait_for_ready(descriptor: int, timeout_s: float) -> str | None:
    """None once the far end is ready, else what it said instead."""
    deadline = time.monotonic() + timeout_s
    said = b""
    while (left := deadline - time.monotonic()) > 0:
        readable, _, _ = select.select([descriptor], [], [], left)
        chunk = os.read(descriptor, 4096) if readable else b""
        if not chunk:
            break
        said += chunk
        if _READY.encode() in said.split():
            return None
    text = said.decode(errors="replace")
    return text if left > 0 else f"{text}no answer within {timeout_s:.0f} s"


def _refused(text: str, target: Target) -> RemoteError:
    seen = text.strip() or "ssh ended without a word"
    if "Host key verification failed" in text:
        step = f"Connect once by hand and compare the key: {target.by_hand()}"
    elif "Permission denied" in text:
        step = f"Give a user and key that the node accepts (ansible_ssh_private_key_file): {target.by_hand()}"
    else:
        step = f"Look whether the node is up and its address is right: {target.by_hand()}"
    return RemoteError(seen, step)


def _short_tmp() -> str | None:
    """Folder for sockets: the usual one, unless its path is too long for them."""
    usual = tempfile.gettempdir()
    # A private folder is made inside it, so that nobody can lay something in the way.
    return usual if len(f"{usual}/vn-12345678/c") <= _MAX_SOCKET_PATH else "/tmp"  # noqa: S108
