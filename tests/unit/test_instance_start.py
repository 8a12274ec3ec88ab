"""What the module tells of a start: the lines of the run that goes on, and a reason for each that is not there."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.node_code import utils
from tests.unit.role_code import answers, calls, load, on_path, program, run_module

host_code = utils("snapshot_host")
JOURNAL = """non-default args: {'max_num_seqs': 1}
(APIServer pid=1) INFO non-default args: {'max_num_seqs': 4}
(EngineCore pid=2) INFO Initializing a V1 LLM engine (v0.33.0) with config: max_seq_len=2048"""
RUNS = (0, "ActiveState=active\nInvocationID=0123abcd")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setattr(host_code, "_PATH", str(tmp_path))
    on_path(monkeypatch, tmp_path)
    found = load("roles/explain/library/instance_start.py")
    found.folder = tmp_path
    return found


def told(module: Any, capsys: pytest.CaptureFixture[str], state: tuple[int, str], journal: tuple[int, str]) -> Any:
    program(module.folder, "systemctl", answers({"show": state}))
    program(module.folder, "journalctl", answers({"": journal}))
    return run_module(module, capsys, instance="tiny", gpus=False)["start"]


def test_the_last_lines_of_the_run_that_goes_on_are_told(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(module, capsys, RUNS, (0, JOURNAL))
    assert found["arguments"].endswith("{'max_num_seqs': 4}")
    assert "(v0.33.0)" in found["engine"]
    assert found["chunked"] is None
    assert found["devices"] is None
    assert [row["what"] for row in found["unseen"]] == ["chunked"]
    assert "_SYSTEMD_INVOCATION_ID=0123abcd" in calls(module.folder, "journalctl")[0]
    assert "vllm-tiny.service" in calls(module.folder, "systemctl")[0]


@pytest.mark.parametrize(
    ("state", "journal", "why"),
    [
        ((0, "ActiveState=failed\nInvocationID=01"), (0, JOURNAL), "vllm-tiny.service is failed"),
        ((0, "ActiveState=active\nInvocationID="), (0, JOURNAL), "systemd names no run"),
        ((1, "no bus"), (0, JOURNAL), "systemctl show: exit code 1"),
        (RUNS, (1, ""), "not in the journal of this run"),
        (RUNS, (2, "no access"), "journalctl: exit code 2"),
    ],
)
def test_what_cannot_be_read_has_a_reason(
    module: Any, capsys: pytest.CaptureFixture[str], state: tuple[int, str], journal: tuple[int, str], why: str
) -> None:
    found = told(module, capsys, state, journal)
    assert [found[kind] for kind in ("arguments", "engine", "chunked")] == [None] * 3
    assert all(why in row["why"] for row in found["unseen"])
    assert len(found["unseen"]) == 3


def test_the_journals_own_search_finds_the_lines(module: Any) -> None:
    """PCRE, as journalctl has it, reads the words as they stand: grep -P does the same."""
    pattern = "|".join(module.LINES.values())
    done = subprocess.run(["/usr/bin/grep", "-cP", pattern], input=JOURNAL, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "3"
