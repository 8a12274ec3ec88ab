"""Headless Chromium without a driver: it is told what to do over a pair of pipes, and says all that happens."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PACKAGE = "chromium-headless-shell"
_WAIT_S = 60.0
# No name is found and the way out is a port that nobody listens on.
_ARGUMENTS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=127.0.0.1:9",
)
_READ, _WRITE = 3, 4


def program() -> str | None:
    """The browser, where there is one."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Browser:
    """A running browser with one tab; `events` are (method, parameters) of all that happened in it."""

    def __init__(self, reading: int, writing: int) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._reading = reading
        self._writing = writing
        self._number = 0
        self._rest = b""
        self._answers: dict[int, dict[str, Any]] = {}
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Log", "Runtime", "Network", "Page", "Accessibility", "Audits"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a command of the DevTools protocol."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        self._until(lambda: number in self._answers, method)
        answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer)
        return dict(answer["result"])

    def open(self, path: Path) -> None:
        """Show a file, and wait until it is all there."""
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        self._until(lambda: any(method == "Page.loadEventFired" for method, _ in self.events), f"loading {path}")
        # What the page does after it has loaded would come now.
        self.evaluate("new Promise(done => setTimeout(done, 200))")

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def complaints(self) -> list[str]:
        """Everything that the page or the browser had to say: console, log, exceptions, issues."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "Audits.issueAdded")
        return [f"{method}: {json.dumps(parameters)}" for method, parameters in self.events if method in kinds]

    def requests(self) -> list[str]:
        """Addresses that were asked for, whether or not anything came back."""
        return [parameters["request"]["url"] for method, parameters in self.events if method == "Network.requestWillBeSent"]

    def _until(self, done: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + _WAIT_S
        while not done():
            left = end - time.monotonic()
            ready, _, _ = select.select([self._reading], [], [], max(0, left))
            assert ready, f"{what}: no answer from the browser within {_WAIT_S:g} s"
            read = os.read(self._reading, 1 << 16)
            assert read, f"{what}: the browser has ended"
            *whole, self._rest = (self._rest + read).split(b"\0")
            for message in map(json.loads, whole):
                if "id" in message:
                    self._answers[message["id"]] = message
                else:
                    self.events.append((message["method"], message["params"]))


@contextmanager
def running(folder: Path) -> Iterator[Browser]:
    """A browser with its profile and its own words in `folder`."""
    path = program()
    assert path is not None
    command_end, our_command_end = _pipe()
    our_answer_end, answer_end = _pipe()
    log = os.open(folder / "chromium.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    # The browser wants its pipes at these two numbers.
    actions = [
        (os.POSIX_SPAWN_DUP2, command_end, _READ),
        (os.POSIX_SPAWN_DUP2, answer_end, _WRITE),
        (os.POSIX_SPAWN_DUP2, log, 1),
        (os.POSIX_SPAWN_DUP2, log, 2),
    ]
    arguments = [path, *_ARGUMENTS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    child = os.posix_spawn(path, arguments, {**os.environ, "HOME": str(folder)}, file_actions=actions, setsid=True)
    for one in (command_end, answer_end, log):
        os.close(one)
    try:
        yield Browser(our_answer_end, our_command_end)
    finally:
        os.close(our_command_end)
        os.close(our_answer_end)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _pipe() -> tuple[int, int]:
    """A pipe whose numbers are out of the way of those that the browser wants."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in ends)
    for one in ends:
        os.close(one)
    return moved[0], moved[1]
