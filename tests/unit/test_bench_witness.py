"""The server's own figures: of Prometheus where it knows, else of the pages that the generator kept, and said so."""

from __future__ import annotations

import gzip
import json
import time
from typing import Any

import pytest

from tests.unit.server_answers import WINDOW, answers, pages
from vllm_node.bench.generator import Staged
from vllm_node.bench.witness import Witness

RESULT = {"window": {"start_unix_s": WINDOW.start, "end_unix_s": WINDOW.end}}
KEPT = Staged(RESULT, gzip.compress("".join(json.dumps(one) + "\n" for one in pages()).encode()))
LOST = Staged(RESULT, None, "the pages of metrics come to 90 MiB, and at most 32 are brought back")


class Node:
    def __init__(self, told: dict[str, Any]) -> None:
        self.told, self.asked = told, list[str]()

    def __call__(self, module: str, **args: Any) -> dict[str, Any]:
        self.asked.append(module)
        assert args["at"] == WINDOW.end
        return self.told


def witness(node: Node, *, prometheus: str | None = "http://127.0.0.1:9090", **more: Any) -> Witness:
    given = {"scrape_interval_s": 15.0, "stopped": lambda: False, **more}
    return Witness(node, "chat", "tiny", [], prometheus, **given)


def figures(told: dict[str, Any], stage: Staged = KEPT, **more: Any) -> tuple[Any, Any, Node]:
    node = Node(told)
    return *witness(node, **more).figures(stage, None), node


def test_prometheus_is_asked_where_there_is_one() -> None:
    found, why, node = figures({"answers": answers()})
    assert (found["source"], why, node.asked) == ("prometheus", None, ["prometheus_query"])


def test_without_prometheus_the_pages_are_read() -> None:
    found, why, node = figures({}, prometheus=None)
    assert (found["source"], why, node.asked) == ("scrapes", None, [])
    assert found["figures"]["requests_finished"]["value"] == 300.0
    assert not [one for one in found["notices"] if "Prometheus" in one]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"failed": True, "msg": "connection refused"}, "Prometheus could not be asked (connection refused)"),
        ({"answers": {}}, "Prometheus has no sample of this instance in the window"),
    ],
)
def test_a_prometheus_that_does_not_know_is_replaced_and_that_is_said(told: dict[str, Any], said: str) -> None:
    found, why, _ = figures(told)
    assert (found["source"], why) == ("scrapes", said)
    assert found["notices"][0].startswith(f"{said}; ")
    assert figures(told, LOST)[:2] == (None, f"{said}; {LOST.no_pages}")


def test_a_window_with_a_restart_is_refused_by_prometheus_and_by_nobody_mended() -> None:
    reset = {"resets_of_generation_tokens": {"result": [{"labels": {}, "value": 1.0}], "error": None}}
    found, why, _ = figures({"answers": answers(**reset)})
    assert (found["source"], why) == ("prometheus", None)
    assert found["refused"]


def test_nobody_is_waited_for_after_an_interrupt() -> None:
    now = time.time()
    late = Staged({"window": {"start_unix_s": now - 60, "end_unix_s": now}}, KEPT.pages)
    found, why, node = figures({"answers": answers()}, late, stopped=lambda: True)
    assert time.time() < now + 5
    assert (found["source"], node.asked) == ("scrapes", [])
    assert "interrupted" in why


def test_a_window_without_a_length_has_no_figures() -> None:
    empty = Staged({"window": {"start_unix_s": 5.0, "end_unix_s": 5.0}}, KEPT.pages)
    assert figures({}, empty)[:2] == (None, "a window from 5.0 to 5.0 has no length")
