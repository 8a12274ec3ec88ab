"""What the roles make of a site with everything is taken by the real programs of both generations."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.golden import rendered
from vllm_node.lab import host, tools

PLACES = {"prometheus": "node-a/etc/vllm-node/prometheus/", "alertmanager": "node-a/etc/vllm-node/alertmanager/"}
BOTH: tuple[tools.Series, ...] = ("2.53", "3")


@pytest.fixture(autouse=True, scope="module")
def _lab() -> None:
    missing = host.missing()
    if missing:
        pytest.skip("the programs cannot be unpacked here: " + "; ".join(thing.what for thing in missing))


def files(program: str, folder: Path) -> Path:
    """The rendered folder of a program, as it lies on the node; gives its main file."""
    place = PLACES[program]
    for path, text in rendered().items():
        if path.startswith(place):
            target = folder / path.removeprefix(place)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    return folder / f"{program}.yml"


def said(words: Sequence[str]) -> tuple[int, str]:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("series", BOTH)
def test_prometheus_takes_its_configuration_with_all_rules(tmp_path: Path, series: tools.Series) -> None:
    main = files("prometheus", tmp_path)
    code, words = said([*tools.promtool(series), "check", "config", str(main)])
    assert code == 0, words
    assert f"SUCCESS: {len(list((tmp_path / 'rules').glob('*.yml')))} rule files found" in words
    assert words.count("rules found") == len(list((tmp_path / "rules").glob("*.yml")))


@pytest.mark.parametrize("series", BOTH)
def test_alertmanager_takes_every_kind_of_receiver(tmp_path: Path, series: tools.Series) -> None:
    main = files("alertmanager", tmp_path)
    code, words = said([*tools.amtool(series), "check-config", str(main)])
    assert code == 0, words
    assert "5 receivers" in words


@pytest.mark.parametrize(
    ("program", "before", "after"),
    [
        ("prometheus", "basic_auth:", "basic_authh:"),
        ("prometheus", "action: labeldrop", "action: forget"),
        ("alertmanager", "slack_configs:", "slak_configs:"),
        ("alertmanager", "group_by: [node, severity]", "group_by: [node, node]"),
    ],
)
def test_a_wrong_word_would_be_refused(tmp_path: Path, program: str, before: str, after: str) -> None:
    main = files(program, tmp_path)
    text = main.read_text()
    assert before in text
    main.write_text(text.replace(before, after))
    check = [*tools.promtool("3"), "check", "config"] if program == "prometheus" else [*tools.amtool("3"), "check-config"]
    assert said([*check, str(main)])[0] != 0


@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        ({"severity": "critical", "node": "node-a"}, {"on-call", "chat"}),
        ({"severity": "warning", "node": "node-a"}, {"chat", "mail"}),
        ({"severity": "info", "node": "node-a"}, {"mail"}),
        ({"severity": "none", "alertname": "Watchdog"}, {"deadman"}),
        ({"severity": "none", "alertname": "Other"}, {"nobody"}),
    ],
)
def test_each_severity_reaches_those_who_asked_for_it(
    tmp_path: Path, labels: dict[str, str], receivers: set[str]
) -> None:
    main = files("alertmanager", tmp_path)
    words = [f"{name}={value}" for name, value in labels.items()]
    code, told = said([*tools.amtool("3"), "config", "routes", "test", f"--config.file={main}", *words])
    assert code == 0, told
    assert set(told.splitlines()[0].split(",")) == receivers
