"""The cases of `tests/rules/cases/*.yml`, and the files of `promtool test rules` that are made of them.

A file holds `sets` of labels, and for each alert a list of cases:

    says:    what is shown, a sentence
    series:  lines of a selector and its values, one a minute; `$a` stands for the labels of the set `a`
    at:      {time: silent, or the alerts that fire}; an alert is a set's name and further labels: `a reason=full`
    node:    what the renderer is told about the node (`jobs`, `gpus`), where it matters
    step:    time between two values and two evaluations, 1m if left out; days would take long
    texts:   {annotation: text} of the alerts, where they are looked at; RUNBOOK and PANEL stand for the two addresses

Recording rules have the same, with `values` (`{time: [set number]}`, rounded to thousandths) instead of `at`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.unit.node_code import ROOT
from vllm_node import alerts
from vllm_node.dashboards.store import panel_path

FOLDER = Path(__file__).parent / "cases"
RECORDING = ROOT / "roles/prometheus/files/recording.yml"
URL = "http://grafana.example:3000"
# Names of recorded series; they begin with a level.
_RECORDED = re.compile(r"\b(?:instance|node|gpu):\w+:\w+")


@dataclass(frozen=True)
class Case:
    """One input and what is expected of it. `expected` maps a time to labels of alerts, or to labels and numbers."""

    rule: str
    says: str
    series: tuple[tuple[str, str], ...]
    expected: Mapping[str, tuple[Any, ...]]
    node: Mapping[str, Any] = field(default_factory=dict)
    step: str = "1m"
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def fires(self) -> bool:
        """Whether the alert fires at one of the times."""
        return any(self.expected.values())

    @property
    def resolves(self) -> bool:
        """Whether it fires and is silent later on."""
        fired = False
        for _, labels in sorted(self.expected.items(), key=lambda item: alerts.seconds(item[0])):
            if fired and not labels:
                return True
            fired = fired or bool(labels)
        return False

    @property
    def variant(self) -> str:
        """Cases of one variant are about the same expression."""
        return repr(sorted(self.node.items()))


@cache
def load() -> tuple[Case, ...]:
    """The cases of all alerts."""
    return tuple(case for component in alerts.COMPONENTS for case in _read(FOLDER / f"{component}.yml", _alerts))


@cache
def load_recordings() -> tuple[Case, ...]:
    """The cases of the recording rules."""
    return tuple(_read(FOLDER / "recording.yml", _numbers))


def _read(path: Path, expectation: Any) -> Iterable[Case]:
    data = yaml.safe_load(path.read_text())
    sets: dict[str, dict[str, str]] = data["sets"]
    for rule, entries in data["rules"].items():
        for entry in entries:
            yield Case(
                rule=rule,
                says=entry["says"],
                series=tuple(_series(line, sets) for line in entry["series"]),
                expected={time: expectation(what, sets) for time, what in (entry.get("at") or entry["values"]).items()},
                node=entry.get("node") or {},
                step=entry.get("step", "1m"),
                texts={name: _address(rule, text) for name, text in (entry.get("texts") or {}).items()},
            )


def _address(rule: str, text: str) -> str:
    alert = alerts.load_catalogue()[rule]
    return text.replace("RUNBOOK", URL + panel_path(alerts.RUNBOOKS, rule)).replace(
        "PANEL", URL + panel_path(alert.dashboard, alert.panel)
    )


def _series(line: str, sets: Mapping[str, Mapping[str, str]]) -> tuple[str, str]:
    selector, _, values = line.rpartition("} ")
    if not selector:
        selector, _, values = line.partition(" ")
        return selector, values

    def labels(found: re.Match[str]) -> str:
        return ",".join(f'{key}="{value}"' for key, value in sets[found[1]].items())

    return re.sub(r"\$(\w+)", labels, selector) + "}", values


def _alerts(what: str | list[str], sets: Mapping[str, Mapping[str, str]]) -> tuple[dict[str, str], ...]:
    return () if what == "silent" else tuple(_labels(text, sets) for text in what)


def _numbers(what: list[str], sets: Mapping[str, Mapping[str, str]]) -> tuple[tuple[dict[str, str], float], ...]:
    return tuple((_labels(text.rpartition(" ")[0], sets), float(text.rpartition(" ")[2])) for text in what)


def _labels(text: str, sets: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    name, *more = text.split()
    return {**sets[name], **dict(pair.split("=", 1) for pair in more)}


def shipped() -> dict[str, alerts.Alert]:
    """All alerts as a site without wishes of its own has them."""
    return alerts.in_force({})


def expression(case: Case) -> str:
    """The expression that a case is about."""
    return alerts.expression(shipped()[case.rule], **case.node)


def write(folder: Path, name: str, case_list: Sequence[Case], rule: Mapping[str, Any]) -> Path:
    """A test file `name` below `folder` with these cases about `rule`, all of one step, and that rule's file beside it."""
    rules = folder / f"{name}-rules.yml"
    given = {selector.partition("{")[0] for case in case_list for selector, _ in case.series}
    # In one group, where each rule sees what those above it have just recorded.
    needed = [{"record": name, "expr": recordings()[name]} for name in _needed(rule["expr"]) if name not in given]
    rules.write_text(yaml.safe_dump({"groups": [{"name": "rules", "rules": [*needed, dict(rule)]}]}))
    document = {
        "rule_files": [rules.name],
        "evaluation_interval": case_list[0].step,
        "tests": [_group(case, rule) for case in case_list],
    }
    path = folder / f"{name}.yml"
    path.write_text(yaml.safe_dump(document))
    return path


def write_recordings(folder: Path, name: str, case_list: Sequence[Case], expr: str) -> Path:
    """A test file with cases about one recording rule, whose expression is `expr`."""
    record = case_list[0].rule
    needed = [{"record": each, "expr": recordings()[each]} for each in _needed(expr)]
    rules = folder / f"{name}-rules.yml"
    rules.write_text(
        yaml.safe_dump({"groups": [{"name": "rules", "rules": [*needed, {"record": record, "expr": expr}]}]})
    )
    document = {
        "rule_files": [rules.name],
        # Half way between two samples both generations see the same ones in a window, whichever of its ends is open.
        "evaluation_interval": "30s",
        "tests": [
            {
                **_input(case),
                "promql_expr_test": [
                    {
                        "expr": f"round({record}, 0.001)",
                        "eval_time": time,
                        "exp_samples": [{"labels": _selector(labels), "value": value} for labels, value in samples],
                    }
                    for time, samples in case.expected.items()
                ],
            }
            for case in case_list
        ],
    }
    path = folder / f"{name}.yml"
    path.write_text(yaml.safe_dump(document))
    return path


@cache
def recordings() -> Mapping[str, str]:
    """Expression of each recording rule."""
    groups = yaml.safe_load(RECORDING.read_text())["groups"]
    return {rule["record"]: rule["expr"] for group in groups for rule in group["rules"]}


def _needed(expr: str) -> list[str]:
    """Recorded series that an expression reads, and those that these read, the innermost first."""
    found: list[str] = []
    for name in _RECORDED.findall(expr):
        found += [each for each in [*(_needed(recordings().get(name, ""))), name] if each in recordings()]
    return list(dict.fromkeys(found))


def _input(case: Case) -> dict[str, Any]:
    return {
        "name": case.says,
        "interval": case.step,
        "external_labels": {"node": "n1"},
        "input_series": [{"series": selector, "values": values} for selector, values in case.series],
    }


def _group(case: Case, rule: Mapping[str, Any]) -> dict[str, Any]:
    own = rule["labels"]
    return {
        **_input(case),
        "alert_rule_test": [
            {
                "eval_time": time,
                "alertname": case.rule,
                "exp_alerts": [
                    {"exp_labels": {**own, **labels}, **({"exp_annotations": dict(case.texts)} if case.texts else {})}
                    for labels in fired
                ],
            }
            for time, fired in case.expected.items()
        ],
    }


def _selector(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}"
