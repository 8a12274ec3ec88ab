"""The RPMs of a bundle over HTTPS, for nodes that have no repository yet. Only the plain files that are in it."""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote, urlsplit

_IDLE_S = 60
_NOTHING = "/nonexistent"


@contextmanager
def serving(folder: Path, address: tuple[str, int], context: ssl.SSLContext) -> Iterator[None]:
    """Offer the files that are in `folder` now, for as long as the context lasts. Raises OSError: the port is taken."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if _plain(path)}
    # What is no file of the bundle has no name here: there is no path that could lead out.
    server = _Server(address, partial(_Handler, files=files))
    # The handshake is the affair of the thread that answers: whoever says nothing then keeps nobody else waiting.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, name="rpms", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


# Not http.server's own: that one asks a name server who we are, which takes its time where there is none.
class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: Callable[..., _Handler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away, or does not trust us, is no news."""


class _Handler(SimpleHTTPRequestHandler):
    """Answers GET and HEAD, and nothing else."""

    protocol_version = "HTTP/1.1"
    server_version = "vllm-node"
    sys_version = ""
    timeout = _IDLE_S

    def __init__(self, *arguments: object, files: Mapping[str, Path]) -> None:
        self._files = files
        super().__init__(*arguments)  # type: ignore[arg-type]

    def translate_path(self, path: str) -> str:
        """The file of that name, by the list; never by the file system."""
        return str(self._files.get(unquote(urlsplit(path).path).removeprefix("/"), _NOTHING))

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - its name there
        """Who fetches what is told by nobody: dnf says it on the node."""
