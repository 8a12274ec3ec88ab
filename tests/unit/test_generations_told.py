"""What is said of a history and of a rollback: what failed, what the node is now, and what the inventory has to say."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from tests.unit.role_code import ROOT
from vllm_node.exit_codes import ExitCode
from vllm_node.generations import run, told
from vllm_node.generations.summary import HistorySummary, RollbackSummary
from vllm_node.plugins.filter.generations import generation_complaints, generation_images, generation_units
from vllm_node.runner import Ended, HostCounts, HostResult, Stats

OLD, NEW = ("registry.site.example:5000/vllm@sha256:" + letter * 64 for letter in "ab")
UNIT = {"unit": "vllm-chat.service", "component": "vllm", "image": "vllm", "ready": {"kind": "vllm", "url": "u"}}
SAID = """gpu1: vllm-chat.service is not ready after 31 s: failed (exit-code), restarted 3 times
its last lines:
  | unrecognized arguments: --no-such-flag
likely cause: vLLM does not know that flag
next: journalctl -u vllm-chat.service on gpu1"""


def generation(number: int, outcome: str, image: str, **more: Any) -> dict[str, Any]:
    one = {"number": number, "outcome": outcome, "images": {"vllm-chat": image}, "units": [UNIT], "begun_at": 1_800_000_000}
    return {**one, "verb": "up", "who": "root at desk", "changes": [], "reason": None, "back_to": None, **more}


def chosen(**more: Any) -> dict[str, Any]:
    history = [generation(1, "ready", OLD), generation(2, "failed", NEW)]
    changes = ["vllm-chat: image b → a", "vllm-chat: --max-num-seqs 64 → 32"]
    return {"generations": history, "target": history[0], "why": None, "secrets": [], "changes": changes, **more}


def test_a_reason_is_the_first_line_and_the_likely_cause() -> None:
    reason = told.reason_of("gpu1", SAID)
    assert reason.startswith("vllm-chat.service is not ready after 31 s")
    assert reason.endswith("; likely cause: vLLM does not know that flag")
    assert told.reason_of("gpu1", "it died\nlikely cause: not one that is known; the lines above are all") == "it died"
    assert told.reason_of("gpu1", "") == ""
    assert len(told.reason_of("gpu1", "x" * 5000)) == 600


def test_a_failed_upgrade_says_what_failed_where_the_node_is_and_what_to_do() -> None:
    returned = told.Returned.of("gpu1", chosen(said=SAID))
    text = returned.text()
    assert returned.back
    assert "unrecognized arguments: --no-such-flag" in text
    assert "likely cause: vLLM does not know that flag" in text
    assert f"it is back on generation 1 since {returned.since}" in text
    assert f"vllm-chat: {OLD}" in text
    assert f"images_lock.vllm: repository registry.site.example:5000/vllm, digest sha256:{'a' * 64}" in text
    assert "--max-num-seqs 64 → 32" in text
    assert "vllm-node upgrade" in text
    assert all(line.startswith("gpu1: ") for line in text.splitlines())
    assert "gpu1:   gpu1:" not in text
    assert [line for line in text.splitlines() if "next: " in line] == text.splitlines()[-1:]


def test_secrets_that_did_not_come_back_are_named() -> None:
    assert "not what they were then: grafana-admin-password" in told.Returned.of(
        "gpu1", chosen(secrets=["grafana-admin-password"])
    ).text()


def test_a_node_that_could_not_go_back_is_not_said_to_be_back() -> None:
    returned = told.Returned.of("gpu1", chosen(said=SAID), "the image is gone")
    assert not returned.back
    assert "could NOT go back to generation 1" in returned.text()
    assert "the image is gone" in returned.text()
    assert "is back on" not in returned.text()


def test_where_there_was_nothing_to_go_back_to_it_says_why() -> None:
    returned = told.Returned.of("gpu1", {"generations": [], "target": None, "why": "nothing was ever ready", "said": SAID})
    assert not returned.back
    assert "nothing was rolled back: nothing was ever ready" in returned.text()


def test_check_mode_claims_nothing() -> None:
    returned = told.Returned.of("gpu1", chosen(), dry=True)
    assert not returned.back
    assert "it would go back to generation 1" in returned.text()
    assert "now" not in returned.text()


def test_a_unit_whose_name_in_the_lock_is_unknown_is_named_by_itself() -> None:
    target = generation(1, "found", OLD, units=[])
    assert told.advice(generation(2, "ready", NEW, units=[]), target)[0].startswith("the entry of images_lock for vllm-chat")
    assert told.advice(target, target) == []


def test_a_history_is_told_newest_first_and_nothing_unfinished_is_called_ready() -> None:
    history = [generation(1, "ready", OLD), generation(2, "applied", NEW), {"number": 3, "outcome": "damaged", "reason": "torn"}]
    rows = told.rows(history)
    assert [row[0] for row in rows] == ["3", "2", "1"]
    assert [row[4] for row in rows] == ["damaged", "interrupted, or still at work", "ready"]
    assert rows[0][5] == " (torn)"
    assert rows[2][1] == "2027-01-15 08:00:00 UTC"
    text = told.history("gpu1", {"generations": history, "differs": ["/a", "/b", "/c", "/d"]})
    assert text.splitlines()[-1] == "gpu1: changed by hand since: /a, /b, /c and 1 more"
    assert "no generation is on record" in told.history("gpu1", {"generations": [], "differs": []})


def test_a_rollback_says_where_it_went_back_to() -> None:
    assert told.rows([generation(3, "ready", OLD, verb="rollback", back_to=1)])[0][2] == "rollback to 1"
    itself = generation(3, "ready", OLD, verb="upgrade", back_to=1, instead_of=2)
    assert told.rows([itself])[0][2] == "rollback to 1 by itself"


def test_a_run_has_one_id_and_the_name_of_its_verb() -> None:
    assert run.run_id({run.FACT: "abc"}) == "abc"
    assert run.run_id({}) != run.run_id({})
    assert [run.described("x", [book])["verb"] for book in ("playbooks/site.yml", "/a/upgrade.yml")] == ["up", "upgrade"]
    assert run.described("x", [])["verb"] == "a playbook"


def test_images_of_a_generation_are_pulled_once_each() -> None:
    images = {"b": OLD, "a": OLD, "c": NEW}
    assert generation_images({"images": images}) == [{"name": "a", "reference": OLD}, {"name": "c", "reference": NEW}]


def test_instances_are_named_by_their_units() -> None:
    assert generation_units({"units": [UNIT, {"unit": "gpu-cdi-ready.service"}]}, "vllm") == [UNIT]
    checks = [{"check": "the model is listed", "outcome": "fail", "seen": "nothing"}]
    assert "instance chat fails" in generation_complaints([{"unit": UNIT, "checks": checks}], "gpu1")[0]


def _summary(kind: Any, *, failed: bool, **result: Any) -> Any:
    summary = kind("upgrade", "vllm-node upgrade -i x")
    summary.take(HostResult("gpu1", "Task", "rollback", "x", "failed" if failed else "ok", 1.0, result))
    summary.take(Stats({"gpu1": HostCounts(ok=1, failed=int(failed))}))
    summary.take(Ended(2 if failed else 0, False, 1.0))
    return summary


@pytest.mark.parametrize(
    ("problem", "failed", "code"),
    [(None, True, ExitCode.ROLLED_BACK), ("no", True, ExitCode.TASK_FAILED), (None, False, ExitCode.OK)],
)
def test_only_a_node_that_is_back_has_the_code_of_a_rollback(problem: str | None, failed: bool, code: ExitCode) -> None:
    returned = told.Returned.of("gpu1", chosen(said=SAID if failed else None), problem)
    summary = _summary(RollbackSummary, failed=failed, rollback=returned.as_dict(), msg=returned.text())
    assert summary.exit_code is code
    assert summary.document()["hosts"]["gpu1"]["rollback"]["number"] == 1
    page = io.StringIO()
    summary.print(Console(file=page, width=200))
    # Once, with the failure or before it.
    assert page.getvalue().count("generation 1 since") == (problem is None)


@pytest.mark.parametrize(("verb", "call"), [("rollback", "vllm-node rollback -i x gpu1"), ("upgrade", "-i x --limit gpu1")])
def test_the_call_to_repeat_is_one_that_works(verb: str, call: str) -> None:
    summary = RollbackSummary(verb, f"vllm-node {verb} -i x --limit gpu1")
    summary.take(HostResult("gpu1", "T", None, "x", "failed", 1.0, {"msg": "m"}))
    summary.take(Stats({"gpu1": HostCounts(failed=1, changed=1)}))
    summary.take(Ended(2, False, 1.0))
    page = io.StringIO()
    summary.print(Console(file=page, width=200))
    assert call in page.getvalue()
    assert ("without --to" in page.getvalue()) == (verb == "rollback")


def test_a_second_node_that_failed_otherwise_keeps_its_code() -> None:
    returned = told.Returned.of("gpu1", chosen(said=SAID))
    summary = RollbackSummary("upgrade")
    summary.take(HostResult("gpu1", "T", None, "x", "failed", 1.0, {"rollback": returned.as_dict(), "msg": "m"}))
    summary.take(HostResult("gpu2", "T", None, "x", "failed", 1.0, {"msg": "the disk is full"}))
    summary.take(Stats({name: HostCounts(failed=1) for name in ("gpu1", "gpu2")}))
    summary.take(Ended(2, False, 1.0))
    assert summary.exit_code is ExitCode.TASK_FAILED


def test_a_history_is_printed_and_told_to_a_program() -> None:
    history = {"generations": [generation(1, "ready", OLD, changes=["first: vllm-chat"])], "differs": ["/etc/x"]}
    summary = _summary(HistorySummary, failed=False, history=history)
    page = io.StringIO()
    summary.print(Console(file=page, width=200))
    assert "first: vllm-chat" in page.getvalue()
    assert "changed by hand since: /etc/x" in page.getvalue()
    assert json.loads(json.dumps(summary.document()))["hosts"]["gpu1"]["history"] == history


def _roles(path: Path) -> list[str]:
    """Roles of a playbook in their order, in `roles` or in tasks of a block."""
    play = yaml.safe_load(path.read_text())[0]
    found = [one if isinstance(one, str) else one["role"] for one in play["roles"]]
    for task in play.get("tasks") or []:
        found += [one["ansible.builtin.import_role"]["name"] for one in task["block"]]
    return found


def test_an_upgrade_does_what_a_bring_up_does() -> None:
    assert _roles(ROOT / "playbooks/upgrade.yml") == _roles(ROOT / "playbooks/site.yml")
