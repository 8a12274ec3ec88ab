"""How long a start takes: the model's size by the disk's speed, in coarse steps, and nothing where one is unknown."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_node.preflight.start_budget import by_unit, estimate_s, weights_s

GB = 10**9


def model(size: int | None, speed: int | None) -> dict[str, Any]:
    return {"name": "chat", "bytes": size, "read": {"bytes_per_s": speed, "past_cache": True, "why": None}}


@pytest.mark.parametrize(
    ("size", "speed", "seconds"),
    [
        (0, GB, None),
        (None, GB, None),
        (140 * GB, None, None),
        (1 * GB, 2 * GB, 1200),
        (140 * GB, 3 * GB, 1200),
        (140 * GB, GB // 5, 3000),  # 600 s and three times 700 s, rounded up
        (1300 * GB, GB // 2, 8400),
    ],
)
def test_the_estimate_grows_with_the_model_and_shrinks_with_the_disk(
    size: int | None, speed: int | None, seconds: float | None
) -> None:
    assert estimate_s(model(size, speed)) == seconds


def test_it_is_coarse_so_that_two_measurements_give_one_figure() -> None:
    speeds = [GB, GB * 9 // 10, GB * 11 // 10]
    assert {estimate_s(model(140 * GB, speed)) for speed in speeds} == {1200}


@pytest.mark.parametrize("row", [{}, {"bytes": GB}, {"bytes": GB, "read": None}, {"bytes": "x", "read": [1]}, model(GB, -1)])
def test_what_was_not_measured_is_unknown(row: dict[str, Any]) -> None:
    assert weights_s(row) is None
    assert estimate_s(row) is None


def test_models_are_found_by_their_units() -> None:
    assert [unit for unit, _ in by_unit({"models": [model(1, 1)]})] == ["vllm-chat.service"]
    assert not list(by_unit({"models": None}))
