"""Stored dashboards on their way to a node: thresholds of the site, addresses of panels, files to stage."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from tests.unit.role_code import ROOT
from vllm_node.dashboards import store
from vllm_node.dashboards.asking import Question, expand, questions
from vllm_node.plugins.filter.dashboards import FilterModule

KV = store.folder() / "vllm-node-kv-cache.json"
FILES = FilterModule().filters()["dashboard_files"]


def steps(text: str, title: str) -> list[float | None]:
    (found,) = [each for each in store.panels(json.loads(text)) if each["title"] == title]
    return [step["value"] for step in found["fieldConfig"]["defaults"]["thresholds"]["steps"]]


def test_thresholds_are_those_of_the_alerts() -> None:
    assert steps(store.text(KV, store.numbers({})), "KV cache in use") == [None, 0.8, 0.95]
    numbers = store.numbers({"VllmKVCacheSaturated": {"threshold": 0.9}})
    assert steps(store.text(KV, numbers), "KV cache in use") == [None, 0.8, 0.9]


def test_steps_stay_in_order_when_a_site_goes_below_one_of_ours() -> None:
    numbers = store.numbers({"VllmKVCacheSaturated": {"threshold": 0.7}})
    assert steps(store.text(KV, numbers), "KV cache in use") == [None, 0.7, 0.8]


def test_numbers_inside_of_queries_are_written_as_an_edge_of_a_bucket() -> None:
    path = store.folder() / "vllm-node-requests.json"
    for objective, edge in ((2.5, "2.5"), (1.0, "1.0")):
        text = store.text(path, store.numbers({"VllmTTFTHigh": {"objective_s": objective}}))
        assert f'le=\\"{edge}\\"' in text
        assert f"within {edge} s" in text
        assert "alert:" not in text


def test_no_mark_is_left_in_any_of_them() -> None:
    for path in store.paths():
        assert "alert:" not in store.text(path, store.numbers({})), path


def test_a_number_that_is_missing_is_told_with_the_panel() -> None:
    numbers = store.numbers({})
    del numbers["VllmKVCacheSaturated"]
    with pytest.raises(ValueError, match=r"vllm-node-kv-cache\.json, panel 'KV cache in use'.*VllmKVCacheSaturated"):
        store.text(KV, numbers)


def test_addresses_of_panels() -> None:
    assert store.panel_path("vllm-node-kv-cache", "KV cache in use") == "/d/vllm-node-kv-cache?viewPanel=1"
    with pytest.raises(ValueError, match="did you mean KV cache in use"):
        store.panel_path("vllm-node-kv-cache", "KV cache in us")
    with pytest.raises(ValueError, match="no dashboard vllm-node-gpus; did you mean vllm-node-gpu"):
        store.panel_path("vllm-node-gpus", "Clocks")


def test_all_are_staged_and_grafana_need_not_restart_for_them() -> None:
    files = FILES({})
    assert [each["path"] for each in files] == [
        f"/etc/vllm-node/grafana/dashboards/{path.name}" for path in store.paths()
    ]
    assert all(each["live"] for each in files)


def test_imported_ones_are_staged_beside_ours(tmp_path: Path) -> None:
    board = {"id": 3, "title": "Theirs", "uid": "theirs", "panels": []}
    (tmp_path / "x.json").write_text(json.dumps(board))
    found = {each["path"]: json.loads(each["content"]) for each in FILES({}, [str(tmp_path)], False)}
    assert found["/etc/vllm-node/grafana/dashboards/theirs.json"]["id"] is None
    (tmp_path / "x.json").write_text(json.dumps({**board, "panels": [{"type": "graph", "title": "g"}]}))
    with pytest.raises(
        AnsibleFilterError, match=r"grafana_dashboards_import: .*x\.json: panel 'g' is of the retired type graph"
    ):
        FILES({}, [str(tmp_path)], False)
    assert len(FILES({}, [str(tmp_path)], True)) == len(store.paths()) + 1


def test_changes_that_are_not_good_are_told() -> None:
    with pytest.raises(AnsibleFilterError, match="prometheus_alerts: there is no alert Nobody"):
        FILES({"Nobody": {"threshold": 1}})


def test_a_site_needs_neither_the_builder_nor_the_plotting_library() -> None:
    block = "import sys; sys.modules.update(grafana_foundation_sdk=None, matplotlib=None, PIL=None)\n"
    use = "import vllm_node.cli, vllm_node.plugins.filter.dashboards, vllm_node.alerts, vllm_node.dashboards.asking"
    for module, code in ((use, 0), ("import vllm_node.dashboards.build", 1)):
        done = subprocess.run(
            [sys.executable, "-c", block + module], cwd=ROOT, capture_output=True, check=False, timeout=60
        )
        assert done.returncode == code, done.stderr


# --- queries as Prometheus can be asked -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "asked"),
    [
        ('rate(x{node=~"$node"}[$__rate_interval])', 'rate(x{node=~".*"}[1m])'),
        ('x{a="${model_name}",b="${model_name:regex}"}', 'x{a=".*",b=".*"}'),
    ],
)
def test_variables_are_filled_in(expr: str, asked: str) -> None:
    assert expand(expr, "1m", {}) == asked
    assert expand('x{node="$node"}', "1m", {"node": "gpu1"}) == 'x{node="gpu1"}'


def test_every_query_of_every_dashboard_can_be_asked() -> None:
    asked: list[Question] = []
    for path in store.paths():
        model: dict[str, Any] = json.loads(store.text(path, store.numbers({})))
        found = questions(model)
        assert len(found) == sum(len(each.get("targets", [])) for each in store.panels(model))
        asked += found
    assert len(asked) > 100
    assert not [each for each in asked if "$" in each.expr]
