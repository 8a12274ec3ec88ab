"""The figures against what the server knows to be true, at 128 parallel streams."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.load.runs import BACKENDS, measure, plan
from tests.load.server import Stream, TimedServer, serving
from vllm_node.load.records import Record

TTFT_S, ITL_S, TOKENS, STREAMS = 0.05, 0.02, 24, 128
# A server that was late itself is no measure. Other people's work on this machine does that now and then.
TRIES = 5


def quantile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def server_was_late(streams: list[Stream]) -> bool:
    late = [one for stream in streams for one in stream.late_s(TTFT_S, ITL_S)]
    return quantile(late, 99) > 0.001


def undisturbed(server: TimedServer, document: dict[str, Any], folder: Path) -> tuple[dict[str, Any], list[Record], list[Stream]]:
    """A run in which neither the server nor the generator was held up by something else."""
    seen = ""
    for number in range(TRIES):
        mark = server.mark()
        result, records = measure(document, folder / str(number))
        streams = [one for one in server.truth(mark) if not one.name.startswith("-")]
        if not result["selfcheck"]["valid"]:
            seen = "; ".join(result["selfcheck"]["reasons"])
        elif server_was_late(streams):
            seen = "the server was late"
        else:
            return result, records, streams
    pytest.fail(f"this machine is too busy to measure on: {TRIES} runs were disturbed (last: {seen})")


def close(seen: float, truth: float) -> bool:
    return abs(seen - truth) <= max(0.001, 0.01 * truth)


@pytest.mark.usefixtures("first_in_line")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["closed", "open"])
def test_figures_are_the_truth(tmp_path: Path, backend: str, kind: str) -> None:
    answer_s = TTFT_S + ITL_S * (TOKENS - 1)
    # In an open loop that many arrivals a second keep 128 streams under way.
    arrivals: dict[str, Any] = (
        {"kind": "closed", "clients": STREAMS, "ramp_s": answer_s}
        if kind == "closed"
        else {"kind": "poisson", "rate": STREAMS / answer_s, "duration_s": 1.5}
    )
    slo = {"ttft_p95_s": 0.2, "tpot_p95_s": 0.03, "e2e_p95_s": 2.0}
    with serving(tmp_path, "--ttft-us", "50000", "--itl-us", "20000") as server:
        document = plan(
            server,
            arrivals=arrivals,
            requests={"kind": "generated", "count": 3 * STREAMS, "vocabulary": [10, 1000], "prompt_tokens": 16, "output_tokens": TOKENS},
            warmup={"requests": 16, "clients": 16},
            connections={"open_first": STREAMS},
            slo=slo,
            backend=backend,
        )
        result, records, streams = undisturbed(server, document, tmp_path)
    assert result["generator"]["backend"] == backend

    counts, latency = result["counts"], result["latency"]
    assert counts["offered"] == counts["sent"] == counts["completed"] == counts["good"] == len(streams) == len(records)
    assert counts["output_tokens"] == sum(one.tokens for one in streams)
    assert max(result["timeline"]["in_flight"]) > 0.5 * STREAMS
    truths: dict[str, Callable[[Stream], float]] = {
        "ttft_sent_s": lambda one: one.ttft_s,
        "tpot_s": lambda one: one.tpot_s,
        "e2e_sent_s": lambda one: one.e2e_s,
    }
    for name, truth in truths.items():
        values = [truth(one) for one in streams]
        assert close(latency[name]["mean"], statistics.fmean(values)), name
        for percent in (50, 95):
            assert close(latency[name][f"p{percent}"], quantile(values, percent)), (name, percent)
    gaps = [gap for one in streams for gap in one.gaps_s]
    assert latency["itl_s"]["n"] == len(gaps)
    assert close(latency["itl_s"]["mean"], statistics.fmean(gaps))
    assert close(latency["itl_s"]["p95"], quantile(gaps, 95))
    good = sum(one.ttft_s <= 0.2 and one.tpot_s <= 0.03 and one.e2e_s <= 2 for one in streams)
    assert close(result["rates"]["goodput_requests_per_s"], good / result["window"]["seconds"])

    # And one by one: the records pair with the server's own lines.
    by_name = {one.name: one for one in streams}
    errors = [record.contents_us[0] / 1e6 + record.sent / 1e9 - by_name[str(record.index)].events[0] / 1e9 for record in records]
    assert min(errors) > -0.0001  # nothing can arrive before it was sent
    assert quantile(errors, 95) < 0.002
    assert all(record.kind == "ok" and len(record.contents_us) == TOKENS for record in records)


def test_a_wrong_clock_would_be_seen(tmp_path: Path) -> None:
    """The comparison fails for figures that are 2 ms off, so it can fail at all."""
    assert not close(TTFT_S + 0.002, TTFT_S)
    assert close(TTFT_S + 0.0009, TTFT_S)
