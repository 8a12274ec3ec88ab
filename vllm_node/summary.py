"""What a run has come to: gathered from its events, told to a person or as one JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vllm_node import smoke
from vllm_node.exit_codes import ExitCode
from vllm_node.progress import elapsed, label
from vllm_node.runner import (
    Ended,
    Event,
    FileDiff,
    HostCounts,
    HostResult,
    HostStarted,
    Line,
    Stats,
)

SCHEMA = 1
_NO_TRACEBACK = "(traceback unavailable)"
# Ansible's own code when it met an error that it did not expect.
_ANSIBLE_CRASHED = 250
# Lines kept to explain a run that ended before its first task.
_KEPT_LINES = 60

_MEASURED = {"pass": "green", "fail": "bold red", "insufficient": "yellow"}

FailureKind: TypeAlias = Literal["validation", "certificate", "unreachable", "task"]


@dataclass(frozen=True)
class Failure:
    """A task that failed on a host. `message` is complete, with real line breaks."""

    task: str
    message: str
    kind: FailureKind


@dataclass
class HostSummary:
    """What is known about one host. None: the run did not come as far as to tell."""

    counts: HostCounts = field(default_factory=HostCounts)
    counted: bool = False
    running: str | None = None
    failures: list[Failure] = field(default_factory=list)
    changes: list[dict[str, str | None]] = field(default_factory=list)
    findings: list[Mapping[str, Any]] | None = None
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    question: str | None = None
    answers: list[Mapping[str, Any]] = field(default_factory=list)
    measurements: list[Mapping[str, Any]] = field(default_factory=list)
    certificate: Mapping[str, Any] | None = None
    report_files: list[str] = field(default_factory=list)

    @property
    def failure(self) -> Failure | None:
        """The failure that ended the play for this host: the last one, since earlier ones were rescued."""
        ended_badly = self.counts.failed or self.counts.unreachable or not self.counted
        return self.failures[-1] if self.failures and ended_badly else None

    @property
    def below_slo(self) -> list[Mapping[str, Any]]:
        """Measurements of this run that break the SLO."""
        return [one for one in self.measurements if one.get("verdict") == "fail"]


class Summary:
    """Takes the events of one run. `command` is how the user called us, for the advice at the end."""

    def __init__(self, verb: str, command: str = "", *, check: bool = False) -> None:
        """Start with nothing known."""
        self.verb = verb
        self.command = command
        self.check = check
        self.hosts: dict[str, HostSummary] = {}
        self.warnings: list[str] = []
        self._output: list[str] = []
        self._stats_seen = False
        self._ended: Ended | None = None
        self._crash: str | None = None

    def take(self, event: Event) -> None:
        """Take note of one event."""
        if isinstance(event, HostStarted):
            self._host(event.host).running = label(event.task, event.role)
        elif isinstance(event, HostResult):
            self._take_result(event)
        elif isinstance(event, FileDiff):
            change: dict[str, str | None] = {"task": label(event.task, event.role), "diff": event.text}
            self._host(event.host).changes.append(change)
        elif isinstance(event, Line) and event.kind == "warning":
            self.warnings.append(event.text)
        elif isinstance(event, Line) and event.kind in ("output", "error"):
            self._output = [*self._output, event.text][-_KEPT_LINES:]
        elif isinstance(event, Stats):
            self._stats_seen = True
            for host, counts in event.hosts.items():
                self._host(host).counts = counts
                self._host(host).counted = True
        elif isinstance(event, Ended):
            self._ended = event

    def crashed(self, error: BaseException) -> None:
        """The wrapper itself failed."""
        self._crash = f"{type(error).__name__}: {error}"

    @property
    def exit_code(self) -> ExitCode:
        """What the whole run has come to. Of several troubles, the one that left more to clean up."""
        if self._ended is not None and self._ended.cancelled:
            return ExitCode.INTERRUPTED
        if self._crash or self._ended is None or self._ended.rc is None or self._ended.rc == _ANSIBLE_CRASHED:
            return ExitCode.INTERNAL
        if not self.hosts:
            return ExitCode.USAGE  # Ansible refused the inventory or the call, or no host matched
        if not self._stats_seen:
            return ExitCode.INTERNAL  # Ansible stopped in the middle
        kinds = {host.failure.kind for host in self.hosts.values() if host.failure}
        if any(host.counts.unreachable for host in self.hosts.values()):
            kinds.add("unreachable")
        if any(host.counts.failed and not host.failures for host in self.hosts.values()):
            kinds.add("task")
        if "task" in kinds:
            return ExitCode.TASK_FAILED
        if "unreachable" in kinds:
            return ExitCode.UNREACHABLE
        if "validation" in kinds:
            return ExitCode.VALIDATION
        if "certificate" in kinds or any(self._not_clean(host) for host in self.hosts.values()):
            return ExitCode.LEFT_OVER
        if self._ended.rc != 0:
            return ExitCode.TASK_FAILED
        return ExitCode.SLO_FAILED if any(host.below_slo for host in self.hosts.values()) else ExitCode.OK

    def document(self) -> dict[str, Any]:
        """The whole summary for a machine. `findings`, `question`, `certificate` are null when not told."""
        code = self.exit_code
        return {
            "schema": SCHEMA,
            "verb": self.verb,
            "check": self.check,
            "exit_code": int(code),
            "outcome": code.word,
            "took_s": round(self._ended.took_s, 3) if self._ended else None,
            "hosts": {name: _host_document(host) for name, host in self.hosts.items()},
            "warnings": self.warnings,
            "error": self._crash or ("\n".join(self._output) if not self._stats_seen else None),
        }

    def print(self, console: Console) -> None:
        """The whole summary for a person, ending with the next step."""
        if self.verb == "preflight":
            print_findings(console, {name: host.findings for name, host in self.hosts.items()})
        else:
            self._print_warned(console)
        self._print_running_units(console)
        self._print_certificates(console)
        self._print_failures(console)
        self._print_counts(console)
        _say(console, self._verdict(), style="green" if self.exit_code is ExitCode.OK else "bold red")
        for line in self._next_steps():
            _say(console, line)

    def _host(self, name: str) -> HostSummary:
        return self.hosts.setdefault(name, HostSummary())

    def _take_result(self, event: HostResult) -> None:
        host = self._host(event.host)
        host.running = None
        name = label(event.task, event.role)
        if event.state == "changed" and not any(change["task"] == name for change in host.changes):
            host.changes.append({"task": name, "diff": None})
        for result in _results(event.result):
            _take_our_keys(self, host, result)
        if event.state in ("failed", "unreachable"):
            kind = "unreachable" if event.state == "unreachable" else _failure_kind(event.result)
            host.failures.append(Failure(name, failure_text(event.result), kind))

    def _not_clean(self, host: HostSummary) -> bool:
        if host.certificate is not None:
            return not host.certificate.get("clean")
        # Without a certificate nothing is proven; in check mode there is nothing to prove.
        return self.verb == "down" and not self.check

    def _print_warned(self, console: Console) -> None:
        for name, host in self.hosts.items():
            for finding in host.findings or []:
                if finding.get("level") == "warn":
                    _say(
                        console, f"{name}: warning {finding.get('id')}: {finding.get('seen')}", style="yellow"
                    )

    def _print_running_units(self, console: Console) -> None:
        rows = [
            [
                name,
                _word(row.get("unit")),
                _word(row.get("state")),
                _word(row.get("address")),
                _word(row.get("image")),
                short_digest(row.get("digest")),
            ]
            for name, host in self.hosts.items()
            for row in host.rows
        ]
        if rows:
            print_table(console, ["host", "unit", "state", "address", "image", "digest"], rows)
        for name, host in self.hosts.items():
            for answer in host.answers:
                _say(console, f"\n{name}: {_word(answer.get('model'))} was asked: {host.question}")
                _say(console, f"{name}: it answered: {_printable(answer.get('text'))}")
        for name, host in self.hosts.items():
            for told in host.measurements:
                _say(console, f"{name}: {smoke.line(told)}", style=_MEASURED.get(told["verdict"], ""))

    def _print_certificates(self, console: Console) -> None:
        for name, host in self.hosts.items():
            certificate = host.certificate
            if certificate is None:
                continue
            clean = bool(certificate.get("clean"))
            told = "clean: the node is as it was found" if clean else "NOT clean"
            _say(console, f"{name}: {told}", style="green" if clean else "bold red")
            for key, words in (
                ("left", "left over"),
                ("difference", "different from as found"),
                ("kept", "kept on purpose"),
            ):
                for item in certificate.get(key) or []:
                    _say(console, f"{name}:   {words}: {_word(item)}")
            for path in host.report_files:
                _say(console, f"{name}:   report: {path}")

    def _print_failures(self, console: Console) -> None:
        for name, host in self.hosts.items():
            failure = host.failure
            if failure is None or (self.verb == "preflight" and host.findings is not None):
                continue
            _say(console, f"\n{name}: {failure.kind} failure in: {failure.task}", style="bold red")
            _say(console, failure.message)
        if not self._stats_seen and self.exit_code is not ExitCode.INTERRUPTED:
            for line in self._output:
                _say(console, line)
        if self._crash:
            _say(console, self._crash, style="bold red")

    def _print_counts(self, console: Console) -> None:
        rows = [
            [
                name,
                *(
                    str(number)
                    for number in (
                        host.counts.ok,
                        host.counts.changed,
                        host.counts.failed,
                        host.counts.unreachable,
                    )
                ),
            ]
            for name, host in self.hosts.items()
            if host.counted
        ]
        if rows:
            changed = "would change" if self.check else "changed"
            print_table(console, ["host", "ok", changed, "failed", "unreachable"], rows)

    def _verdict(self) -> str:
        code = self.exit_code
        took = f" after {elapsed(self._ended.took_s)}" if self._ended else ""
        check = " (check mode: nothing was changed)" if self.check else ""
        return f"{self.verb}: {code.verdict}{took}{check}"

    def _next_steps(self) -> list[str]:
        again = f"`{self.command}`" if self.command else "the same command"
        code = self.exit_code
        if code is ExitCode.INTERRUPTED:
            return self._interrupted(again)
        if code is ExitCode.USAGE and self._stats_seen:
            return [f"No host matched, nothing was done. Look at the inventory and at --limit: {again}"]
        if code is ExitCode.USAGE:
            return ["Nothing was done. Mend what Ansible says above; a vault needs --vault-password-file."]
        if code in (ExitCode.VALIDATION, ExitCode.TASK_FAILED, ExitCode.UNREACHABLE):
            return self._failed(again)
        if code is ExitCode.LEFT_OVER:
            return self._left_over(again)
        return self._below_slo()

    def _below_slo(self) -> list[str]:
        return [
            f"{name}: it is up and answers, but {one['instance']} does not keep what benchmark_slo promises. "
            f"To see more: `vllm-node bench run {name} --instance {one['instance']}` with the same inventory."
            for name, host in self.hosts.items()
            for one in host.below_slo
        ]

    def _failed(self, again: str) -> list[str]:
        steps: list[str] = []
        for name, host in self.hosts.items():
            if host.failure is None:
                continue
            changed = host.counts.changed
            state = (
                f"{changed} task(s) had changed it"
                if changed and not self.check
                else "nothing was changed on it"
            )
            if host.failure.kind == "unreachable":
                steps.append(
                    f"{name}: not reached ({state}). Try `ansible -m ping {name}` with the same inventory."
                )
            else:
                steps.append(f"{name}: {state}.")
        steps.append(f"Mend the cause and run {again} again: it goes on where it stopped.")
        if self.verb == "up" and any(host.counts.changed for host in self.hosts.values()):
            steps.append("To remove what is there instead: `vllm-node down` with the same inventory.")
        return steps

    def _left_over(self, again: str) -> list[str]:
        unproven = [name for name, host in self.hosts.items() if host.counted and host.certificate is None]
        steps = [f"{name}: no certificate was issued, so nothing is proven." for name in unproven]
        return [*steps, f"Look at what is left, and run {again} again: it can be repeated at any time."]

    def _interrupted(self, again: str) -> list[str]:
        steps = [
            f"{name}: was in the middle of: {host.running}. That step may be half done, or may still be "
            "ending on the node."
            for name, host in self.hosts.items()
            if host.running
        ]
        if not steps:
            steps = ["No task was at work."]
        steps.append(f"To go on: {again}. Each step can be repeated.")
        if self.verb == "up":
            steps.append("To remove what is there: `vllm-node down` with the same inventory.")
        return steps


def failure_text(result: Mapping[str, Any]) -> str:
    """All that a failed result says, as text with real line breaks."""
    if "censored" in result:
        return str(result["censored"])
    parts: list[str] = []
    items = [item for item in result.get("results") or [] if isinstance(item, Mapping) and item.get("failed")]
    parts += [
        f"{_word(item.get('_ansible_item_label', item.get('item')))}: {failure_text(item)}" for item in items
    ]
    if not items:
        message = result.get("msg")
        parts.append(
            "\n".join(str(line) for line in message) if isinstance(message, list) else str(message or "")
        )
        if "rc" in result and result.get("cmd"):
            command = result["cmd"]
            words = " ".join(map(str, command)) if isinstance(command, list) else str(command)
            parts.append(f"command: {words}\nexit code: {result['rc']}")
        parts += [
            str(result[key])
            for key in ("stderr", "stdout", "module_stderr", "module_stdout")
            if result.get(key)
        ]
    text = "\n".join(part.strip("\n") for part in parts if part.strip())
    exception = str(result.get("exception") or "")
    if not text and exception and exception != _NO_TRACEBACK:
        text = exception
    return text or "the task failed without a message"


def print_findings(console: Console, findings: Mapping[str, Sequence[Mapping[str, Any]] | None]) -> None:
    """Preflight's findings of all hosts: a table on a terminal, a paragraph each elsewhere."""
    told = [(host, finding) for host, many in findings.items() for finding in many or []]
    if console.is_terminal and told:
        table = Table("host", "level", "check", "seen", "why it matters", "how to mend it", show_lines=True)
        for host, finding in told:
            level = _word(finding.get("level"))
            table.add_row(
                Text(host),
                Text(level, style="bold red" if level == "fail" else "yellow"),
                *(Text(_word(finding.get(key))) for key in ("id", "seen", "why", "mend")),
            )
        console.print(table)
    else:
        for host, finding in told:
            _say(console, f"{host}: {_word(finding.get('level')).upper()} {_word(finding.get('id'))}")
            for key in ("seen", "why", "mend"):
                _say(console, f"    {key + ':':6}{_word(finding.get(key))}")
    for host, many in findings.items():
        if many is None:
            _say(console, f"{host}: not judged")
        elif not many:
            _say(console, f"{host}: nothing to complain about")


def print_table(console: Console, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: drawn on a terminal, plain columns at full width elsewhere."""
    if console.is_terminal:
        table = Table(*head)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print(table)
        return
    widths = [max(len(line[column]) for line in [head, *rows]) for column in range(len(head))]
    for line in [head, *rows]:
        _say(console, "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def short_digest(digest: object) -> str:
    """`sha256:0123456789ab` of a digest; `-` for none."""
    kind, _, value = str(digest or "").partition(":")
    return f"{kind}:{value[:12]}" if value else "-"


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)


def _word(value: object) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _results(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The result itself and those of its loop's items."""
    return [result, *(item for item in result.get("results") or [] if isinstance(item, Mapping))]


def _failure_kind(result: Mapping[str, Any]) -> FailureKind:
    if any("findings" in one or "argument_errors" in one for one in _results(result)):
        return "validation"
    if any("certificate" in one for one in _results(result)):
        return "certificate"
    return "task"


def _printable(text: object) -> str:
    """A model may say anything; what would move the cursor is shown by its escape."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in str(text))


def _take_our_keys(summary: Summary, host: HostSummary, result: Mapping[str, Any]) -> None:
    findings = result.get("findings")
    if isinstance(findings, list):
        host.findings = [*(host.findings or []), *findings]
    report = result.get("vllm_node_report")
    if isinstance(report, Mapping):
        told = summary.hosts.setdefault(str(report["host"]), HostSummary()) if report.get("host") else host
        for row in report.get("rows") or []:
            # A report is often shown by a second task, and then comes twice.
            if isinstance(row, Mapping) and row not in told.rows:
                told.rows.append(row)
        told.question = report.get("question") or told.question
        told.answers = report.get("answers") or told.answers
        told.measurements = report.get("measurements") or told.measurements
    certificate = result.get("certificate")
    if isinstance(certificate, Mapping):
        host.certificate = certificate
        files = result.get("report_files") or certificate.get("report_files") or []
        host.report_files = [str(path) for path in files]


def _host_document(host: HostSummary) -> dict[str, Any]:
    counts = host.counts
    return {
        "counts": {
            "ok": counts.ok,
            "changed": counts.changed,
            "failed": counts.failed,
            "unreachable": counts.unreachable,
            "skipped": counts.skipped,
            "ignored": counts.ignored,
            "rescued": counts.rescued,
        }
        if host.counted
        else None,
        "running": host.running,
        "failure": {"task": host.failure.task, "kind": host.failure.kind, "message": host.failure.message}
        if host.failure
        else None,
        "changes": host.changes,
        "findings": host.findings,
        "rows": host.rows,
        "question": host.question,
        "answers": host.answers,
        "measurements": host.measurements,
        "certificate": host.certificate,
        "report_files": host.report_files,
    }
