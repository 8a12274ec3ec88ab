"""The figures are what the definitions say, for any records."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.load_values import NS, record, records
from vllm_node.load.definitions import DEFINITIONS, Figures, Window
from vllm_node.load.records import OK, Record
from vllm_node.load.slo import Slo

WINDOW = Window(0, 10 * NS)
SLO = Slo(ttft_p95_s=1.0, tpot_p95_s=0.05, e2e_p95_s=2.0)
ANY = st.lists(records(), max_size=60)


def figures(*taken: Record, slo: Slo = SLO, gpus: int | None = None) -> Figures:
    return Figures(WINDOW, slo, gpus).extend(taken)


def test_ttft_counts_from_both() -> None:
    seen = figures(record(ttft_s=0.1, late_s=0.03))
    assert seen.latency["ttft_sent_s"].mean() == pytest.approx(0.1)
    assert seen.latency["ttft_scheduled_s"].mean() == pytest.approx(0.13)
    assert seen.latency["e2e_sent_s"].mean() == pytest.approx(0.14)
    assert seen.latency["e2e_scheduled_s"].mean() == pytest.approx(0.17)


def test_tpot_takes_its_tokens_from_usage_and_itl_from_events() -> None:
    seen = figures(record(gaps_s=(0.02, 0.04), tokens=7))
    assert seen.latency["tpot_s"].mean() == pytest.approx(0.06 / 6)
    assert seen.latency["itl_s"].mean() == pytest.approx(0.03)
    assert any("not the number of tokens" in notice for notice in seen.notices())


def test_tpot_is_not_blurred_by_what_comes_after_the_last_token() -> None:
    assert record(gaps_s=(0.02, 0.02), tokens=3, rest_s=0.5).tpot_us() == 20000


@given(ANY)
def test_nobody_drops_out(taken: list[Record]) -> None:
    seen = figures(*taken)
    scored = [one for one in taken if one.scored]
    assert seen.offered == len(scored) == seen.groups.total()
    counts = seen.document()["counts"]
    parts = ("completed", "errors", "timeouts", "refused", "cancelled", "held_back")
    assert sum(counts[part] for part in parts) == counts["offered"]
    assert sum(counts["by_kind"].values()) == counts["offered"] - counts["completed"]
    assert counts["offered"] >= counts["sent"] >= counts["admitted"] >= counts["completed"] >= counts["good"]
    assert counts["good"] + counts["unjudged"] <= counts["completed"]


@given(ANY)
def test_each_answer_has_a_tpot_or_a_reason(taken: list[Record]) -> None:
    seen = figures(*taken)
    assert seen.latency["tpot_s"].n + seen.one_token + seen.no_usage == seen.groups[OK]


@given(ANY)
def test_samples_of_latencies(taken: list[Record]) -> None:
    seen = figures(*taken)
    scored = [one for one in taken if one.scored]
    with_content = [one for one in scored if one.contents_us]
    assert seen.latency["ttft_sent_s"].n - seen.latency["ttft_sent_s"].timed_out == len(with_content)
    assert seen.latency["itl_s"].n == sum(len(one.contents_us) - 1 for one in with_content)
    assert seen.latency["e2e_sent_s"].n == seen.groups[OK] + seen.groups["timeout"]


@given(ANY)
def test_goodput_is_counted_one_by_one(taken: list[Record]) -> None:
    seen = figures(*taken)
    good = [
        one
        for one in taken
        if one.scored
        and one.kind == OK
        and (one.ttft_scheduled_us() or 0) <= 1e6
        and one.e2e_scheduled_us() <= 2e6
        and (tpot := one.tpot_us()) is not None
        and tpot <= 50_000
    ]
    assert seen.good == len(good)
    rates = seen.document()["rates"]
    assert rates["goodput_requests_per_s"] == pytest.approx(len(good) / 10)
    assert rates["goodput_tokens_per_s"] == pytest.approx(sum(one.output_tokens or 0 for one in good) / 10)


@given(ANY, st.randoms(use_true_random=False))
def test_order_does_not_matter(taken: list[Record], random: Random) -> None:
    shuffled = list(taken)
    random.shuffle(shuffled)
    one, other = figures(*taken).document(), figures(*shuffled).document()
    for name in ("counts", "rates", "latency", "left_out"):
        assert {**one[name], "examples": 0} == {**other[name], "examples": 0}


def test_one_token_has_no_tpot_and_is_not_good() -> None:
    seen = figures(record(gaps_s=(), tokens=1))
    assert (seen.latency["tpot_s"].n, seen.one_token, seen.good, seen.unjudged) == (0, 1, 0, 1)
    assert figures(record(gaps_s=(), tokens=1), slo=Slo(ttft_p95_s=1.0)).good == 1
    # One that breaks another SLO is judged all the same.
    assert figures(record(gaps_s=(), tokens=1, ttft_s=1.5)).unjudged == 0


def test_completions_count_where_they_end() -> None:
    """An overloaded server's late answers are in no rate of the window, nor do those of the lead-in vanish."""
    late = record(scheduled_s=9.9, ttft_s=0.5)
    early = record(scheduled_s=-0.1, ttft_s=0.5, scored=False)
    assert figures(late).document()["rates"]["completed_per_s"] == 0
    assert figures(late).document()["counts"]["completed"] == 1
    assert figures(early).document()["rates"]["completed_per_s"] == pytest.approx(0.1)
    assert figures(early).document()["counts"]["offered"] == 0


def test_error_rate() -> None:
    seen = figures(record(), record("http_500"), record("http_429"), record("stall_timeout"), record("cancelled"))
    assert seen.error_rate == pytest.approx(3 / 5)
    assert figures().error_rate is None


def test_per_gpu() -> None:
    assert figures(record(), gpus=4).document()["per_gpu"]["completed_per_s"] == pytest.approx(0.1 / 4)
    assert figures(record()).document()["per_gpu"] == {}


def test_every_latency_is_defined() -> None:
    assert set(figures().latency) <= set(DEFINITIONS)
