"""Every rule in the real promtool of both generations: it fires, it stays silent, it resolves, and a fault in it is noticed."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.rules import cases, mutants
from tests.rules.cases import Case
from tests.rules.promtool import failures
from vllm_node import alerts
from vllm_node.lab import host, tools

SERIES: tuple[tools.Series, ...] = ("2.53", "3")
NAMES = list(cases.shipped())

# Faults that no case can notice, because the rule means the same with them: (alert, kind, what), and why.
EQUIVALENT = {
    ("Watchdog", "number", "#1, 1, is 2"): "only that there is a value counts",
    ("Watchdog", "number", "#1, 1, is 0"): "only that there is a value counts",
    ("GpuHwSlowdown", "number", "#6, 128, is 102"): "from 102 to 127 bit 0x40 is set, on which it fires anyway",
    ("PrometheusRemoteWriteBehind", "number", "#1, 0, is -1"): "no count of samples comes near a time since 1970",
    # `>= 0` takes NaN away, and no latency is below 0.
    **{
        (record, "number", "#2, 0, is -1"): "any comparison takes NaN away"
        for record, expr in cases.recordings().items()
        if expr.startswith("histogram_quantile")
    },
}


@pytest.fixture(autouse=True, scope="module")
def _lab() -> None:
    missing = host.missing()
    if missing:
        pytest.skip("promtool cannot be unpacked here: " + "; ".join(thing.what for thing in missing))


def rule(case: Case) -> dict[str, Any]:
    return alerts.rule(cases.shipped()[case.rule], dashboards_url=cases.URL, **case.node)


def bare(case: Case) -> dict[str, Any]:
    """Without annotations: promtool compares all of them or none."""
    return {key: value for key, value in rule(case).items() if key != "annotations"}


def write(folder: Path, name: str, wanted: Sequence[Case], tested: dict[str, Any]) -> list[Path]:
    """Test files about one rule, one for each step of time that its cases have."""
    steps = sorted({case.step for case in wanted})
    return [
        cases.write(folder, f"{name}-{step}", [case for case in wanted if case.step == step], tested) for step in steps
    ]


def by_variant(wanted: Iterable[Case]) -> list[list[Case]]:
    """Cases that are about the same expression."""
    found = defaultdict(list)
    for case in wanted:
        found[case.rule, case.variant].append(case)
    return [*found.values()]


def told(found: dict[Path, str]) -> str:
    return "\n".join(f"{path.name}: {text}" for path, text in found.items())


@pytest.mark.parametrize("series", SERIES)
def test_promtool_takes_the_files_that_a_node_gets(series: tools.Series, tmp_path: Path) -> None:
    paths = [cases.RECORDING]
    for component in alerts.COMPONENTS:
        path = tmp_path / f"alerts-{component}.yml"
        path.write_text(alerts.rule_file(component, {}, dashboards_url=cases.URL))
        paths.append(path)
    done = subprocess.run(
        [*tools.promtool(series), "check", "rules", "--lint=all", "--lint-fatal", *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("series", SERIES)
def test_each_case_of_each_alert(series: tools.Series, tmp_path: Path) -> None:
    files = []
    for number, group in enumerate(by_variant(cases.load())):
        plain, worded = [case for case in group if not case.texts], [case for case in group if case.texts]
        files += write(tmp_path, f"{group[0].rule}-{number}", plain, bare(group[0]))
        files += write(tmp_path, f"{group[0].rule}-{number}-texts", worded, rule(group[0]))
    found = failures(series, files)
    assert not found, told(found)


@pytest.mark.parametrize("series", SERIES)
def test_each_case_of_each_recording_rule(series: tools.Series, tmp_path: Path) -> None:
    files = [
        cases.write_recordings(tmp_path, str(number), group, cases.recordings()[group[0].rule])
        for number, group in enumerate(by_variant(cases.load_recordings()))
    ]
    found = failures(series, files)
    assert not found, told(found)


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_in_a_rule_is_noticed(name: str, tmp_path: Path) -> None:
    faulty: dict[str, list[Path]] = {}
    own = [case for case in cases.load() if case.rule == name and not case.texts]
    for number, group in enumerate(by_variant(own)):
        good = bare(group[0])
        wanted = [mutant for mutant in mutants.of(good["expr"].strip()) if (name, mutant.kind, mutant.what) not in EQUIVALENT]
        for at, mutant in enumerate(wanted):
            what = f"{mutant.kind}, {mutant.what}: {mutant.expr}"
            faulty[what] = write(tmp_path, f"{number}-{at}", group, {**good, "expr": mutant.expr})
        for waiting in mutants.durations(good["for"]):
            faulty[f"for is {waiting}"] = write(tmp_path, f"{number}-for-{waiting}", group, {**good, "for": waiting})
    noticed = failures("3", [path for paths in faulty.values() for path in paths])
    survived = [what for what, paths in faulty.items() if not noticed.keys() & set(paths)]
    assert not survived, "\n".join(survived)


def test_a_fault_that_no_case_looks_for_would_be_found(tmp_path: Path) -> None:
    silent = [case for case in cases.load() if case.rule == "VllmKVCacheSaturated" and not case.fires]
    files = write(tmp_path, "blind", silent, {**bare(silent[0]), "expr": "vector(1) > 2"})
    fired = [case for case in cases.load() if case.rule == "VllmKVCacheSaturated" and case.fires]
    files += write(tmp_path, "seen", fired, {**bare(fired[0]), "expr": "vector(1) > 2"})
    assert [path.name for path in failures("3", files)] == ["seen-1m.yml"]


@pytest.mark.parametrize("record", list(cases.recordings()))
def test_a_fault_in_a_recording_rule_is_noticed(record: str, tmp_path: Path) -> None:
    own = [case for case in cases.load_recordings() if case.rule == record]
    faulty = {
        f"{mutant.kind}, {mutant.what}: {mutant.expr}": cases.write_recordings(tmp_path, str(at), own, mutant.expr)
        for at, mutant in enumerate(mutants.of(cases.recordings()[record].strip()))
        if (record, mutant.kind, mutant.what) not in EQUIVALENT
    }
    noticed = failures("3", [*faulty.values()])
    survived = [what for what, path in faulty.items() if path not in noticed]
    assert not survived, "\n".join(survived)


@pytest.mark.parametrize("name", NAMES)
def test_each_alert_has_a_fault_and_a_look_alike(name: str) -> None:
    own = [case for case in cases.load() if case.rule == name]
    assert any(case.fires for case in own)
    # A dead-man's switch has nothing that it stays silent on.
    assert name == "Watchdog" or (any(not case.fires for case in own) and any(case.resolves for case in own))


def test_the_texts_are_looked_at_once_in_each_file() -> None:
    shipped = cases.shipped()
    assert {shipped[case.rule].component for case in cases.load() if case.texts} == set(alerts.COMPONENTS)


def test_each_recording_rule_has_a_case() -> None:
    assert set(cases.recordings()) == {case.rule for case in cases.load_recordings()}


def test_a_fault_that_is_called_equivalent_exists() -> None:
    expressions = {**{case.rule: cases.expression(case) for case in cases.load()}, **cases.recordings()}
    known = {(name, each.kind, each.what) for name, expr in expressions.items() for each in mutants.of(expr.strip())}
    assert set(EQUIVALENT) <= known
