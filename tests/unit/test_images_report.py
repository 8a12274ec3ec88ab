"""What a look at a lock has come to: states, exit codes, the table and the document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from vllm_node.exit_codes import ExitCode
from vllm_node.images.lockfile import Entry
from vllm_node.images.report import Report, size, state_of
from vllm_node.images.resolve import Outcome, Problem, ProblemKind, Seen

ZEROS, ONE, TWO = ("sha256:" + digit * 64 for digit in "012")
SEEN = Seen(ONE, TWO, 8_920_000_000)


def outcome(seen: Seen | None = SEEN, problem: ProblemKind | None = None, **entry: Any) -> Outcome:
    told = {"repository": "r.example/it", "tag": "v1", "digest": ONE, "platform_digest": TWO, "size_bytes": 8_920_000_000}
    text = None if problem is None else Problem(problem, f"manifest of r.example/it: {problem}", "Mend it")
    return Outcome(Entry("it", **{**told, **entry}), None if problem else seen, text)


def report(*outcomes: Outcome, check: bool = True, written: bool = False) -> Report:
    return Report(Path("x/lock.yml"), outcomes, check, written, 1.5)


def text(*outcomes: Outcome, check: bool = True, written: bool = False) -> str:
    output = StringIO()
    report(*outcomes, check=check, written=written).print(Console(file=output))
    return output.getvalue()


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (outcome(), "locked"),
        (outcome(digest=ZEROS), "new"),
        (outcome(digest=None), "new"),
        (outcome(digest=TWO), "moved"),
        (outcome(size_bytes=None), "incomplete"),
        (outcome(platform_digest=None), "incomplete"),
        (outcome(size_bytes=1), "differs"),
        (outcome(platform_digest=ONE), "differs"),
        (outcome(problem="absent"), "gone"),
        (outcome(problem="tls"), "unknown"),
    ],
)
def test_the_state_of_an_image(found: Outcome, state: str) -> None:
    assert state_of(found) == state


@pytest.mark.parametrize(
    ("outcomes", "check", "code"),
    [
        ([outcome()], True, ExitCode.OK),
        ([outcome(), outcome(digest=TWO)], True, ExitCode.TASK_FAILED),
        ([outcome(digest=ZEROS)], True, ExitCode.TASK_FAILED),
        ([outcome(size_bytes=None)], True, ExitCode.TASK_FAILED),
        ([outcome(digest=TWO)], False, ExitCode.OK),
        ([outcome(problem="absent")], True, ExitCode.TASK_FAILED),
        ([outcome(problem="absent")], False, ExitCode.TASK_FAILED),
        ([outcome(problem="manifest")], False, ExitCode.TASK_FAILED),
        ([outcome(), outcome(problem="unreachable")], True, ExitCode.UNREACHABLE),
        ([outcome(problem="refused"), outcome(problem="entry")], True, ExitCode.UNREACHABLE),
        ([outcome(problem="tls"), outcome(digest=TWO)], True, ExitCode.TASK_FAILED),
        ([outcome(problem="tls"), outcome(problem="absent")], True, ExitCode.TASK_FAILED),
        ([outcome(problem="entry")], False, ExitCode.VALIDATION),
    ],
)
def test_what_is_wrong_wins_over_what_could_not_be_seen(outcomes: Sequence[Outcome], check: bool, code: ExitCode) -> None:
    assert report(*outcomes, check=check).exit_code is code


def test_the_table_shows_what_was_locked_and_what_was_seen() -> None:
    lines = text(outcome(digest=TWO)).splitlines()
    assert lines[0].split() == ["image", "tag", "state", "locked", "seen", "size"]
    assert lines[1].split() == ["it", "v1", "moved", TWO[:19], ONE[:19], "8.31", "GiB"]
    assert lines[2] == "x/lock.yml: 1 moved. Run it without --check to write what was seen; --update NAME takes only that image."


def test_every_problem_is_told_with_its_next_step() -> None:
    told = text(outcome(digest=ZEROS), outcome(problem="absent"), outcome(problem="tls"), check=False)
    assert told.count(". Mend it.") == 2
    assert told.splitlines()[-1] == "x/lock.yml: 1 new, 1 gone, 1 unknown. Nothing was written."
    assert told.splitlines()[1].split()[:4] == ["it", "v1", "new", "-"]


@pytest.mark.parametrize(
    ("found", "check", "written", "end"),
    [
        (outcome(), True, False, "The lock is what the registries have."),
        (outcome(), False, False, "Nothing to write."),
        (outcome(digest=TWO), False, True, "Written; look at the difference before you commit it."),
        (outcome(problem="tls"), True, False, "Nothing is written by --check."),
    ],
)
def test_the_last_line_says_what_was_done(found: Outcome, check: bool, written: bool, end: str) -> None:
    assert text(found, check=check, written=written).rstrip().endswith(end)


def test_a_locked_digest_that_is_gone_is_told() -> None:
    gone = Seen(ONE, TWO, 1, locked_gone=True)
    assert f"it: the locked {TWO} can no longer be had from r.example/it." in text(outcome(gone, digest=TWO))


def test_the_document_is_complete_and_null_is_what_is_not_known() -> None:
    document = json.loads(json.dumps(report(outcome(digest=ZEROS), written=True).document()))
    assert {key: document[key] for key in ("schema", "verb", "check", "exit_code", "outcome", "took_s", "lock", "written")} == {
        "schema": 1,
        "verb": "images lock",
        "check": True,
        "exit_code": 4,
        "outcome": "task_failed",
        "took_s": 1.5,
        "lock": "x/lock.yml",
        "written": True,
    }
    assert document["images"]["it"] == {
        "source": "r.example/it",
        "tag": "v1",
        "architecture": None,
        "state": "new",
        "locked": {"digest": None, "platform_digest": TWO, "size_bytes": 8_920_000_000},
        "seen": {"digest": ONE, "platform_digest": TWO, "size_bytes": 8_920_000_000},
        "locked_gone": None,
        "problem": None,
    }
    problem = report(outcome(problem="tls")).document()["images"]["it"]
    assert (problem["seen"], problem["problem"]["kind"], problem["problem"]["next"]) == (None, "tls", "Mend it")


@pytest.mark.parametrize(
    ("count", "told"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (8_920_000_000, "8.31 GiB"), (2**52, "4096.00 TiB")],
)
def test_sizes_for_people(count: int | None, told: str) -> None:
    assert size(count) == told
