"""The end of a bring-up: complaints about answers, and one line for what is known of an instance's speed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.role_code import ROOT
from tests.unit.run_documents import answers, client, run, step
from vllm_node import smoke
from vllm_node.load.slo import Slo
from vllm_node.paths import runs_dir
from vllm_node.plugins.filter.smoke import FilterModule
from vllm_node.smoke import Measurement, Verdict

REPORTS = ["/runs/run.json", "/runs/report.md", "/runs/report.html"]


def answered(name: str = "tiny", **failed: str) -> dict[str, Any]:
    """A result of `smoke_check` in the role's loop; `failed` is what was seen by check."""
    checks = [{"check": check, "outcome": "pass", "seen": "good"} for check in smoke.NEXT if check not in failed]
    checks += [{"check": check, "outcome": "fail", "seen": seen} for check, seen in failed.items()]
    return {"instance": {"name": name, "port": 8000}, "checks": checks}


def measured(verdict: str, reason: str | None = None, **client_part: Any) -> Measurement:
    found = {"verdict": verdict, "reasons": [reason, "and more"] if reason else [], "sustainable_rate_per_s": None, "how": ""}
    return Measurement.of(run([step(1.0, [client(**client_part)])], kind="smoke", verdict=found), REPORTS)


def test_a_complaint_names_host_instance_check_what_was_seen_and_the_next_step() -> None:
    failing = answered("big", **{"the model is listed": "other", "a check of tomorrow": "x"})
    found = smoke.complaints("gpu1", [answered(), failing])
    assert len(found) == 2
    for word in ("gpu1", "instance big", "'the model is listed'", "seen other", "next: look which program"):
        assert word in found[0]
    assert "journalctl -u vllm-big, on gpu1" in found[1]


def test_of_an_instance_that_is_silent_only_that_is_told() -> None:
    silent = dict.fromkeys((*smoke.NEXT, "the instance answers"), "no answer")
    (one,) = smoke.complaints("gpu1", [answered(**silent)])
    assert "'the instance answers'" in one
    assert "journalctl -u vllm-tiny" in one


def test_without_a_failed_check_there_is_no_complaint() -> None:
    complain = FilterModule().filters()["smoke_complaints"]
    assert complain([answered(), answered("big")], "gpu1") == []
    assert complain([answered(**{"the model is listed": "other"})], "gpu1")


def test_every_check_of_the_module_has_a_next_step() -> None:
    text = (ROOT / "roles/smoke/library/smoke_check.py").read_text()
    checks = set(re.findall(r'yield "([^"]+)"', text)) | set(re.findall(r'{"check": "([^"]+)"', text))
    assert checks - {"the instance answers"} == set(smoke.NEXT)


def test_a_line_has_verdict_reason_figures_with_their_word_and_the_report() -> None:
    told = smoke.line(measured("fail", "1 requests/s: ttft_p95_s: 0.2 s of at most 0.1 s").as_dict())
    assert told == (
        "tiny: FAIL, measured 2026-11-30 02:47 UTC; 1 requests/s: ttft_p95_s: 0.2 s of at most 0.1 s; "
        "TTFT p95 213.0 ms (measured), TPOT p95 25 ms (derived), completed 8 requests/s (derived); "
        "report: /runs/report.html"
    )


def test_figures_are_those_of_the_document() -> None:
    document = run([step(1.0, [client()])])
    found = Measurement.of(document, REPORTS)
    of = document["steps"][0]["repeats"][0]["client"]
    assert (found.ttft_p95_s, found.tpot_p95_s, found.completed_per_s) == (
        of["latency"]["ttft_scheduled_s"]["p95"],
        of["latency"]["tpot_s"]["p95"],
        of["rates"]["completed_per_s"],
    )


def test_a_figure_that_cannot_be_had_is_a_word_and_gets_none_of_the_labels() -> None:
    told = smoke.line(measured("insufficient", "too few", records=answers(5)).as_dict())
    assert "TTFT p95 insufficient, TPOT p95 insufficient, completed " in told
    document = run([], verdict={"verdict": "insufficient", "reasons": ["no stage was run"], "sustainable_rate_per_s": None})
    told = smoke.line(Measurement.of(document, REPORTS).as_dict())
    assert told == "tiny: INSUFFICIENT, measured 2026-11-30 02:47 UTC; no stage was run; report: /runs/report.html"


def test_a_pass_has_no_reason() -> None:
    assert measured("pass").reason is None
    assert "tiny: PASS, measured 2026-11-30 02:47 UTC; TTFT p95" in smoke.line(measured("pass").as_dict())


def test_a_measurement_is_json() -> None:
    known = Measurement("tiny", reason="x", before=Verdict("pass", "then", None)).as_dict()
    assert json.loads(json.dumps(known)) == known


def write(folder: Path, name: str, **other: Any) -> Path:
    place = folder / "gpu1" / name
    place.mkdir(parents=True)
    (place / "run.json").write_text(json.dumps(run(kind="smoke", **other)))
    (place / "report.html").write_text("")
    return place


def test_the_last_verdict_is_the_newest_smoke_benchmark_of_that_instance(tmp_path: Path) -> None:
    write(tmp_path, "2026-11-28T000000Z-smoke")
    kept = write(tmp_path, "2026-11-29T000000Z-smoke", ended_at="2026-11-29T00:01:00+00:00")
    write(tmp_path, "2026-11-30T000000Z-smoke", instance="big")
    write(tmp_path, "2026-11-30T000001Z-smoke").joinpath("run.json").write_text(json.dumps(run()))
    write(tmp_path, "2026-11-30T000002Z-smoke").joinpath("run.json").write_text("{half")
    write(tmp_path, "2026-11-30T000003Z-chat")
    found = smoke.last("gpu1", "tiny", str(tmp_path))
    assert found == Verdict("pass", "2026-11-29T00:01:00+00:00", str(kept / "report.html"))
    assert smoke.last("gpu2", "tiny", str(tmp_path)) is None
    (kept / "report.html").unlink()
    again = smoke.last("gpu1", "tiny", str(tmp_path))
    assert again is not None
    assert again.report == str(kept / "run.json")


def test_runs_lie_where_the_benchmark_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "XDG_STATE_HOME", "/state")
    assert runs_dir() == Path("/state/vllm-node/bench")
    assert runs_dir("/elsewhere") == Path("/elsewhere")


def test_what_was_not_measured_says_why_and_has_the_verdict_before(tmp_path: Path) -> None:
    write(tmp_path, "2026-11-29T000000Z-smoke")
    write(tmp_path, "2026-11-29T000001Z-smoke", instance="new")
    fresh = measured("pass").as_dict() | {"instance": "new"}
    refused = Measurement("busy", reason="it serves others").as_dict()
    told = smoke.settled(
        "gpu1", ["tiny", "new", "busy"], {"new": fresh, "busy": refused}, "it has not started", str(tmp_path)
    )
    assert [smoke.line(one).split("; ")[0] for one in told] == [
        "tiny: not measured: it has not started",
        "new: PASS, measured 2026-11-30 02:47 UTC",
        "busy: not measured: it serves others",
    ]
    assert "last measured 2026-11-30 02:47 UTC: PASS" in smoke.line(told[0])
    assert told[1]["before"] is None
    assert smoke.line(told[2]).endswith("no earlier verdict is known here")


def test_the_load_cannot_hurt_and_gives_enough_samples() -> None:
    for path in ("roles/smoke/defaults/main.yml", "inventories/lab/group_vars/all/main.yml"):
        known = yaml.safe_load((ROOT / path).read_text())
        assert known["smoke_rate"] * (known["smoke_duration_s"] - known["smoke_lead_in_s"]) > 30
        assert known["smoke_duration_s"] <= 120
    defaults = yaml.safe_load((ROOT / "roles/smoke/defaults/main.yml").read_text())
    # More in flight than this at one request a second means that answers take far longer than any SLO allows.
    assert defaults["smoke_max_in_flight"] <= 16
    assert Slo(**yaml.safe_load((ROOT / "roles/benchmark/defaults/main.yml").read_text())["benchmark_slo"])
