"""How a snapshot asks the node: commands, files and risky reads, each with a time limit of its own."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import threading
import time
from typing import Any, Callable, NamedTuple

# An ssh command without a login shell often has no sbin folders, and that is where nft and grubby live.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Answer(NamedTuple):
    """What a command said. `why` is None when it ran to its end, else the reason why nothing is known."""

    rc: int | None
    out: str
    err: str
    why: str | None

    @property
    def ok(self) -> bool:
        """True when the command ran to its end and returned 0."""
        return self.rc == 0

    @property
    def trouble(self) -> str:
        """One line that says why the command gave no answer, or an empty string."""
        if self.why:
            return self.why
        if self.rc == 0:
            return ""
        said = (self.err.strip() or self.out.strip()).splitlines()
        return "exit code {}: {}".format(self.rc, said[-1] if said else "no text")


class Host:
    """The node as the probes see it.

    `root` is the folder below which files are read ("/" outside of tests), `time_limit_s` what each
    command and each risky read may take.
    """

    def __init__(self, time_limit_s: float = 8.0, root: str = "/") -> None:
        self.time_limit_s = time_limit_s
        self.root = root
        self.started = time.monotonic()
        self.is_root = os.geteuid() == 0
        self._unseen: dict[str, str] = {}

    def unseen(self, what: str, why: str) -> None:
        """Record that `what` could not be looked at; the first reason given is the one that is kept."""
        self._unseen.setdefault(what, why)

    def unseen_list(self) -> list[dict[str, str]]:
        """All that could not be seen, as the snapshot shows it."""
        return [{"what": what, "why": why} for what, why in sorted(self._unseen.items())]

    def path(self, path: str) -> str:
        """The place of a node's absolute path below this host's root."""
        return os.path.join(self.root, path.lstrip("/"))

    def read(self, path: str, limit: int = 1 << 20) -> str | None:
        """Text of a small local file, or None when it cannot be read."""
        try:
            with open(self.path(path), "rb") as stream:
                return stream.read(limit).decode("utf-8", "replace")
        except OSError:
            return None

    def names(self, path: str) -> list[str]:
        """Sorted names in a local folder; empty when there is no such folder."""
        try:
            return sorted(os.listdir(self.path(path)))
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        """True when the path is there."""
        return os.path.exists(self.path(path))

    def which(self, program: str) -> str | None:
        """Path of a program on the node, or None."""
        for folder in _PATH.split(":"):
            candidate = os.path.join(folder, program)
            if os.access(self.path(candidate), os.X_OK):
                return candidate
        return None

    def run(self, *argv: str) -> Answer:
        """Run a command to its end or to the time limit; never raises."""
        environment = dict(os.environ, LC_ALL="C", PATH=_PATH)
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
                errors="replace",
            )
        except OSError as error:
            return Answer(None, "", "", f"{argv[0]}: {error.strerror}")
        try:
            out, err = process.communicate(timeout=self.time_limit_s)
        except subprocess.TimeoutExpired:
            # It is killed but not waited for: a process that hangs in a driver cannot be killed.
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            name = os.path.basename(argv[0])
            return Answer(None, "", "", f"{name} did not answer within {self.time_limit_s:g} s")
        return Answer(process.returncode, out, err, None)


class Aside:
    """Work done in a child process that may be left behind, because reading a dead mount never returns.

    The child holds none of the module's own streams, so one that hangs for ever keeps nobody waiting.
    Start all of them before the first thread: a forked child has only the thread that forked it.
    """

    def __init__(self, what: str, work: Callable[[], Any]) -> None:
        self.what = what
        self.reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _child(work, self.reader, writer)
        os.close(writer)
        self.data = b""
        self.done = False

    def value(self) -> Any:
        """What the child found; raises RuntimeError with a readable reason when it found nothing."""
        if not self.done:
            raise RuntimeError("no answer from the file system (a dead mount?)")
        try:
            answer = json.loads(self.data.decode("utf-8"))
        except ValueError:
            raise RuntimeError("the reading process ended without an answer") from None
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]


def _child(work: Callable[[], Any], reader: int, writer: int) -> None:
    code = 1
    try:
        os.setsid()
        os.close(reader)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        try:
            answer = {"value": work()}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        data = json.dumps(answer).encode("utf-8")
        while data:
            data = data[os.write(writer, data) :]
        code = 0
    finally:
        # Not sys.exit: the clean-up of the module belongs to the parent alone.
        os._exit(code)


def collect(asides: list[Aside], deadline: float) -> None:
    """Read the children's answers until all are there or `deadline` (monotonic seconds) has come."""
    waiting = selectors.DefaultSelector()
    for aside in asides:
        os.set_blocking(aside.reader, False)
        waiting.register(aside.reader, selectors.EVENT_READ, aside)
    while waiting.get_map():
        ready = waiting.select(max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for key, _ in ready:
            chunk = os.read(key.fd, 1 << 16)
            if chunk:
                key.data.data += chunk
                continue
            key.data.done = True
            waiting.unregister(key.fd)
    for aside in asides:
        os.close(aside.reader)
        if not aside.done:
            _kill(aside.pid)
        os.waitpid(aside.pid, os.WNOHANG)
    waiting.close()


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


class Probes:
    """Probes that run side by side in threads; one that hangs or breaks costs only its own answer."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._results: dict[str, Any] = {}
        self._threads: dict[str, threading.Thread] = {}

    def start(self, what: str, probe: Callable[[], Any]) -> None:
        """Start one probe; its answer is filed under `what`."""

        def work() -> None:
            try:
                self._results[what] = probe()
            except Exception as error:  # a probe that breaks must not take the others with it
                self._host.unseen(what, f"{type(error).__name__}: {error}")

        thread = threading.Thread(target=work, name=what, daemon=True)
        self._threads[what] = thread
        thread.start()

    def results(self, deadline: float) -> dict[str, Any]:
        """Answers that came before `deadline` (monotonic seconds); the others are recorded as unseen."""
        for what, thread in self._threads.items():
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._host.unseen(what, "no answer within the time limit")
        return dict(self._results)
