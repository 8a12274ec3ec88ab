"""The report: what it shows of a hypothesis, what it says of two that look alike, and the page made of the table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.diagnosis_values import WELL
from tests.unit.node_code import ROOT
from vllm_node.diagnosis import report
from vllm_node.diagnosis.diagnosis import Diagnosis, diagnose
from vllm_node.diagnosis.facts import Facts, Instance
from vllm_node.diagnosis.hypotheses import BY_ID, HYPOTHESES, fill
from vllm_node.diagnosis.hypothesis import MEANING, Next, Verdict
from vllm_node.diagnosis.look import expression
from vllm_node.diagnosis.page import page
from vllm_node.diagnosis.signals import SIGNALS, expressions
from vllm_node.docs import BEGIN, END, _between, _table

AT = 1_777_894_200.0  # 2026-05-04 11:30:00 UTC
CHAT = Instance("chat", 8000, ("0", "1"))


def found(changes: Mapping[str, float | None], *several: Instance, **facts: Any) -> Diagnosis:
    """A diagnosis of a node whose Prometheus knows these values; None is a series that it has not."""
    values = {**WELL, **changes}
    answers: dict[str, dict[str, Any]] = {
        name: {"result": [] if values[name] is None else [{"labels": {}, "value": values[name]}], "error": None}
        for name in expressions()
    }
    names = several or (CHAT,)
    return diagnose(Facts("gpu1", AT, 900, answers, names, prometheus_url="http://127.0.0.1:9091", **facts))


FULL = {"kv_use": 0.98, "waiting": 23.0, "preemptions": 0.41, "queue_p95": 3.7, "deferred_share": None}
TEXT = """\
gpu1, instance chat
  SUPPORTED  kv_pressure: The KV cache is too small for this load: requests wait for blocks, or lose theirs (3 independent observations)
    for      KV cache in use, mean: 0.98 (measured, 15m), above 0.95
    for      requests waiting, mean: 23 (measured, 15m), above 10
    for      preemptions for each finished request: 0.41 (derived, 15m), above 0.2
    against  queue time, p95: 3.7 s (derived, 15m), below 5 s
    unseen   share of waiting requests that something else than capacity holds back: no such series in Prometheus
"""


def test_the_report_of_a_full_cache() -> None:
    text = report.text(found(FULL))
    assert text.startswith("gpu1: diagnosis of 15m, from 2026-05-04 11:15:00 UTC to 2026-05-04 11:30:00 UTC\n")
    assert TEXT in text
    assert "    next     " in text.partition(TEXT)[2].splitlines()[0]
    assert "gpu1$ curl -sG http://127.0.0.1:9091/api/v1/query --data-urlencode 'query=max_over_time(" in text
    assert 'vllm:kv_cache_usage_perc{instance="chat"}[15m]' in text


def test_every_number_says_how_it_was_obtained_and_over_what() -> None:
    lines = [line for line in report.text(found(FULL)).splitlines() if line.startswith(("    for ", "    against "))]
    assert len(lines) >= 4
    assert [line for line in lines if not any(f"({one}, " in line for one in ("measured", "derived", "inferred"))] == []


def test_what_is_unobservable_is_never_shown_as_a_number() -> None:
    text = report.text(found(dict.fromkeys(expressions())))
    assert "No hypothesis is supported" in text
    assert "SUPPORTED" not in text
    assert "for      " not in text
    assert "unobservable: kv_pressure: 'KV cache in use, mean' (no such series in Prometheus)\n" in text


def test_what_follows_from_something_else_is_said() -> None:
    late = {"ttft_p95": 9.0, "queue_share": 0.9}
    diagnosis = found({**FULL, **late})
    assert ("kv_pressure", "queueing") in [(one.cause, one.follows) for one in diagnosis.consequences]
    assert "queueing would follow from kv_pressure: look at kv_pressure first." in report.text(diagnosis)
    assert diagnosis.ties == []


def test_two_that_rest_on_the_same_signs_are_not_told_apart() -> None:
    # An XID that points to hardware is a sign of a bad link and of a bad GPU.
    faults = {"xid_hardware": 1.0, "ecc": 2.0, "pcie_replays": 9000.0}
    diagnosis = found(faults)
    ((one, other),) = [tie.hypotheses for tie in diagnosis.ties]
    assert {one, other} == {"link_fault", "gpu_fault"}
    text = report.text(diagnosis)
    assert "both rest on: XIDs that point to the GPU or its links." in text
    assert "do not tell them apart" in text


def test_a_matter_of_the_node_is_weighed_against_one_of_an_instance() -> None:
    instance_and_node = {"cpu": 0.98, "cpu_pressure": 0.5, "api_cpu": 0.99, "frontend_share": 0.6, "gpu_util": 20.0}
    diagnosis = found({**instance_and_node, "queue_share": 0.1})
    assert ("host_cpu", "frontend_bound") in [(one.cause, one.follows) for one in diagnosis.consequences]


def test_the_strongest_comes_first() -> None:
    diagnosis = found({**FULL, "ttft_p95": 9.0, "queue_share": 0.9, "deferred_share": 0.9})
    ranks = [list(Verdict).index(one.verdict) for one in diagnosis.cases[0].judgements]
    assert ranks == sorted(ranks)
    strong = diagnosis.cases[0].of(diagnosis.cases[0].judgements[0].verdict)
    assert [len(one.families) for one in strong] == sorted((len(one.families) for one in strong), reverse=True)


def test_each_instance_has_a_part_and_the_node_comes_last() -> None:
    text = report.text(found({}, CHAT, Instance("embed", 8001)))
    assert text.index("gpu1, instance chat") < text.index("gpu1, instance embed") < text.index("gpu1, the node")


@pytest.mark.parametrize(
    ("changes", "facts", "note"),
    [
        ({"restarts": 1.0}, {}, "instance chat was restarted lately"),
        ({"process_age": 60.0}, {}, "instance chat was restarted lately"),
        ({"process_age": 0.0}, {}, "instance chat was restarted lately"),
        ({"prometheus_age": 60.0}, {}, "Prometheus is younger than the window"),
        ({}, {"snapshot": {"unseen": [{"what": "gpu.devices", "why": "hangs"}]}}, "could not see everything: gpu.devices"),
    ],
)
def test_what_limits_the_figures_is_noted(changes: dict[str, float | None], facts: dict[str, Any], note: str) -> None:
    assert note in report.text(found(changes, **facts))
    assert "note:" not in report.text(found({}))


def test_refused_questions_are_noted() -> None:
    diagnosis = found({})
    answers = {**diagnosis.facts.answers, "waiting": {"result": [], "error": "timeout: too slow"}}
    text = report.text(diagnose(Facts("gpu1", AT, 900, answers, [CHAT])))
    assert f"Prometheus refused 1 of {len(answers)} questions: timeout: too slow" in text


def test_the_document_holds_every_signal_and_is_json() -> None:
    document = json.loads(json.dumps(report.document(found(FULL)), allow_nan=False))
    assert document["schema"] == 1
    assert [one["instance"] for one in document["subjects"]] == ["chat", None]
    chat = document["subjects"][0]
    assert set(chat["signals"]) == set(SIGNALS)
    assert chat["signals"]["kv_use"] == {
        "means": "KV cache in use, mean",
        "value": 0.98,
        "why_missing": None,
        "unit": "ratio",
        "obtained": "measured",
        "window": "15m",
        "query": expression(SIGNALS["kv_use"], 900),
    }
    assert chat["signals"]["deferred_share"]["value"] is None
    first = chat["hypotheses"][0]
    assert (first["id"], first["verdict"], first["meaning"]) == ("kv_pressure", "supported", MEANING[Verdict.SUPPORTED])
    assert first["independent"] == ["kv", "preemption", "queue"]
    assert first["for"][0]["threshold_follows"] == "VllmKVCacheSaturated"
    assert first["next"]["command"].startswith("curl -sG ")
    ids = [one["id"] for subject in document["subjects"] for one in subject["hypotheses"]]
    assert sorted(ids) == sorted(BY_ID)


@pytest.mark.parametrize("one", HYPOTHESES, ids=lambda one: one.id)
def test_each_hypothesis_names_its_next_measurement(one: Any) -> None:
    following: Next = one.next
    assert len(following.tells.split()) > 8
    assert bool(following.command) != bool(following.query)
    subject = found({}).cases[0].subject
    filled = fill(following.command + following.query, subject, "15m", "http://127.0.0.1:9091")
    # Every place is filled: braces that are left are those of label matchers and of awk-like formats.
    assert "{instance}" not in filled
    assert "None" not in filled
    if one.scope == "node":
        assert not {"{instance}", "{unit}", "{port}", "{container}"} & set(following.command.split())


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.123456, "ratio", "0.123"), (0, "seconds", "0 s"), (12345.6, "tokens", "12346 tokens"), (1, "yes or no", "yes"), (1e-7, "ratio", "1e-07")],
)
def test_numbers_for_people(value: float, unit: Any, text: str) -> None:
    assert report.limit_text(value, unit) == text


def test_the_page_lists_every_hypothesis(tmp_path: Any) -> None:
    path = tmp_path / "diagnosis.md"
    path.write_text(f"above\n{BEGIN}\n{END}\nbelow\n")
    (text,) = page(path, _between, _table).values()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [one.id for one in HYPOTHESES]
    assert all(row.count("|") == 5 for row in rows)
    assert page(tmp_path / "none.md", _between, _table) == {}


def test_the_page_shows_what_the_report_prints() -> None:
    """The example of the documentation is what such a node gets, but for what is left out with dots."""
    text = (ROOT / "docs/diagnosis.md").read_text()
    assert TEXT.replace("gpu1, instance chat\n", "") in text.replace(" …", "")
    assert all(f"| `{verdict}` |" in text for verdict in Verdict)
