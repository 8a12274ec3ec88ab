"""The lab image's nginx with the role's configuration, on this machine: no node and no container is needed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from vllm_node.gateway import keys, plan
from vllm_node.lab import images, pki, roots
from vllm_node.lab.cache import entry, recipe_hash
from vllm_node.paths import project_root

NAME = "gateway.example"
ROLE = project_root() / "roles/gateway"
USER = 101
# A view of the image's root as the container has it: read-only, the configuration where the unit mounts it, room in /tmp.
_VIEW = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && cd "$1"
mount -t tmpfs -o mode=1777 tmpfs tmp && mount -t proc proc proc && mount --rbind /dev dev
mount --bind "$2" etc/gateway
shift 2
exec chroot --userspec=101:101 . "$@"
"""
# Ends it with its standard input: with the test, however that ends.
_WATCH = """exec 3<&0
(cat <&3 >/dev/null; kill "$$") >/dev/null 2>&1 &
exec 3<&-
"""


def root() -> Path:
    """The root of the lab's image, unpacked; skips the test where that cannot be, or cannot be entered."""
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        pytest.skip("the gateway's nginx is entered as root, from a root that mmdebstrap makes")
    recipe = next(recipe for recipe in images.RECIPES if recipe.name == "gateway")

    def build(folder: Path) -> None:
        roots.bootstrap(recipe.suite, recipe.packages, folder / "root", roots.options(recipe.suite))
        (folder / "root/etc/gateway").mkdir()

    return entry("gateway-root", recipe_hash(recipe.key, 1), build) / "root"


def variables(**own: Any) -> dict[str, Any]:
    """The role's variables, with those of a test in the place of its defaults."""
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    internal = yaml.safe_load((ROLE / "vars/main.yml").read_text())
    return {**defaults, "_gateway_errors": internal["_gateway_errors"], **own}


def configuration(values: Mapping[str, Any]) -> dict[str, str]:
    """Files of `/etc/gateway` in the container, but for the certificate: what the role stages for these variables."""
    loader = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
    loader.filters["gateway_plan"] = plan.plan
    return {
        "nginx.conf": loader.from_string((ROLE / "templates/nginx.conf.j2").read_text()).render(values),
        "routes.json": plan.routes(values["vllm_instances"]),
        "secrets/clients.json": keys.table(values["gateway_clients"]),
        **{name: (ROLE / "files" / name).read_text() for name in ("gateway.js", "start.sh")},
    }


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with_all = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [one.getsockname()[1] for one in with_all]
    for one in with_all:
        one.close()
    return found


@dataclass
class Gateway:
    """A running gateway: `log` has its standard output and errors, `ca` is the authority to trust."""

    folder: Path
    values: dict[str, Any]
    process: subprocess.Popen[bytes]
    view: Path

    @property
    def port(self) -> int:
        return int(self.values["gateway_port"])

    @property
    def ca(self) -> Path:
        return self.folder / "pki/ca.crt"

    @property
    def status_url(self) -> str:
        return f"http://127.0.0.1:{self.values['gateway_status_port']}/metrics"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def requests(self, path: str = "") -> list[dict[str, Any]]:
        """Lines of the access log, those with that path only where it is given; what is asked just now may come late."""
        time.sleep(0.1)
        lines = (json.loads(line) for line in self.log.splitlines() if line.startswith("{"))
        return [line for line in lines if not path or line["path"] == path]

    def take_up(self, **changed: Any) -> None:
        """Write the configuration anew with these variables and have it read, as `systemctl reload` does."""
        self.values.update(changed)
        _write(self.view, configuration(self.values))
        os.kill(self.process.pid, signal.SIGHUP)


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o400 if name.startswith("secrets/") else 0o644)
        os.chown(path, USER, USER)


@contextmanager
def gateway(folder: Path, instances: Sequence[Mapping[str, Any]], **own: Any) -> Iterator[Gateway]:
    """A gateway in front of these instances, on ports of its own."""
    port, status = free_ports(2)
    values = variables(
        **{"gateway_listen_address": "127.0.0.1", "gateway_port": port, "gateway_status_port": status, **own},
        vllm_instances=list(instances),
    )
    pki.make(folder / "pki", NAME, "127.0.0.1")
    texts = configuration(values)
    texts |= {f"tls/{name}": (folder / "pki" / name).read_text() for name in ("server.crt", "server.key")}
    _write(folder / "etc", texts)
    words = ["unshare", "--mount", "sh", "-euc", _WATCH + _VIEW, "view", str(root()), str(folder / "etc")]
    # The journal gives a unit a socket, which no program can open by a name.
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [*words, "sh", "/etc/gateway/start.sh"],
            stdin=subprocess.PIPE,
            stdout=theirs.fileno(),
            stderr=theirs.fileno(),
            start_new_session=True,
        )
    listener = threading.Thread(target=_listen, args=(ours, folder / "log"))
    listener.start()
    try:
        _wait(port, process, folder)
        yield Gateway(folder, values, process, folder / "etc")
    finally:
        # All of them, as when a container ends: without nginx, what reads the pipe would wait for ever.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=20)
        assert process.stdin is not None
        process.stdin.close()
        listener.join(timeout=20)


def judged(folder: Path, texts: Mapping[str, str], slim: bool = False) -> subprocess.CompletedProcess[str]:
    """What `start.sh check` says of these files, before there is a certificate; `slim`: in an image without njs."""
    _write(folder / "etc", texts)
    view = _VIEW.replace("shift 2", "mount -t tmpfs tmpfs usr/lib/nginx/modules; shift 2") if slim else _VIEW
    words = ["unshare", "--mount", "sh", "-euc", view, "view", str(root()), str(folder / "etc")]
    return subprocess.run(
        [*words, "sh", "/etc/gateway/start.sh", "check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def _listen(end: socket.socket, log: Path) -> None:
    with end, log.open("wb", buffering=0) as file:
        while data := end.recv(65536):
            file.write(data)


def _wait(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    end = time.monotonic() + 15
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise AssertionError(f"the gateway does not listen: {(folder / 'log').read_text()}")
