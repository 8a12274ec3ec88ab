"""The times of a vLLM unit fit together: what waits for a load waits as long as the others, and a crash loop ends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.role_code import ROOT

UNITS = sorted((ROOT / "tests/golden").glob("**/vllm-*.container"))


def seconds(text: str, key: str) -> int:
    found = re.findall(rf"^(?:Environment=)?{key}=(\d+)s?$", text, re.MULTILINE)
    assert len(found) == 1, (key, found)
    return int(found[0])


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_everything_that_waits_for_a_load_waits_equally_long(unit: Path) -> None:
    text = unit.read_text()
    waits = {key: seconds(text, key) for key in ("TimeoutStartSec", "HealthStartPeriod", "VLLM_ENGINE_READY_TIMEOUT_S")}
    assert len(set(waits.values())) == 1, waits


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_crash_loop_ends_after_five_starts_however_late_each_of_them_dies(unit: Path) -> None:
    text = unit.read_text()
    starts, budget_s = seconds(text, "StartLimitBurst"), seconds(text, "TimeoutStartSec")
    assert starts == 5
    # The first of the starts must still count when the last one dies: that is the time of as many whole loads.
    assert seconds(text, "StartLimitIntervalSec") >= starts * budget_s


def test_there_are_units_to_look_at() -> None:
    assert UNITS
