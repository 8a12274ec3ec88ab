"""The fire drill refuses what is not its own, follows each alert, and mends whatever it provoked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.role_code import load
from tests.unit.web import Site, serving


@pytest.fixture
def code() -> Any:
    module = load("roles/fire_drill/library/fire_drill.py")
    module.POLL_S = 0.01
    return module


class Drill:
    """A drill that breaks `site`: its alert fires from then on, and is told in `log`."""

    def __init__(self, site: Site, log: Path, fires: bool = True) -> None:
        self.site, self.log, self.fires, self.events = site, log, fires, list[str]()

    def provoke(self) -> None:
        self.events.append("provoked")
        if self.fires:
            answer(self.site, "firing")
            self.tell("firing")

    def mend(self) -> None:
        self.events.append("mended")
        answer(self.site, None)
        self.tell("resolved")

    def tell(self, status: str) -> None:
        with self.log.open("a") as log:
            log.write(json.dumps({"at": 2e9, "status": status, "labels": {"alertname": "Fire"}}) + "\n")


def answer(site: Site, state: str | None) -> None:
    alerts = [{"labels": {"alertname": "Fire"}, "state": state}] if state else []
    site.pages["/api/v1/alerts"] = (200, json.dumps({"data": {"alerts": alerts}}))
    site.pages["/api/v2/alerts?filter=alertname%3D%22Fire%22"] = (200, json.dumps(alerts))


@pytest.fixture
def site() -> Iterator[Site]:
    rules = {"data": {"groups": [{"rules": [{"name": "Fire", "duration": 0}]}]}}
    with serving(Site({"/api/v1/rules?type=alert": (200, json.dumps(rules))})) as found:
        answer(found, None)
        yield found


def watch(code: Any, site: Site, log: Path) -> Any:
    return code.Watch({"prometheus": site.url, "alertmanager": site.url, "log": str(log)})


def test_an_alert_is_followed_from_the_fault_to_its_end(code: Any, site: Site, tmp_path: Path) -> None:
    log = tmp_path / "told.jsonl"
    drill = Drill(site, log)
    told, missing = code.hold(drill, watch(code, site, log), ["Fire"], 5)
    assert missing == []
    assert [line.split(" after ")[0] for line in told] == [
        "Fire fired",
        "Fire reached Alertmanager",
        "Fire reached the receiver",
        "Fire was resolved",
    ]
    assert drill.events == ["provoked", "mended"]


def test_an_alert_that_does_not_come_is_named_and_the_fault_is_mended(code: Any, site: Site, tmp_path: Path) -> None:
    log = tmp_path / "told.jsonl"
    drill = Drill(site, log, fires=False)
    _, missing = code.hold(drill, watch(code, site, log), ["Fire"], 0.2)
    assert "Fire never fired" in missing
    assert "Fire never reached the receiver" in missing
    assert drill.events == ["provoked", "mended"]


def test_what_was_told_before_the_drill_does_not_count(code: Any, site: Site, tmp_path: Path) -> None:
    log = tmp_path / "told.jsonl"
    log.write_text(json.dumps({"at": 1.0, "status": "firing", "labels": {"alertname": "Fire"}}) + "\n")
    assert not watch(code, site, log).was_told("Fire", "firing")


def test_a_node_that_burns_already_is_not_set_on_fire(code: Any, site: Site, tmp_path: Path) -> None:
    answer(site, "firing")
    drill = Drill(site, tmp_path / "log")
    with pytest.raises(code.DrillError, match="fires before anything was provoked"):
        code.hold(drill, watch(code, site, tmp_path / "log"), ["Fire"], 1)
    assert drill.events == []


def test_an_alert_that_prometheus_does_not_have_is_named(code: Any, site: Site, tmp_path: Path) -> None:
    with pytest.raises(code.DrillError, match="no alert Flood"):
        watch(code, site, tmp_path).own_time_s("Flood")


def test_a_disk_that_somebody_uses_is_not_filled(code: Any, tmp_path: Path) -> None:
    code.LARGEST_BYTES = 1
    with pytest.raises(code.DrillError, match="somebody uses it"):
        code.Disk({"folder": str(tmp_path)})
    with pytest.raises(code.DrillError, match="fire_drill_folder"):
        code.Disk({"folder": ""})


def test_real_gpus_are_left_alone(code: Any, tmp_path: Path) -> None:
    code.FAULTS = str(tmp_path / "nothing/faults.json")
    for kind in (code.Gpu, code.Exporter):
        with pytest.raises(code.DrillError, match="stand-ins only"):
            kind({})
