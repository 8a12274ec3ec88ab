"""Summaries: what is counted, what is printed, and which exit code comes out."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from vllm_node.exit_codes import ExitCode, help_text
from vllm_node.progress import LiveView, LogView, elapsed, open_view
from vllm_node.runner import (
    Ended,
    Event,
    FileDiff,
    HostCounts,
    HostResult,
    HostStarted,
    HostState,
    Line,
    NoHosts,
    PlayStarted,
    Stats,
    Tick,
)
from vllm_node.smoke import Measurement
from vllm_node.summary import Summary, failure_text

DIGEST = "sha256:" + "0123456789abcdef" * 4
FINDING = {
    "id": "podman.version",
    "level": "fail",
    "host": "n1",
    "seen": "podman 4.9 [old]",
    "why": "Quadlet keys are missing",
    "mend": "dnf install podman-5.4",
}
REPORT = {
    "host": "n1",
    "rows": [
        {
            "unit": "vllm-tiny.service",
            "image": "registry:5000/vllm",
            "digest": DIGEST,
            "address": "127.0.0.1:8000",
            "state": "healthy",
        }
    ],
    "question": "Who are you?",
    "answers": [{"text": "A model [of few words].", "model": "tiny", "tokens": 7}],
}


def result(state: HostState, task: str = "Task", host: str = "n1", **res: Any) -> HostResult:
    return HostResult(host, task, "role", "some.action", state, 1.0, res)


def summary_of(*events: Event, verb: str = "up", rc: int = 0, check: bool = False, **counts: int) -> Summary:
    summary = Summary(verb, f"vllm-node {verb} -i inv", check=check)
    for event in events:
        summary.take(event)
    summary.take(Stats({"n1": HostCounts(**counts)}))
    summary.take(Ended(rc, False, 12.3))
    return summary


def printed(summary: Summary, terminal: bool = False) -> str:
    out = io.StringIO()
    summary.print(Console(file=out, force_terminal=terminal, width=200, color_system=None))
    return out.getvalue()


def test_success_shows_what_runs_where_and_the_answer() -> None:
    summary = summary_of(result("ok", vllm_node_report=REPORT), ok=3, changed=1)
    text = printed(summary)
    (row,) = [line for line in text.splitlines() if "vllm-tiny.service" in line]
    assert row.split() == [
        "n1",
        "vllm-tiny.service",
        "healthy",
        "127.0.0.1:8000",
        "registry:5000/vllm",
        "sha256:0123456789ab",
    ]
    assert "n1: it answered: A model [of few words]." in text
    assert summary.exit_code is ExitCode.OK
    assert summary.document()["hosts"]["n1"]["rows"][0]["digest"] == DIGEST


def test_a_report_that_comes_twice_is_shown_once() -> None:
    summary = summary_of(result("ok", vllm_node_report=REPORT), result("ok", vllm_node_report=REPORT), ok=2)
    assert printed(summary).count("vllm-tiny.service") == 1


def test_a_report_in_a_loop_item_and_for_another_host_is_found() -> None:
    summary = summary_of(result("ok", results=[{"vllm_node_report": {**REPORT, "host": "n2"}}]), ok=1)
    assert summary.document()["hosts"]["n2"]["answers"][0]["model"] == "tiny"


def with_measurements(*verdicts: str | None, **more: Any) -> Summary:
    """The summary of a bring-up whose instances have these verdicts."""
    told = [
        Measurement(f"i{number}", one, "why", 0.1, 0.02, 1.0, "2026-11-30T05:10:00+00:00", "/r.html").as_dict()
        for number, one in enumerate(verdicts)
    ]
    report = {**REPORT, "measurements": told}
    return summary_of(result("ok", vllm_node_report=report), ok=3, changed=1, **more)


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["pass"], ExitCode.OK),
        (["insufficient"], ExitCode.OK),
        ([None], ExitCode.OK),
        (["fail"], ExitCode.SLO_FAILED),
        (["pass", None, "fail", "insufficient"], ExitCode.SLO_FAILED),
    ],
)
def test_a_bring_up_is_as_good_as_the_worst_verdict_but_not_for_want_of_one(
    verdicts: list[str | None], code: ExitCode
) -> None:
    summary = with_measurements(*verdicts)
    assert summary.exit_code is code
    document = summary.document()
    assert document["exit_code"] == int(code)
    assert [one["verdict"] for one in document["hosts"]["n1"]["measurements"]] == verdicts


def test_measurements_are_told_one_a_line_and_a_broken_slo_with_the_next_step() -> None:
    text = printed(with_measurements("pass", "fail", None))
    assert "n1: i0: PASS, measured 2026-11-30 05:10 UTC; why; TTFT p95 100 ms (measured), " in text
    assert "n1: i1: FAIL, measured" in text
    assert "n1: i2: not measured: why; no earlier verdict is known here\n" in text
    assert "n1: it is up and answers, but i1 does not keep what benchmark_slo promises." in text
    assert "`vllm-node bench run n1 --instance i1`" in text
    assert text.count("promises") == 1
    assert "promises" not in printed(with_measurements("pass", "insufficient"))


def test_a_task_that_failed_weighs_more_than_a_broken_slo() -> None:
    summary = with_measurements("fail", rc=2, failed=1)
    assert summary.exit_code is ExitCode.TASK_FAILED


def test_preflight_text_is_shown_as_it_is_and_says_that_nothing_changed() -> None:
    message = "n1: podman.version\n   seen: podman 4.9 [old]\n   mend: dnf install podman-5.4"
    failing = result("failed", findings=[FINDING], failed=True, msg=message)
    summary = summary_of(failing, rc=2, ok=2, failed=1)
    text = printed(summary)
    assert message in text
    assert "\\n" not in text
    assert "n1: nothing was changed on it." in text
    assert summary.exit_code is ExitCode.VALIDATION


def test_the_preflight_verb_prints_each_finding_once_and_all_hosts() -> None:
    clean = result("ok", host="n2", findings=[])
    failing = result(
        "failed", findings=[FINDING, {**FINDING, "id": "swap", "level": "warn"}], msg="the table"
    )
    summary = summary_of(
        failing, clean, HostStarted("n3", "Snapshot", None), verb="preflight", rc=2, failed=1
    )
    text = printed(summary)
    assert "n1: FAIL podman.version\n    seen: podman 4.9 [old]\n    why:  Quadlet keys are missing\n" in text
    assert "n1: WARN swap" in text
    assert "n2: nothing to complain about" in text
    assert "n3: not judged" in text
    assert "the table" not in text
    hosts = summary.document()["hosts"]
    assert [one["id"] for one in hosts["n1"]["findings"]] == ["podman.version", "swap"]
    assert hosts["n2"]["findings"] == []
    assert hosts["n3"]["findings"] is None


def test_findings_are_a_table_on_a_terminal() -> None:
    summary = summary_of(result("failed", findings=[FINDING], msg="x"), verb="preflight", rc=2, failed=1)
    text = printed(summary, terminal=True)
    assert "how to mend it" in text
    assert "podman 4.9 [old]" in text


def test_warnings_of_a_passed_preflight_are_not_lost() -> None:
    summary = summary_of(result("ok", findings=[{**FINDING, "level": "warn"}]), ok=1)
    assert "n1: warning podman.version: podman 4.9 [old]" in printed(summary)
    assert summary.exit_code is ExitCode.OK


def test_wrong_variables_are_a_validation_failure() -> None:
    failing = result(
        "failed", argument_errors=["x is of the wrong type"], msg="Validation of arguments failed:\nx"
    )
    assert summary_of(failing, rc=2, failed=1).exit_code is ExitCode.VALIDATION


def test_a_failed_task_is_named_with_its_whole_message() -> None:
    failing = result("failed", task="Images are pulled", msg="one\n  two")
    summary = summary_of(result("changed"), failing, rc=2, ok=1, changed=1, failed=1)
    text = printed(summary)
    assert "n1: task failure in: role: Images are pulled\none\n  two\n" in text
    assert "1 task(s) had changed it" in text
    assert "`vllm-node up -i inv`" in text
    assert "vllm-node down" in text
    assert summary.exit_code is ExitCode.TASK_FAILED
    assert summary.document()["hosts"]["n1"]["failure"]["message"] == "one\n  two"


def test_a_rescued_failure_is_not_a_failure() -> None:
    summary = summary_of(result("failed", msg="tried"), ok=2, rescued=1)
    assert summary.exit_code is ExitCode.OK
    assert summary.document()["hosts"]["n1"]["failure"] is None
    assert "tried" not in printed(summary)


def test_of_two_failures_the_one_after_the_rescue_counts() -> None:
    first, last = (
        result("failed", task="Starts", msg="timeout"),
        result("failed", task="Says why", msg="no GPU"),
    )
    text = printed(summary_of(first, last, rc=2, failed=1, rescued=1))
    assert "no GPU" in text
    assert "timeout" not in text


def test_unreachable_has_its_own_code_and_advice() -> None:
    summary = summary_of(result("unreachable", msg="Connection refused"), rc=4, unreachable=1)
    assert summary.exit_code is ExitCode.UNREACHABLE
    text = printed(summary)
    assert "Connection refused" in text
    assert "ansible -m ping n1" in text


def test_a_changed_node_weighs_more_than_an_unreachable_one() -> None:
    summary = Summary("up")
    for event in (result("failed", msg="x"), result("unreachable", host="n2", msg="y")):
        summary.take(event)
    summary.take(Stats({"n1": HostCounts(failed=1), "n2": HostCounts(unreachable=1)}))
    summary.take(Ended(6, False, 1.0))
    assert summary.exit_code is ExitCode.TASK_FAILED


def certificate(**more: Any) -> dict[str, Any]:
    return {"clean": True, "left": [], "kept": [], "difference": [], **more}


def test_a_clean_certificate_is_told_with_its_report() -> None:
    event = result("ok", certificate=certificate(kept=["images"]), report_files=["/tmp/r/n1.json"])
    summary = summary_of(event, verb="down", ok=1)
    text = printed(summary)
    assert "n1: clean: the node is as it was found" in text
    assert "kept on purpose: images" in text
    assert "report: /tmp/r/n1.json" in text
    assert summary.exit_code is ExitCode.OK


@pytest.mark.parametrize("state", ["ok", "failed"])
def test_something_left_over_is_told_whether_or_not_the_task_failed(state: HostState) -> None:
    left = certificate(clean=False, left=["/etc/cdi/x.yaml"], difference=[{"path": "/etc/cdi"}])
    event = result(state, certificate=left, msg="not clean")
    failed = state == "failed"
    summary = summary_of(event, verb="down", rc=2 if failed else 0, failed=int(failed), ok=1)
    assert summary.exit_code is ExitCode.LEFT_OVER
    text = printed(summary)
    assert "n1: NOT clean" in text
    assert "left over: /etc/cdi/x.yaml" in text
    assert 'different from as found: {"path": "/etc/cdi"}' in text


def test_down_without_a_certificate_proves_nothing() -> None:
    summary = summary_of(result("ok"), verb="down", ok=1)
    assert summary.exit_code is ExitCode.LEFT_OVER
    assert "no certificate was issued" in printed(summary)
    assert summary_of(result("ok"), verb="down", ok=1, check=True).exit_code is ExitCode.OK


def test_no_matching_host_is_no_success() -> None:
    summary = Summary("up")
    for event in (NoHosts("The play"), Stats({}), Ended(0, False, 0.4)):
        summary.take(event)
    assert summary.exit_code is ExitCode.USAGE
    assert "No host matched" in printed(summary)


def test_an_early_stop_shows_what_ansible_said() -> None:
    summary = Summary("up")
    for event in (Line("ERROR! vault password missing", None, "output"), Ended(1, False, 0.4)):
        summary.take(event)
    assert summary.exit_code is ExitCode.USAGE
    text = printed(summary)
    assert "ERROR! vault password missing" in text
    assert "--vault-password-file" in text
    assert summary.document()["error"] == "ERROR! vault password missing"


@pytest.mark.parametrize("rc", [250, None, 1])
def test_a_stop_in_the_middle_is_an_internal_error(rc: int | None) -> None:
    summary = Summary("up")
    for event in (result("ok"), Ended(rc, False, 0.4)):
        summary.take(event)
    assert summary.exit_code is ExitCode.INTERNAL


def test_an_unexplained_code_of_ansible_is_not_taken_for_success() -> None:
    assert summary_of(result("ok"), ok=1, rc=2).exit_code is ExitCode.TASK_FAILED


def test_an_interrupted_run_says_where_it_was_and_how_to_go_on() -> None:
    summary = Summary("up", "vllm-node up -i inv")
    for event in (HostStarted("n1", "Images are pulled", "images"), Ended(None, True, 3.0)):
        summary.take(event)
    text = printed(summary)
    assert summary.exit_code is ExitCode.INTERRUPTED
    assert "n1: was in the middle of: images: Images are pulled" in text
    assert "To go on: `vllm-node up -i inv`" in text
    assert "vllm-node down" in text


def test_check_mode_lists_changes_and_claims_none() -> None:
    diff = FileDiff("n1", "Unit", "role", "--- before")
    summary = summary_of(
        diff, result("changed", task="Unit"), result("changed", task="Other"), check=True, changed=2
    )
    assert summary.document()["hosts"]["n1"]["changes"] == [
        {"task": "role: Unit", "diff": "--- before"},
        {"task": "role: Other", "diff": None},
    ]
    text = printed(summary)
    assert "would change" in text
    assert "nothing was changed" in text


def test_the_document_is_json_and_has_the_counts() -> None:
    document = json.loads(json.dumps(summary_of(result("ok"), ok=4, changed=2, skipped=1).document()))
    assert document["outcome"] == "ok"
    assert document["took_s"] == 12.3
    assert document["hosts"]["n1"]["counts"] == {
        "ok": 4,
        "changed": 2,
        "failed": 0,
        "unreachable": 0,
        "skipped": 1,
        "ignored": 0,
        "rescued": 0,
    }


@pytest.mark.parametrize(
    ("res", "text"),
    [
        ({"msg": "a\nb"}, "a\nb"),
        ({"msg": ["a", "b"]}, "a\nb"),
        ({"censored": "hidden"}, "hidden"),
        (
            {"msg": "non-zero return code", "cmd": ["false", "x"], "rc": 1, "stderr": "why", "stdout": ""},
            "non-zero return code\ncommand: false x\nexit code: 1\nwhy",
        ),
        (
            {
                "msg": "One or more items failed",
                "results": [{"item": "a"}, {"item": "b", "failed": True, "msg": "no"}],
            },
            "b: no",
        ),
        ({"exception": "(traceback unavailable)"}, "the task failed without a message"),
        ({"exception": "Traceback: x"}, "Traceback: x"),
        ({"msg": "MODULE FAILURE", "module_stderr": "boom"}, "MODULE FAILURE\nboom"),
    ],
)
def test_failure_text_is_complete(res: dict[str, Any], text: str) -> None:
    assert failure_text(res) == text


def test_each_exit_code_is_documented() -> None:
    for code in ExitCode:
        assert f"{code.value:>4}  {code.meaning}" in help_text()


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def log_of(*steps: Event | float) -> list[str]:
    clock, out = Clock(), io.StringIO()
    view = LogView(Console(file=out, width=20), clock)
    for step in steps:
        if isinstance(step, float):
            clock.now += step
        else:
            view.show(step)
    return out.getvalue().splitlines()


def test_a_log_has_one_line_a_task_however_narrow_it_is() -> None:
    started = HostStarted("n1", "Unit is installed", "vllm")
    ended = HostResult("n1", "Unit is installed", "vllm", "template", "changed", 3.21, {})
    assert log_of(PlayStarted("p"), started, 65.0, ended)[-1] == (
        "n1: vllm: Unit is installed … changed (3.2 s, total 1:05)"
    )


def test_a_log_does_not_tell_what_was_skipped_or_only_included() -> None:
    skipped = HostResult("n1", "t", None, "debug", "skipped", 0.1, {})
    include = HostResult("n1", "t", None, "ansible.builtin.include_role", "ok", 0.1, {})
    assert log_of(HostStarted("n1", "t", None), skipped, include) == []


def test_a_long_task_speaks_up_in_a_log() -> None:
    started = HostStarted("n1", "Pull", None)
    progress = Line("layer 3 of 8", "n1", "progress")
    assert log_of(started, 9.0, progress, Tick()) == []
    assert log_of(started, 11.0, progress, Tick()) == ["n1: Pull … layer 3 of 8 (so far 11.0 s)"]
    assert log_of(started, 11.0, progress, Tick(), 5.0, progress, Tick()) == [
        "n1: Pull … layer 3 of 8 (so far 11.0 s)"
    ]
    assert log_of(started, 31.0, Tick()) == ["n1: Pull … still at it (so far 31.0 s)"]


def test_progress_of_one_host_is_not_shown_at_another() -> None:
    started = [HostStarted(host, "Pull", None) for host in ("n1", "n2")]
    lines = log_of(*started, 11.0, Line("layer 3", "n2", "progress"), Tick())
    assert lines == ["n2: Pull … layer 3 (so far 11.0 s)"]


def test_warnings_errors_and_diffs_are_shown() -> None:
    lines = log_of(Line("careful", None, "warning"), FileDiff("n1", "Unit", "role", "+new"), NoHosts("p"))
    assert lines == ["careful", "n1: role: Unit", "+new", "no host matched the play p"]


def test_the_live_region_shows_host_task_time_and_last_line() -> None:
    clock, out = Clock(), io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, color_system=None)
    view = LiveView(console, "up", clock)
    with view:
        view.show(PlayStarted("Nodes"))
        view.show(HostStarted("n1", "Pull", "images"))
        view.show(HostStarted("n2", "Pull", "images"))
        view.show(Line("layer 3 of 8", "n1", "progress"))
        view.show(HostResult("n2", "Pull", "images", "x", "ok", 0.5, {}))
        clock.now += 75
        view.draw_now()
    text = out.getvalue()
    (row,) = [line for line in text.splitlines() if "layer 3 of 8" in line and "1:15" in line][:1]
    assert "n1" in row
    assert "images: Pull" in row
    assert "up  1:15  Nodes" in text


def test_the_view_fits_the_console() -> None:
    assert isinstance(open_view(Console(file=io.StringIO()), "up"), LogView)
    assert isinstance(open_view(Console(file=io.StringIO(), force_terminal=True), "up"), LiveView)


@pytest.mark.parametrize(("seconds", "text"), [(3.21, "3.2 s"), (65.9, "1:05"), (3723, "1:02:03")])
def test_times_are_short(seconds: float, text: str) -> None:
    assert elapsed(seconds) == text
