"""One run of one playbook of this project, as a stream of typed events.

ansible-runner starts `ansible-playbook` and hands over its events. This module chooses the environment of
that process, turns loose dictionaries into types, and leaves no process at work when a run is interrupted.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias

import ansible_runner

from vllm_node.bench.interrupt import ACTIONS
from vllm_node.paths import project_root

# How often ansible-runner looks whether the run is to be cancelled. Its own default is 5 s.
_POLL_S = 0.2
# How long Ansible gets to end its workers after a cancel, before it is killed.
_GRACE_S = 5.0
# Larger results are dropped by ansible-runner's callback. A snapshot can exceed its default of 700 000.
_MAX_RESULT_CHARS = 50_000_000

HostState: TypeAlias = Literal["ok", "changed", "failed", "ignored", "skipped", "unreachable"]


class RunError(Exception):
    """The run cannot be started as asked. The text says what was seen and what to do."""


@dataclass(frozen=True)
class PlayRequest:
    """What to run. `playbook` is a name below `playbooks/`, without `.yml`."""

    playbook: str
    inventory: tuple[str, ...]
    limit: str | None = None
    check: bool = False
    diff: bool = False
    tags: str | None = None
    extra_vars: Mapping[str, object] = field(default_factory=dict)
    vars_files: tuple[Path, ...] = ()
    vault_password_file: Path | None = None


@dataclass(frozen=True)
class PlayStarted:
    """A play begins."""

    name: str


@dataclass(frozen=True)
class TaskStarted:
    """A task begins, on whichever hosts."""

    task: str
    role: str | None


@dataclass(frozen=True)
class HostStarted:
    """A task begins on one host."""

    host: str
    task: str
    role: str | None


@dataclass(frozen=True)
class HostResult:
    """A task ended on one host. `result` is the module's own result; `duration_s` None: not measured."""

    host: str
    task: str
    role: str | None
    action: str
    state: HostState
    duration_s: float | None
    result: Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """A line that something printed. `host` None: it does not say for which host it speaks."""

    text: str
    host: str | None
    kind: Literal["progress", "output", "warning", "error"]


@dataclass(frozen=True)
class FileDiff:
    """What a task changes, or would change in check mode, as text."""

    host: str
    task: str
    role: str | None
    text: str


@dataclass(frozen=True)
class NoHosts:
    """A play of the playbook matched no host."""

    play: str


@dataclass(frozen=True)
class HostCounts:
    """Tasks of one host by outcome, as Ansible counted them."""

    ok: int = 0
    changed: int = 0
    failed: int = 0
    unreachable: int = 0
    skipped: int = 0
    rescued: int = 0
    ignored: int = 0


@dataclass(frozen=True)
class Stats:
    """Ansible's final count."""

    hosts: Mapping[str, HostCounts]


@dataclass(frozen=True)
class Tick:
    """Nothing happened for a moment; time goes on."""


@dataclass(frozen=True)
class Ended:
    """The last event. `rc` is ansible-playbook's own code, None when a signal ended it."""

    rc: int | None
    cancelled: bool
    took_s: float


Event: TypeAlias = (
    PlayStarted | TaskStarted | HostStarted | HostResult | Line | FileDiff | NoHosts | Stats | Tick | Ended
)


def find_inventory(text: str, root: Path | None = None) -> str:
    """Absolute path of an inventory given by path, or by a path inside the project.

    A list such as `a,b,` stays as it is. Raises RunError when there is no such file or folder.
    """
    if "," in text:
        return text
    root = root or project_root()
    for candidate in (Path(text), root / text):
        if candidate.exists():
            return str(candidate.absolute())
    raise RunError(
        f"There is no inventory {text} (looked in {Path.cwd()} and {root}). Copy inventories/example, name "
        "your nodes in it, and give its path with -i."
    )


def environment(root: Path | None = None) -> dict[str, str]:
    """Variables that make any Ansible program see this project's configuration, to lay over os.environ."""
    root = root or project_root()
    plugins = Path(__file__).resolve().parent / "plugins"
    extra = {
        "ANSIBLE_CONFIG": str(root / "ansible.cfg"),
        # In a wheel the plugins lie beside this file and not where ansible.cfg of a checkout has them.
        "ANSIBLE_ACTION_PLUGINS": str(plugins / "action"),
        "ANSIBLE_FILTER_PLUGINS": str(plugins / "filter"),
        # ansible-runner adds its own folder to this variable, and any value of it replaces ansible.cfg's.
        "ANSIBLE_CALLBACK_PLUGINS": str(plugins / "callback"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_NOCOWS": "1",
        # Without this a broken inventory is a warning, and the run a success on no host.
        "ANSIBLE_INVENTORY_UNPARSED_FAILED": "True",
        # ansible-runner switches the check of host keys off unless it is told.
        "ANSIBLE_HOST_KEY_CHECKING": os.environ.get("ANSIBLE_HOST_KEY_CHECKING", "True"),
        "MAX_EVENT_RES": str(_MAX_RESULT_CHARS),
        "PATH": os.environ.get("PATH", os.defpath),
    }
    # `vllm-node` may be called by its path, with its virtual environment not on PATH.
    beside = Path(sys.executable).parent
    if (beside / "ansible-playbook").exists():
        extra["PATH"] = f"{beside}{os.pathsep}{extra['PATH']}"
    return extra


class EventReader:
    """Turns ansible-runner's dictionaries into events. Remembers the hosts, to tell whose line a line is."""

    _STATES: Mapping[str, HostState] = {
        "runner_on_ok": "ok",
        "runner_on_failed": "failed",
        "runner_on_skipped": "skipped",
        "runner_on_unreachable": "unreachable",
    }
    # "<host> text", "[host] text", "[host]: text", "host: text" and "host | text" are all seen in the wild.
    _HOST_PREFIX = re.compile(
        r"^(?:<(?P<a>[^<>\s]+)>|\[(?P<b>[^\[\]\s]+)\]|(?P<c>[^\s:|]+)(?=\s*[:|]))\s*[:|]?\s*(?P<text>.*)$"
    )

    def __init__(self) -> None:
        """Start with no host known."""
        self._hosts: set[str] = set()

    def read(self, raw: Mapping[str, Any]) -> list[Event]:
        """Events told by one raw event; none for what nobody needs to know."""
        name = str(raw.get("event", ""))
        data: Mapping[str, Any] = raw.get("event_data") or {}
        task = str(data.get("task") or data.get("name") or "")
        role = data.get("role") or None
        host = str(data.get("host") or "")
        if name == "playbook_on_play_start":
            return [PlayStarted(str(data.get("name") or ""))]
        if name == "playbook_on_task_start":
            return [TaskStarted(task, role)]
        if name == "runner_on_start":
            self._hosts.add(host)
            return [HostStarted(host, task, role)]
        if name in self._STATES:
            return [self._result(name, data, host, task, role)]
        if name == "runner_on_file_diff":
            return [FileDiff(host, task, role, self._without_banner(self._text(raw)))]
        if name == "runner_retry":
            return [self._retry(data, host)]
        if name == "playbook_on_no_hosts_matched":
            return [NoHosts(str(data.get("play") or ""))]
        if name == "playbook_on_stats":
            return [self._stats(data)]
        if name in ("verbose", "debug", "warning", "system_warning", "deprecated", "error"):
            return self._lines(name, data, self._text(raw))
        return []

    def _result(
        self, name: str, data: Mapping[str, Any], host: str, task: str, role: str | None
    ) -> HostResult:
        result: Mapping[str, Any] = data.get("res") or {}
        state = self._STATES[name]
        if state == "ok" and result.get("changed"):
            state = "changed"
        if state == "failed" and data.get("ignore_errors"):
            state = "ignored"
        duration = data.get("duration")
        action = str(data.get("resolved_action") or data.get("task_action") or "")
        duration_s = float(duration) if duration is not None else None
        return HostResult(host, task, role, action, state, duration_s, result)

    def _retry(self, data: Mapping[str, Any], host: str) -> Line:
        result: Mapping[str, Any] = data.get("res") or {}
        attempts = result.get("attempts")
        retries = result.get("retries")
        # Ansible counts the first try among its `retries`.
        of = f" of {int(retries) - 1}" if retries is not None else ""
        return Line(f"not yet; attempt {attempts}{of}", host, "progress")

    def _stats(self, data: Mapping[str, Any]) -> Stats:
        names = {
            "ok": "ok",
            "changed": "changed",
            "failures": "failed",
            "dark": "unreachable",
            "skipped": "skipped",
            "rescued": "rescued",
            "ignored": "ignored",
        }
        counts: dict[str, dict[str, int]] = {str(host): {} for host in data.get("processed") or {}}
        for theirs, ours in names.items():
            for host, number in (data.get(theirs) or {}).items():
                counts.setdefault(str(host), {})[ours] = int(number)
        return Stats({host: HostCounts(**numbers) for host, numbers in counts.items()})

    def _lines(self, name: str, data: Mapping[str, Any], text: str) -> list[Event]:
        events: list[Event] = []
        for line in text.splitlines():
            if not line.strip():
                continue
            if name in ("warning", "system_warning", "deprecated"):
                events.append(Line(line, None, "warning"))
            elif name == "error":
                events.append(Line(line, None, "error"))
            elif data.get("task"):
                events.append(self._progress(line))
            else:
                events.append(Line(line, None, "output"))
        return events

    def _progress(self, line: str) -> Line:
        match = self._HOST_PREFIX.match(line)
        if match:
            host = match["a"] or match["b"] or match["c"]
            if host in self._hosts:
                return Line(match["text"].strip(), host, "progress")
        return Line(line.strip(), None, "progress")

    @staticmethod
    def _text(raw: Mapping[str, Any]) -> str:
        # The run has a terminal of its own, so lines end in CR LF and colours may slip in.
        return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", str(raw.get("stdout") or "")).replace("\r\n", "\n")

    @staticmethod
    def _without_banner(text: str) -> str:
        """Ansible prints the name of the task before its first diff."""
        return re.sub(r"\A\s*(?:TASK|RUNNING HANDLER) \[[^\n]*\n", "", text).strip("\n")


class PlaybookRun:
    """A running playbook. Use it as a context; iterate over `events()`.

    `events()` may be called again after an exception such as KeyboardInterrupt: it goes on where it was.
    Leaving the context cancels what still runs and removes the private folder, which holds extra variables.
    """

    def __init__(self, request: PlayRequest, root: Path | None = None) -> None:
        """Check that the run can be started. Raises RunError."""
        self.request = request
        self._root = root or project_root()
        self._playbook = self._root / "playbooks" / f"{request.playbook}.yml"
        if not self._playbook.is_file():
            raise RunError(
                f"There is no playbook {self._playbook}. Install vllm-node again, or use a whole checkout."
            )
        self._environment = environment(self._root)
        if shutil.which("ansible-playbook", path=self._environment["PATH"]) is None:
            raise RunError(
                "ansible-playbook is not on PATH. Install ansible-core into the environment of vllm-node."
            )
        self._inventory = [find_inventory(text, self._root) for text in request.inventory]
        self._queue: queue.SimpleQueue[Event | BaseException] = queue.SimpleQueue()
        self._reader = EventReader()
        self._thread = threading.Thread(target=self._work, name="ansible-runner", daemon=True)
        self._ansible_pid: int | None = None
        self._action = ""
        self._in_order = False
        self._cancel = threading.Event()
        self._kill = threading.Event()
        self._signalled: dict[signal.Signals, float] = {}
        self._over = False

    def __enter__(self) -> PlaybookRun:
        """Start the run."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel what still runs, and wait for its end."""
        if self._thread.is_alive():
            self.cancel()
        self._thread.join()

    def cancel(self) -> bool:
        """End the run: Ansible first gets the chance to stop its workers.

        True when the task that runs ends in order: it is waited for, however long it takes.
        """
        if not self._cancel.is_set():
            self._in_order = self._action in ACTIONS
            self._cancel.set()
        return self._in_order

    def kill(self) -> None:
        """End the run at once. A worker may outlive it."""
        self._kill.set()
        self._cancel.set()

    def events(self, tick_s: float = 1.0) -> Iterator[Event]:
        """All events up to `Ended`, with a `Tick` whenever nothing came for `tick_s`.

        Raises what went wrong inside ansible-runner.
        """
        while not self._over:
            try:
                item = self._queue.get(timeout=tick_s)
            except queue.Empty:
                yield Tick()
                continue
            if isinstance(item, BaseException):
                self._over = True
                raise item
            self._over = isinstance(item, Ended)
            yield item

    def _work(self) -> None:
        begun = time.monotonic()
        private = Path(tempfile.mkdtemp(prefix="vllm-node-run-"))  # 0700: results and variables may be secret
        end: Event | BaseException
        try:
            rc = self._run(private)
            end = Ended(rc, self._cancel.is_set(), time.monotonic() - begun)
        except BaseException as error:  # raised again where the events are read
            end = error
        shutil.rmtree(private, ignore_errors=True)
        self._queue.put(end)

    def _run(self, private: Path) -> int | None:
        # In a file, because ansible-runner forgets settings that are only passed as an argument.
        settings = {"pexpect_timeout": _POLL_S, "suppress_output_file": True}
        _write_private(private / "env" / "settings", settings)
        run = ansible_runner.run(
            private_data_dir=str(private),
            project_dir=str(self._root),
            playbook=str(self._playbook),
            inventory=self._inventory,
            limit=self.request.limit,
            tags=self.request.tags,
            cmdline=shlex.join(self._arguments(private)) or None,
            envvars=self._environment,
            event_handler=self._on_event,
            cancel_callback=self._is_cancelled,
            fact_cache_type="memory",  # else ansible-runner replaces the configured cache by one of its own
            suppress_env_files=True,
            quiet=True,
        )
        return int(run.rc) if run.rc is not None else None

    def _arguments(self, private: Path) -> Sequence[str]:
        request = self.request
        arguments = ["--check"] if request.check else []
        arguments += ["--diff"] if request.diff else []
        if request.vault_password_file:
            arguments += ["--vault-password-file", str(request.vault_password_file.absolute())]
        for path in request.vars_files:
            arguments += ["-e", f"@{path.absolute()}"]
        if request.extra_vars:
            # In a file, because everybody on the machine can read a command line.
            arguments += ["-e", f"@{_write_private(private / 'extra-vars.json', request.extra_vars)}"]
        return arguments

    def _on_event(self, raw: dict[str, Any]) -> bool:
        if raw.get("pid") and self._ansible_pid is None:
            self._ansible_pid = int(raw["pid"])
        if raw.get("event") == "playbook_on_task_start":
            self._action = str((raw.get("event_data") or {}).get("task_action") or "").rpartition(".")[2]
        for event in self._reader.read(raw):
            self._queue.put(event)
        return False  # the event is not kept in a file

    def _is_cancelled(self) -> bool:
        """Asked by ansible-runner every `_POLL_S`; True makes it kill Ansible's process group.

        Ansible's workers are in groups of their own and would go on working on the nodes. A SIGTERM to
        Ansible ends them too, so it comes first.
        """
        if not self._cancel.is_set():
            return False
        if self._ansible_pid is None:
            return True
        if self._in_order and not self._kill.is_set():
            self._signal(signal.SIGINT)
            return False
        # A task that was to end in order has its workers still, so even a kill leaves Ansible the time to end them.
        at_once = self._kill.is_set() and not self._in_order
        return self._signal(signal.SIGTERM) > _GRACE_S or at_once

    def _signal(self, number: signal.Signals) -> float:
        """Send this signal to Ansible, once; gives the seconds since then."""
        assert self._ansible_pid is not None
        if number not in self._signalled:
            self._signalled[number] = time.monotonic()
            with contextlib.suppress(OSError):
                os.kill(self._ansible_pid, number)
        return time.monotonic() - self._signalled[number]


def _write_private(path: Path, value: object) -> Path:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(json.dumps(value), encoding="utf-8")
    return path
