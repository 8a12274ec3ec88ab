"""Each hypothesis by its story, by a look-alike of it, and by a node of which nothing is known."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.unit.diagnosis_values import LIMITS, WELL, judged, supported
from vllm_node.diagnosis.hypotheses import BY_ID, HYPOTHESES
from vllm_node.diagnosis.hypothesis import Sign, Verdict

LATE = {"ttft_p95": 8.0, "ttft_mean": 4.0}
QUEUED = {**LATE, "queue_share": 0.9, "queue_p95": 7.0, "waiting": 25.0, "prefill_share": 0.08, "frontend_share": 0.02}
STUTTER = {"itl_p95": 0.2}
STOPPED = {"steps": 0.0, "gpu_util_most": 0.0}
SILENT = {"vllm_up": 0.3, "vllm_up_now": 0.0}
SLOW_CLOCK = {**STUTTER, "clock": 0.6}


@dataclass(frozen=True)
class Story:
    """Changes to a well node. `also`: what is supported besides; `alike`: looks the same from one side, and is not it."""

    is_: dict[str, float]
    alike: dict[str, float]
    alike_is: Verdict
    also: set[str] = field(default_factory=set)


W, U, H = Verdict.WEAKENED, Verdict.UNSUPPORTED, Verdict.HINTED

STORIES: dict[str, Story] = {
    # A full cache under a load test is the aim, not a fault.
    "kv_pressure": Story({**QUEUED, "kv_use": 0.98, "preemptions": 0.4}, {"kv_use": 0.98}, U, {"queueing"}),
    # Requests wait, and the first token is late for another reason.
    "queueing": Story({**QUEUED, "running_band": 20.0}, {**LATE, "waiting": 25.0, "prefill_share": 0.9}, U),
    "prefill_bound": Story({**LATE, "prefill_share": 0.9, "prompt_p95": 20000.0, "prompt_weight": 60.0}, QUEUED, U),
    "prefill_interference": Story({**STUTTER, "step_load": 30.0, "prompt_p95": 9000.0}, {**STUTTER, "running": 200.0}, U),
    "decode_bound": Story({**STUTTER, "running": 250.0, "gpu_util": 99.0, "dram": 0.8}, {**SLOW_CLOCK, "running": 250.0, "bit_heat": 0.9}, W),
    "admission_limit": Story(
        {**QUEUED, "batch_share": 1.0, "running_band": 0.0, "gpu_util": 30.0},
        {**QUEUED, "batch_share": 1.0, "running_band": 0.0, "gpu_util": 30.0, "kv_use": 0.99},
        W,
        {"queueing"},
    ),
    "frontend_bound": Story(
        {**LATE, "api_cpu": 0.99, "frontend_share": 0.7, "gpu_util": 30.0, "prefill_share": 0.2}, {"api_cpu": 0.99, "gpu_util": 97.0}, U
    ),
    "deferred": Story(
        {**QUEUED, "deferred_share": 0.95, "kv_use": 0.3, "gpu_util": 20.0}, {**QUEUED, "deferred_share": 0.1, "kv_use": 0.3}, U, {"queueing"}
    ),
    # Without the restart or a later first token it may be another kind of request.
    "prefix_cold": Story({"prefix_change": 0.1, "ttft_growth": 1.9, "process_young": 0.5}, {"prefix_change": 0.1, "ttft_growth": 1.0}, U, {"well"}),
    "long_outputs": Story({"e2e_p95": 60.0, "output_p95": 3000.0}, {"e2e_p95": 60.0, **QUEUED}, U),
    # Answers are cut off because the client said how long they may be.
    "context_limit": Story({"length_share": 0.99, "cut_share": 0.5}, {"length_share": 0.3, "cut_share": 0.9}, U, {"well"}),
    "overload": Story(
        {**QUEUED, "traffic_growth": 3.0, "queue_growth": 0.2, "gpu_util": 99.0, "running_band": 30.0},
        {**QUEUED, "traffic_growth": 0.9, "gpu_util": 99.0},
        U,
        {"queueing"},
    ),
    "client_slow": Story({"client_ttft": 3.0, "client_e2e": 1.6, "client_late": 0.2}, {"client_ttft": 1.0, "client_late": 0.2}, U),
    # A benchmark that ends gives up many short requests.
    "client_timeouts": Story({"abort_share": 0.4, "e2e_p95": 31.0, "output_p95": 900.0}, {"abort_share": 0.4, "e2e_p95": 1.0}, U),
    # Nothing moves because the engine sleeps.
    "engine_hang": Story({**STOPPED, "stalled": 1.0}, {**STOPPED, "stalled": 1.0, "awake": 0.0}, W),
    "asleep": Story({**STOPPED, "awake": 0.0, "waiting_least": 3.0, "running_least": 0.0}, {**STOPPED, "running_least": 0.0}, U),
    "loading": Story(
        {**SILENT, "port_closed": 1.0, "gpu_memory_growth": 80.0}, {**SILENT, "port_closed": 1.0, "unit_looping": 1.0, "restarts": 7.0}, W
    ),
    # One start, which takes its time.
    "restart_loop": Story({**SILENT, "restarts": 6.0, "unit_looping": 1.0}, {**SILENT, "port_closed": 1.0, "restarts": 1.0}, H),
    "engine_errors": Story({"engine_errors": 9.0, "http_errors": 0.3}, {"xid_program": 1.0}, H),
    "turned_away": Story({**QUEUED, "rejections": 50.0, "running_band": 30.0}, QUEUED, U, {"queueing"}),
    "no_traffic": Story(
        {"first_tokens": 0.0, "finished": 0.0, "running": 0.0, "running_least": 0.0, "waiting": 0.0, "gpu_util": 0.0, "gpu_util_most": 0.0, "steps": 0.0},
        {"first_tokens": 0.0, "running": 12.0},
        U,
    ),
    "well": Story({}, {**QUEUED}, U),
    "heat": Story({**SLOW_CLOCK, "bit_heat": 0.8, "margin": 1.0}, {"margin": 2.0}, H),
    # Capped by power at full load, with the clocks as ever.
    "power": Story({**SLOW_CLOCK, "bit_power": 0.9, "power": 0.99}, {"bit_power": 1.0, "power": 0.99, "gpu_util": 100.0}, U),
    "link_fault": Story({"pcie_replays": 5000.0, "nvlink_recoveries": 2.0}, {"pcie_replays": 8.0, "nvlink_retries": 40.0}, U, {"well"}),
    # One old error that was corrected for good, and nothing since.
    "gpu_fault": Story({"ecc": 3.0, "recovery": 1.0}, {"ecc": 1.0, "smi_faults": 1.0}, H, {"well"}),
    "gpu_lost": Story({"gpus_lost": 1.0, "smi_missing": 1.0}, {"gpus_lost": 1.0}, H, {"well"}),
    # An idle node: one GPU draws a little more than the other.
    "tp_imbalance": Story(
        {**STUTTER, "power_spread": 0.4, "tensor_spread": 0.3, "gpu_util": 99.0}, {"power_spread": 0.4, "tensor_spread": 0.5, "gpu_util": 1.0}, U
    ),
    "other_program": Story({**STUTTER, "strangers": 1.0}, {**STUTTER, "gpu_util": 99.0}, U),
    "host_cpu": Story({"cpu": 0.97, "cpu_pressure": 0.6, "frontend_share": 0.4}, {"cpu": 0.4, "frontend_share": 0.4}, U, {"well"}),
    # Killed at the limit of its own unit: the host has enough.
    "host_memory": Story({"memory_free": 0.01, "swapping": 4000.0, "oom_kills": 2.0}, {"memory_free": 0.6, "oom_kills": 2.0}, U, {"well"}),
    "disk_full": Story({"disk_free": 0.01, "disk_seen": 0.01, "units_failed": 1.0}, {"units_failed": 1.0}, U, {"well"}),
    "blind": Story({"exporters_up": 0.2, "exporters_stopped": 1.0}, {"exporters_up": 0.9}, H, {"well"}),
}


def test_every_hypothesis_has_a_story() -> None:
    assert set(STORIES) == set(BY_ID)


@pytest.mark.parametrize("name", STORIES)
def test_its_story_supports_it_and_nothing_else(name: str) -> None:
    story = STORIES[name]
    assert supported({**WELL, **story.is_}) == {name, *story.also}


@pytest.mark.parametrize("name", STORIES)
def test_what_looks_alike_does_not_support_it(name: str) -> None:
    story = STORIES[name]
    assert judged({**WELL, **story.alike})[name].verdict is story.alike_is


def test_a_well_node_is_well_and_nothing_else() -> None:
    verdicts = {name: one.verdict for name, one in judged(WELL).items()}
    assert verdicts.pop("well") is Verdict.SUPPORTED
    assert set(verdicts.values()) == {Verdict.UNSUPPORTED}


def test_without_any_signal_everything_is_unobservable() -> None:
    assert {name for name, one in judged({}).items() if one.verdict is not Verdict.UNOBSERVABLE} == set()


@pytest.mark.parametrize("name", STORIES)
def test_without_what_it_needs_it_is_unobservable_and_says_what(name: str) -> None:
    """Or, where it needs nothing in particular, with too little left of its story."""
    one, story = BY_ID[name], STORIES[name]
    signs = one.given + one.needs or one.helps
    left = {key: value for key, value in {**WELL, **story.is_}.items() if key not in {sign.signal for sign in signs}}
    found = judged(left)[name]
    assert found.verdict is Verdict.UNOBSERVABLE
    assert {mark.sign for mark in found.missing} >= set(signs)


@pytest.mark.parametrize(("name", "sign"), [(one.id, sign) for one in HYPOTHESES for sign in (*one.given, *one.needs)])
def test_a_needed_sign_that_is_not_there_takes_its_hypothesis_with_it(name: str, sign: Sign) -> None:
    # At the limit itself a sign does not hold.
    values = {**WELL, **STORIES[name].is_, sign.signal: LIMITS[sign.limit]}
    assert judged(values)[name].verdict is Verdict.UNSUPPORTED


@pytest.mark.parametrize(("name", "sign"), [(one.id, sign) for one in HYPOTHESES for sign in one.against])
def test_a_contrary_sign_takes_the_support_away(name: str, sign: Sign) -> None:
    values = {**WELL, **STORIES[name].is_, sign.signal: LIMITS[sign.limit] + (0.01 if sign.relation == "above" else -0.01)}
    assert judged(values)[name].verdict is not Verdict.SUPPORTED
