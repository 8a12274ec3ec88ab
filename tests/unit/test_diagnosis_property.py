"""Whatever one observation says, it supports nothing; and whatever two say, a verdict says why."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.diagnosis_values import LIMITS, WELL, judged, reader, supported
from vllm_node.diagnosis.diagnosis import diagnose
from vllm_node.diagnosis.facts import Facts, Instance
from vllm_node.diagnosis.hypothesis import Hypothesis, Next, Verdict, above, judge
from vllm_node.diagnosis.signals import SIGNALS, expressions

NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, 1.0, 1e9])
FAMILIES = {family: [one.id for one in SIGNALS.values() if one.family == family] for family in {s.family for s in SIGNALS.values()}}


@given(st.sampled_from(sorted(SIGNALS)), NUMBERS)
def test_one_signal_supports_nothing(name: str, value: float) -> None:
    assert supported({name: value}) == set()


@given(st.data(), st.sampled_from(sorted(FAMILIES)))
def test_all_signals_of_one_family_support_nothing(data: st.DataObject, family: str) -> None:
    assert supported({name: data.draw(NUMBERS) for name in FAMILIES[family]}) == set()


@given(st.sampled_from(sorted(expressions())), NUMBERS)
def test_one_answer_of_prometheus_supports_nothing(name: str, value: float) -> None:
    """The same through all that is worked out of an answer, for an instance on two GPUs and for its node."""
    labels = [{"node": "gpu1", "instance": "chat", "gpu": gpu, "UUID": f"GPU-{gpu}"} for gpu in ("0", "1")]
    answers: dict[str, dict[str, Any]] = {key: {"result": [], "error": None} for key in expressions()}
    answers[name] = {"result": [{"labels": one, "value": value} for one in labels], "error": None}
    chat = Instance("chat", 8000, ("all",), {"max-num-seqs": 8, "max-model-len": 4096})
    found = diagnose(Facts("gpu1", 1_800_000_000, 900, answers, [chat], scrape_interval_s=15))
    assert [one.hypothesis.id for case in found.cases for one in case.of(Verdict.SUPPORTED)] == []


@given(st.dictionaries(st.sampled_from(sorted(SIGNALS)), NUMBERS))
def test_a_verdict_agrees_with_what_was_seen(values: dict[str, float]) -> None:
    for one in judged(values).values():
        contrary = [mark for mark in one.against if mark.holds]
        if one.verdict is Verdict.SUPPORTED:
            assert len(one.families) >= 2
            assert not contrary
            assert all(mark.holds for mark in (*one.given, *one.needs))
        elif one.verdict is Verdict.WEAKENED:
            assert contrary
        elif one.verdict is Verdict.HINTED:
            assert len(one.families) == 1
        elif one.verdict is Verdict.UNOBSERVABLE:
            assert one.missing
        else:
            assert one.seen_against


@given(st.dictionaries(st.sampled_from(sorted(SIGNALS)), NUMBERS), st.sampled_from(sorted(SIGNALS)))
def test_taking_a_signal_away_never_turns_absence_into_proof(values: dict[str, float], lost: str) -> None:
    """A hypothesis that loses a signal for it is not supported by that; only a contrary sign that is lost can do so."""
    before = supported({**WELL, **values})
    after = supported({key: value for key, value in {**WELL, **values}.items() if key != lost})
    judgements = judged({**WELL, **values})
    assert all(lost in {mark.sign.signal for mark in judgements[name].against if mark.holds} for name in after - before)


def test_two_signals_of_one_family_would_be_found_out() -> None:
    """The rule itself, broken on purpose: the same signs count for two when their families differ."""
    double = Hypothesis("double", "x", "instance", Next("y"), needs=(above("waiting", "waiting"),), helps=(above("queue_p95", "queue_high_s"),))
    values = {"waiting": 99.0, "queue_p95": 99.0}
    assert judge(double, reader(values), LIMITS).verdict is Verdict.HINTED
    apart = Hypothesis("apart", "x", "instance", Next("y"), needs=(above("waiting", "waiting"),), helps=(above("kv_use", "kv_full"),))
    assert judge(apart, reader({"waiting": 99.0, "kv_use": 0.99}), LIMITS).verdict is Verdict.SUPPORTED
