"""Pictures of dashboards, drawn from answers that this test gives."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from vllm_node.dashboards import pictures, store
from vllm_node.dashboards.asking import Prometheus, Question, Series
from vllm_node.dashboards.drawing import coloured, name, picture, shown, table
from vllm_node.paths import project_root

START = 1_760_000_000.0


def series(question: Question, labels: dict[str, str], height: float = 0.5) -> Series:
    times = [START] if question.instant else [START + 15 * step for step in range(40)]
    return Series(labels, tuple((time, height) for time in times))


def plenty(question: Question) -> list[Series]:
    if "sum by (le) (increase" in question.expr:
        return [series(question, {"le": edge}, count) for edge, count in (("0.5", 1.0), ("2.5", 4.0), ("+Inf", 5.0))]
    labels = {"node": "gpu1", "instance": "tiny", "gpu": "0", "alertname": "Watchdog", "severity": "none"}
    return [series(question, labels), series(question, {**labels, "gpu": "1"}, float("nan"))]


def nothing(_question: Question) -> list[Series]:
    return []


def pixels(png: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def board(uid: str) -> dict[str, Any]:
    model: dict[str, Any] = json.loads(store.text(store.folder() / f"{uid}.json", store.numbers({})))
    return model


def test_each_dashboard_has_a_picture_of_a_sane_size() -> None:
    """Those of the docs: drawing all of them here would take as long as all other tests."""
    written = sorted((project_root() / "docs/images").glob("*.png"))
    assert [path.stem for path in written] == [path.stem for path in store.paths()], "make pictures"
    for path in written:
        assert 5_000 < path.stat().st_size < 400_000
        assert Image.open(path).size[0] == 1200


def test_the_answers_are_in_the_picture_and_so_is_their_absence() -> None:
    model = board("vllm-node-kv-cache")
    drawn, empty = pixels(picture(model, plenty)), pixels(picture(model, nothing))
    assert drawn.shape == empty.shape
    green = (abs(drawn - (63, 154, 74)).sum(axis=2) < 40).sum()
    assert green > 200
    assert (abs(empty - (63, 154, 74)).sum(axis=2) < 40).sum() == 0


def test_a_threshold_is_a_line() -> None:
    model = board("vllm-node-kv-cache")
    (kept,) = [each for each in model["panels"] if each["title"] == "KV cache in use"]
    with_line = pixels(picture({**model, "panels": [kept]}, plenty))
    kept["fieldConfig"]["defaults"]["thresholds"]["steps"] = kept["fieldConfig"]["defaults"]["thresholds"]["steps"][:1]
    without = pixels(picture({**model, "panels": [kept]}, plenty))
    red = [(abs(each - (209, 52, 56)).sum(axis=2) < 60).sum() for each in (with_line, without)]
    assert red[0] > 100 > red[1]


def test_tables_join_their_columns_by_the_labels() -> None:
    (panel,) = [each for each in board("vllm-node-fleet")["panels"] if each["title"] == "Nodes"]

    def answer(number: int, question: Question) -> list[Series]:
        nodes = ("a",) if number == 1 else ("a", "b")
        return [series(question, {"node": node}, number) for node in nodes]

    asked = [
        (question, answer(number, question))
        for number, question in enumerate(Question("Nodes", ref, "x", "", True) for ref in "ABCDEFGHIJ")
    ]
    head, lines = table(panel, asked)
    assert head[:4] == ["node", "targets up", "alerts", "running"]
    assert [line[:4] for line in lines] == [["a", "0 %", "1", "2"], ["b", "0 %", "", "2"]]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        *((0.25, "percentunit", "25 %"), (41.0, "percent", "41 %"), (0.0, "s", "0"), (0.0301, "s", "30.1 ms")),
        *((7200.0, "s", "2 h"), (1.41e9, "hertz", "1.41 GHz"), (3.0, "none", "3"), (float("nan"), "s", "no value")),
        *((float("inf"), "s", "∞"), (65.0, "celsius", "65 °C")),
    ],
)
def test_values_are_written_for_people(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_legends_take_their_labels_from_the_series() -> None:
    one = Series({"node": "a", "gpu": "3"}, ())
    assert name("{{node}} GPU {{gpu}} p95", one) == "a GPU 3 p95"
    assert name("", one) == "a, 3"


def test_colours_follow_the_thresholds() -> None:
    defaults = {"thresholds": {"steps": [{"value": None, "color": "green"}, {"value": 1, "color": "red"}]}}
    assert coloured(0.5, defaults) != coloured(1, defaults)


def test_an_address_that_is_none_and_one_that_does_not_answer_are_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="an address begins with"):
        Prometheus("file:///etc/passwd", START, 60, 1)
    done = CliRunner().invoke(pictures.main, ["--prometheus", "http://127.0.0.1:1", "--output", str(tmp_path)])
    assert done.exit_code == 1
    assert "http://127.0.0.1:1" in done.output
