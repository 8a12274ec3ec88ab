"""Figures of the server out of the pages that the engine kept, for a node without Prometheus."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.metrics_pages import VLLM_PAGE, needs
from tests.unit.server_answers import WINDOW, page, pages
from vllm_node.bench import server


def value(found: dict[str, Any], name: str) -> Any:
    return found["figures"][name]["value"]


def figures(given: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return server.figures_from_scrapes(given, WINDOW, **more)


def test_counts_are_the_difference_between_the_ends_of_the_window() -> None:
    found = figures(pages())
    assert found["source"] == "scrapes"
    # Five a second for 60 s; what came before and after is not in it.
    assert found["figures"]["requests_finished"]["value"] == 300.0
    assert found["figures"]["requests_finished"]["how"] == "measured"
    assert value(found, "generation_tokens_per_s") == 50.0
    assert value(found, "prefix_hit_ratio") == pytest.approx(0.3)
    assert (value(found, "prompt_tokens_computed"), value(found, "prompt_tokens_cached")) == (2100.0, 900.0)
    p95 = found["figures"]["ttft_p95_s"]
    assert (p95["value"], p95["bucket"], p95["how"]) == (pytest.approx(0.1 + 0.15 * 0.95), [0.1, 0.25], "derived")
    assert value(found, "ttft_mean_s") == pytest.approx(0.2)
    assert (found["refused"], found["notices"]) == (None, [])


def test_engines_are_added_up() -> None:
    found = figures(pages(engines=2, running=3.0))
    assert (value(found, "requests_finished"), value(found, "running_mean")) == (600.0, 6.0)
    assert value(found, "kv_usage_max") == 0.5
    assert found["figures"]["ttft_p95_s"]["samples"] == 600


def test_only_the_samples_in_the_window_are_in_the_means_and_the_timeline() -> None:
    given = [*pages()[:9], *pages(waiting=2.0)[10:71], *pages(waiting=50.0)[71:]]
    found = figures(given)
    assert (value(found, "waiting_mean"), value(found, "waiting_max")) == (2.0, 2.0)
    assert (found["timeline"]["t_s"][0], found["timeline"]["t_s"][-1]) == (0.0, 60.0)


def test_preemptions_per_request_and_on_the_timeline() -> None:
    given = [page(990.0 + second, 5.0 * second, preemptions=float(second)) for second in range(81)]
    found = figures(given)
    assert value(found, "preemptions_per_request") == pytest.approx(0.2)
    assert found["timeline"]["preemptions"][:3] == [None, 1.0, 1.0]


def test_a_counter_that_falls_inside_the_window_refuses_it_and_one_that_falls_before_does_not() -> None:
    again = [page(990.0 + second, 5.0 * (second % 40)) for second in range(81)]
    assert "was reset" in figures(again)["refused"]
    assert figures(again)["figures"] == {}
    before = [page(990.0 + second, 1000.0 if second < 5 else 5.0 * second) for second in range(81)]
    assert figures(before)["refused"] is None


def test_a_process_that_began_inside_the_window_refuses_it_although_no_counter_fell() -> None:
    given = [page(990.0 + second, 0.0, started=500.0 if second < 40 else 1025.0) for second in range(81)]
    assert "was reset" in figures(given)["refused"]


@pytest.mark.parametrize("version", ["0.8.5", "0.10.2", "0.16.0", "0.32.0"])
def test_names_are_those_of_the_version(version: str) -> None:
    found = figures(pages(version=version), version=version)
    assert value(found, "kv_usage_max") == 0.5
    assert value(found, "itl_p95_s") == pytest.approx(0.1 + 0.15 * 0.95)
    newer = version not in ("0.8.5", "0.10.2")
    assert (value(found, "prompt_tokens_computed") is not None) == newer


def test_what_a_page_does_not_have_is_unobservable() -> None:
    found = figures(pages(without=("queue_time", "kv_usage", "preemptions")))
    told = {one["what"]: one["why"] for one in found["unobservable"]}
    assert value(found, "queue_time_p95_s") is None
    assert told["queue_time_p95_s"] == "the page of metrics has no vllm:request_queue_time_seconds"
    assert told["kv_usage_max"] == "no page in the window has vllm:kv_cache_usage_perc"
    assert value(found, "preemptions_per_request") is None
    assert "there is no Prometheus" in told["gpu_util_mean"]


def test_only_the_model_that_is_asked_for_counts() -> None:
    assert value(figures(pages(), model="tiny"), "requests_finished") == 300.0
    assert value(figures(pages(), model="other"), "requests_finished") is None


@pytest.mark.parametrize("given", [[], pages()[30:31]])
def test_without_two_pages_nothing_is_known(given: list[dict[str, Any]]) -> None:
    found = figures(given)
    assert {one["value"] for one in found["figures"].values()} == {None}
    assert found["notices"]
    assert found["timeline"]["t_s"] == []


def test_holes_and_ends_that_are_off_are_told() -> None:
    hole = figures([*pages()[:30], *pages()[50:]])["notices"]
    assert hole == ["for 21 s the server gave no page of metrics"]
    late = figures(pages()[20:])["notices"]
    assert late == ["counts are of 50.0 s: the pages begin or end 10.0 s off the window"]
    assert figures(pages()[::20])["notices"][0] == "only 5 pages of metrics were kept in 60 s"


def test_pages_are_read_as_far_as_a_killed_run_wrote_them(tmp_path: Path) -> None:
    lines = "".join(json.dumps(one) + "\n" for one in pages()).encode()
    whole, cut, torn = (tmp_path / name for name in ("whole.gz", "cut.gz", "torn.gz"))
    whole.write_bytes(gzip.compress(lines))
    cut.write_bytes(gzip.compress(lines)[:-200])
    torn.write_bytes(gzip.compress(lines[:-100]))
    assert len(list(server.read_pages(whole))) == 81
    assert 0 < len(list(server.read_pages(cut))) < 81
    assert len(list(server.read_pages(torn))) == 80


@pytest.mark.skipif(needs(VLLM_PAGE) is not None, reason=needs(VLLM_PAGE) or "")
def test_a_real_page_has_all_that_is_looked_for() -> None:
    text = VLLM_PAGE.read_text()
    found = server.figures_from_scrapes(
        [{"at_s": at, "text": text} for at in (1_800_000_000.0, 1_800_000_030.0, 1_800_000_060.0)],
        server.Window(1_800_000_000.0, 1_800_000_060.0),
        model="tiny",
        version="0.32.0",
    )
    # Nothing happened between two equal pages: counts are a true zero, and what is divided by them is not there.
    assert (value(found, "requests_finished"), value(found, "waiting_max")) == (0.0, 0.0)
    assert value(found, "ttft_p95_s") is None
    reasons = {one["why"] for one in found["unobservable"]}
    assert not any("no such metric" in why or "the page of metrics has no" in why for why in reasons)
