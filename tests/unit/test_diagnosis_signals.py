"""Signals: their PromQL against the metric dictionary, and what they read out of answers, snapshot and inventory."""

from __future__ import annotations

import re
from typing import Any

import promql_parser
import pytest

from tests.unit.diagnosis_values import WELL
from tests.unit.factories import changed, disk, port, snapshot
from vllm_node.diagnosis.client import Client
from vllm_node.diagnosis.facts import Facts, Instance, Subject, instances
from vllm_node.diagnosis.hypotheses import HYPOTHESES, next_queries
from vllm_node.diagnosis.look import Look, Reading
from vllm_node.diagnosis.signals import SIGNALS, expressions
from vllm_node.diagnosis.thresholds import THRESHOLDS, limits
from vllm_node.metrics import dictionary
from vllm_node.metrics.static import problems
from vllm_node.metrics.uses import Use

AT = 1_800_000_000.0
CHAT = Instance("chat", 8000, ("0", "1"), {"max-num-seqs": 64, "max_model_len": "8192"})
ASKED = {**expressions(), **{f"next measurement of {name}": text for name, text in next_queries().items()}}


def answer(*samples: tuple[dict[str, str], Any]) -> dict[str, Any]:
    return {"result": [{"labels": labels, "value": value} for labels, value in samples], "error": None}


def look(answers: dict[str, Any] | None = None, instance: Instance | None = CHAT, **facts: Any) -> Look:
    everything = {"instances": [CHAT], **facts}
    return Look(Facts("gpu1", AT, 900, answers or {}, **everything), Subject("gpu1", instance), SIGNALS)


def of(*values: float, instance: str = "chat") -> dict[str, Any]:
    return answer(*(({"node": "gpu1", "instance": instance}, value) for value in values))


def gpus(**values: float) -> dict[str, Any]:
    return answer(*(({"node": "gpu1", "gpu": name[1:], "UUID": f"GPU-{name}"}, value) for name, value in values.items()))


# expressions


@pytest.mark.parametrize("name", ASKED)
def test_each_expression_is_promql(name: str) -> None:
    promql_parser.parse(ASKED[name])


@pytest.mark.parametrize("name", ASKED)
def test_the_dictionary_knows_all_that_an_expression_asks_for(name: str) -> None:
    use = Use("diagnosis", name, ASKED[name])
    assert [str(problem) for _, problem in problems([use], dictionary.load(), ())] == []


def test_a_wrong_name_in_an_expression_would_be_found() -> None:
    use = Use("diagnosis", "waiting", ASKED["waiting"].replace("num_requests_waiting", "num_requests_queued"))
    assert len(list(problems([use], dictionary.load(), ()))) == 1


def test_the_window_is_in_the_expressions() -> None:
    assert "[1h30m]" in expressions("1h30m")["waiting"]
    assert [name for name, text in ASKED.items() if "$" in text or "{{" in text] == []


def test_every_signal_is_used_and_every_used_one_exists() -> None:
    used = {sign.signal for one in HYPOTHESES for sign in one.signs}
    # Those that others are worked out of, or that say what a quantile rests on.
    behind = {"finished", "prefix_hits", "prefix_hits_before", "ttft_mean", "e2e_mean"}
    behind |= {"process_age", "prometheus_age", "scrapes", "running_least"}
    assert used - set(SIGNALS) == set()
    assert set(SIGNALS) - used - behind == set()
    assert set(WELL) == set(SIGNALS)


def test_every_threshold_is_used_and_every_used_one_exists() -> None:
    used = {sign.limit for one in HYPOTHESES for sign in one.signs} | {"samples"}
    assert used == set(THRESHOLDS)


def test_a_sign_is_compared_with_a_threshold_of_its_unit() -> None:
    seconds = {sign.limit for one in HYPOTHESES for sign in one.signs if SIGNALS[sign.signal].unit == "seconds"}
    assert seconds == {name for name in THRESHOLDS if name.endswith("_s")}


def test_a_site_changes_a_threshold_by_its_alert() -> None:
    changed_ = limits({"VllmKVCacheSaturated": 0.8, "VllmTTFTHigh": 0.9})
    assert changed_["kv_full"] == 0.8
    assert changed_["ttft_high_s"] == THRESHOLDS["ttft_high_s"].value


# readings


def read(name: str, **given: Any) -> Reading:
    return look(**given).read(name)


def test_a_value_of_zero_is_a_value() -> None:
    assert read("waiting", answers={"waiting": of(0)}).value == 0


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({"waiting": answer()}, "no such series"),
        ({}, "was not asked"),
        ({"waiting": {"result": [], "error": "bad_data: no"}}, "refused: bad_data: no"),
        ({"waiting": of("NaN")}, "its value is NaN"),  # type: ignore[arg-type]
        ({"waiting": of(3, instance="other")}, "no such series"),
    ],
)
def test_what_is_no_value_is_missing_and_says_why(answers: dict[str, Any], why: str) -> None:
    found = read("waiting", answers=answers)
    assert found.value is None
    assert why in found.missing


def test_a_quantile_of_few_requests_is_insufficient() -> None:
    assert read("ttft_p95", answers={"ttft_p95": of(3), "first_tokens": of(19)}).missing.startswith("insufficient: 19")
    assert read("ttft_p95", answers={"ttft_p95": of(3), "first_tokens": of(20)}).value == 3
    assert "no such series" in read("ttft_p95", answers={"ttft_p95": of(3), "first_tokens": answer()}).missing


def test_an_instance_has_its_own_gpus() -> None:
    answers = {"gpu_util": gpus(g0=10, g1=20, g2=99)}
    assert read("gpu_util", answers=answers).value == 20
    for names, value in ((("2",), 99), (("GPU-g0",), 10), (("all",), 99), (("1:0",), 20)):
        assert read("gpu_util", answers=answers, instance=Instance("chat", gpus=names)).value == value
    assert read("gpu_util", answers=answers, instance=Instance("cpu")).value is None
    assert read("gpu_util", answers=answers, instance=None).value == 99


def test_the_node_sees_all_of_its_instances() -> None:
    answers = {"waiting": answer(({"instance": "chat"}, 2), ({"instance": "embed"}, 5))}
    assert read("waiting", answers=answers, instance=None).value == 7


def test_a_spread_needs_two_gpus() -> None:
    assert read("gpu_util_spread", answers={"gpu_util_spread": gpus(g0=60, g1=90)}).value == 30
    assert read("power_spread", answers={"power_spread": gpus(g0=0.5, g1=1)}).value == 0.5
    assert "one GPU only" in read("gpu_util_spread", answers={"gpu_util_spread": gpus(g0=60)}).missing
    assert "all are zero" in read("power_spread", answers={"power_spread": gpus(g0=0, g1=0)}).missing


def test_shares_of_limits_come_from_the_inventory() -> None:
    answers = {"running": of(32), "prompt_p95": of(6000), "output_p95": of(2000), "finished": of(99)}
    assert read("batch_share", answers=answers).value == 0.5
    assert read("length_share", answers=answers).value == pytest.approx(8000 / 8192)
    bare = Instance("chat")
    assert "sets no max-num-seqs" in read("batch_share", answers=answers, instance=bare).missing


def test_ages_and_changes_are_worked_out() -> None:
    answers = {"process_age": of(450), "prometheus_age": of(1800), "prefix_hits": of(0.1), "finished": of(99)}
    assert read("process_young", answers=answers).value == 0.5
    assert read("history", answers=answers).value == 2
    assert read("prefix_change", answers={**answers, "prefix_hits_before": of(0.4)}).value == pytest.approx(0.25)
    assert "no hits before" in read("prefix_change", answers={**answers, "prefix_hits_before": of(0)}).missing
    assert read("scrapes_missing", answers={"scrapes": of(45)}, scrape_interval_s=15).value == 0.25
    assert read("scrapes_missing", answers={"scrapes": of(61)}, scrape_interval_s=15).value == 0
    assert "interval" in read("scrapes_missing", answers={"scrapes": of(61)}).missing


@pytest.mark.parametrize(("running", "steps", "value"), [(3, 0, 1), (3, 0.2, 0), (0, 0, 0)])
def test_stalled_is_running_without_steps(running: float, steps: float, value: float) -> None:
    assert read("stalled", answers={"running_least": of(running), "steps": of(steps)}).value == value


# snapshot


def unit(name: str, active: str = "active", sub: str = "running") -> dict[str, Any]:
    return {"name": name, "load": "loaded", "active": active, "sub": sub, "unit_file": None}


def node(**changes: Any) -> dict[str, Any]:
    found = snapshot()
    for path, value in changes.items():
        found = changed(found, path.replace("__", "/"), value)
    return found


@pytest.mark.parametrize(
    ("name", "changes", "value"),
    [
        ("unit_active", {"units__toolkit": [unit("vllm-chat.service")]}, 1),
        ("unit_active", {"units__toolkit": [unit("vllm-chat.service", "activating", "start")]}, 0),
        ("unit_looping", {"units__toolkit": [unit("vllm-chat.service", "activating", "auto-restart")]}, 1),
        ("unit_looping", {"units__toolkit": [unit("vllm-chat.service", "failed", "failed")]}, 1),
        ("unit_looping", {"units__toolkit": [unit("vllm-chat.service")]}, 0),
        ("exporters_stopped", {"units__toolkit": [unit("dcgm-exporter.service", "failed"), unit("prometheus.service")]}, 1),
        ("units_failed", {"units__failed": ["a.service", "b.service"]}, 2),
        ("port_closed", {}, 1),
        ("port_closed", {"ports": [port(8000, "python3", "vllm-chat.service")]}, 0),
        ("disk_seen", {"disks": [disk("/"), disk("/var", 10 << 30)]}, 0.01),
        ("memory_seen", {}, 500 / 512),
        ("smi_missing", {}, 0),
        ("smi_missing", {"gpu__devices": [snapshot()["gpu"]["devices"][0]]}, 3),
        ("smi_missing", {"gpu__devices": None, "gpu__error": "No devices were found"}, 4),
        ("smi_faults", {"gpu__devices__1__remap_pending": True}, 1),
        ("strangers", {"gpu__processes": [{"pid": 1, "unit": "vllm-chat.service"}, {"pid": 2, "unit": "user.scope"}]}, 1),
        ("strangers", {"gpu__processes": []}, 0),
    ],
)
def test_the_snapshot_is_read(name: str, changes: dict[str, Any], value: float) -> None:
    assert read(name, snapshot=node(**changes)).value == pytest.approx(value)


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("unit_active", {"units__toolkit": None}, "could not see units.toolkit"),
        ("unit_active", {"units__toolkit": [unit("vllm-embed.service")]}, "knows none of vllm-chat.service"),
        ("port_closed", {"ports": None}, "could not see ports"),
        ("disk_seen", {"disks": [{**disk("/"), "free_bytes": None}]}, "could not see any disk"),
        ("smi_missing", {"gpu__pci_gpus": 0}, "no GPU"),
        ("smi_missing", {"gpu__devices": None}, "could not ask nvidia-smi"),
        ("smi_faults", {"gpu__devices": None}, "could not see gpu.devices"),
        ("strangers", {"gpu__processes": [{"pid": 2, "unit": None}]}, "whose the processes"),
    ],
)
def test_what_the_snapshot_could_not_see_is_missing(name: str, changes: dict[str, Any], why: str) -> None:
    found = read(name, snapshot=node(**changes))
    assert found.value is None
    assert why in found.missing


@pytest.mark.parametrize("name", [one.id for one in SIGNALS.values() if one.compute])
def test_without_any_source_a_worked_out_signal_is_missing(name: str) -> None:
    found = read(name, instance=None)
    assert found.value is None
    assert re.search("[a-z]{3}", found.missing)


# client

CLIENT = Client("chat", AT - 900, AT, {"mean": 0.6, "p95": 1.5, "samples": 900}, {"p95": 9.0, "samples": 900}, 0.02, 0.001, 0.4)
SERVER = {"ttft_mean": of(0.3), "ttft_p95": of(1.0), "e2e_p95": of(8.0), "first_tokens": of(900), "finished": of(900)}


def test_the_client_is_compared_by_means_where_it_has_one() -> None:
    assert read("client_ttft", answers=SERVER, client=CLIENT).value == pytest.approx(2)
    assert read("client_e2e", answers=SERVER, client=CLIENT).value == pytest.approx(9 / 8)
    assert read("client_late", client=CLIENT).value == 0.02
    assert read("client_cpu", client=CLIENT).value == 0.4


@pytest.mark.parametrize(
    ("client", "why"),
    [
        (None, "--client"),
        (Client("embed", ttft_s=CLIENT.ttft_s), "measured embed"),
        (Client(ttft_s=CLIENT.ttft_s), "which instance"),
        (Client("chat", AT - 9000, AT - 8000, CLIENT.ttft_s), "another time"),
        (Client("chat", ttft_s={"mean": 0.6, "samples": 7}), "insufficient: 7 requests at the client"),
        (Client("chat", e2e_s=CLIENT.e2e_s), "did not measure ttft_s"),
    ],
)
def test_a_client_that_cannot_be_compared_is_unobservable(client: Client | None, why: str) -> None:
    found = read("client_ttft", answers=SERVER, client=client, instances=[CHAT, Instance("embed")])
    assert found.value is None
    assert why in found.missing


def test_instances_come_out_of_the_inventory() -> None:
    given = [{"name": "chat", "port": 8000, "gpus": [0, "1"], "args": {"max-num-seqs": 64}}, {"model": "/x"}, "odd"]
    assert instances(given) == [Instance("chat", 8000, ("0", "1"), {"max-num-seqs": 64})]
    assert instances(None) == []
