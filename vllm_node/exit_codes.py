"""Exit codes of `vllm-node`: the one place where they are given a number and a meaning."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command's exit code says. Documented in the command line's help."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    VALIDATION = 3
    TASK_FAILED = 4
    UNREACHABLE = 5
    LEFT_OVER = 6
    SLO_FAILED = 7
    INSUFFICIENT = 8
    ROLLED_BACK = 9
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """One line for people."""
        return _MEANING[self]

    @property
    def verdict(self) -> str:
        """The same said of one run that has just ended."""
        return _VERDICT.get(self, self.meaning)

    @property
    def word(self) -> str:
        """The name as it stands in JSON documents."""
        return self.name.lower()


_MEANING = {
    ExitCode.OK: "done, and everything is as wanted",
    ExitCode.INTERNAL: "vllm-node itself failed",
    ExitCode.USAGE: "the call, the inventory or its vault password cannot be used",
    ExitCode.VALIDATION: "preflight, a check of the variables or of a bundle failed",
    ExitCode.TASK_FAILED: "a task failed, or (status, images lock --check) something is not as wanted",
    ExitCode.UNREACHABLE: "a node, or a registry, could not be reached",
    ExitCode.LEFT_OVER: "teardown left something behind, or could not prove that it did not",
    ExitCode.SLO_FAILED: "a benchmark was made, and the SLO was not met or an answer was wrong",
    ExitCode.INSUFFICIENT: "a benchmark was made, and it does not say whether the SLO is met",
    ExitCode.ROLLED_BACK: "an upgrade failed, and every node where it did is back on what it had",
    ExitCode.INTERRUPTED: "interrupted",
}

_VERDICT = {
    ExitCode.OK: "done",
    ExitCode.TASK_FAILED: "a task failed on a node",
    ExitCode.LEFT_OVER: "something was left behind, or nothing proves that it was not",
}


def help_text() -> str:
    """Table of all codes for `--help`."""
    return "\n".join(f"{code.value:>4}  {code.meaning}" for code in ExitCode)
