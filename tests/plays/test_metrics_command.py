"""`vllm-node metrics`: over files alone, and over a node, with the real playbook and servers on loopback as its targets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.unit.metrics_pages import page
from tests.unit.node_code import ROOT
from tests.unit.web import Site, nobody, serving
from vllm_node.cli import cli
from vllm_node.exit_codes import ExitCode
from vllm_node.metrics import dictionary, schema
from vllm_node.metrics.exposition import schema_of


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["metrics", *map(str, words)])


def saved(folder: Path, name: str = "gpu1", **vllm: Any) -> Path:
    """File of a node that has everything, but for what `vllm` says of its instance."""
    found = []
    for job in dictionary.load().jobs():
        said: dict[str, Any] = {"job": job, "instance": job, "url": f"http://127.0.0.1:1/{job}", "state": "ok"}
        said |= {"metrics": schema_of(page(job)), "version": "0.32.0" if job == "vllm" else None}
        found.append({**said, **(vllm if job == "vllm" else {})})
    return schema.write(folder, name, found)


# --- over files


def test_a_schema_that_has_everything_is_well(tmp_path: Path) -> None:
    path = saved(tmp_path)
    done = call("check", "--schema", path)
    assert done.exit_code == ExitCode.OK, done.output
    assert done.output.splitlines()[-1].startswith(f"{path}: ")
    assert done.output.splitlines()[-1].endswith(" expressions, every metric that they ask for is there")


def test_each_file_is_told_and_one_that_lacks_something_fails(tmp_path: Path) -> None:
    good, bad = saved(tmp_path), saved(tmp_path, "gpu2", metrics=schema_of(page("vllm", without=["kv_usage"])))
    done = call("check", "--schema", good, "--schema", bad)
    assert done.exit_code == ExitCode.TASK_FAILED
    assert f"{bad}: vllm:kv_cache_usage_perc is not offered by vllm/vllm (0.32.0)" in done.output
    assert f"{good}: vllm:kv_cache_usage_perc" not in done.output
    assert "asked by roles/" in done.output
    assert "next: " in done.output


def test_json_is_one_document(tmp_path: Path) -> None:
    bad = saved(tmp_path, state="gone", error="Connection refused", metrics={})
    done = call("check", "--json", "--schema", bad)
    document = json.loads(done.output)
    assert done.exit_code == ExitCode.TASK_FAILED
    assert document["schema"] == 1
    (told,) = document["checks"]
    assert (told["where"], told["ok"]) == (str(bad), False)
    assert [(one["metric"], one["seen"]) for one in told["problems"]] == [
        ("vllm/vllm", "gives no metrics: Connection refused")
    ]


def test_a_page_that_was_saved_is_checked_with_its_version(tmp_path: Path) -> None:
    text = tmp_path / "page.txt"
    text.write_text(page("vllm", "0.9.0"))
    done = call("check", "--scrape", f"vllm@0.9.0={text}")
    assert done.exit_code == ExitCode.TASK_FAILED
    assert "is called vllm:gpu_cache_usage_perc by vllm/vllm (0.9.0)" in done.output
    text.write_text(page("vllm", "0.32.0"))
    assert call("check", "--scrape", f"vllm@0.32.0={text}").exit_code == ExitCode.OK


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Give -i INVENTORY"),
        (["-i", "x", "--schema", "{file}"], "Give -i INVENTORY"),
        (["--schema", "nowhere.yml"], "does not exist"),
        (["--schema", "{file}"], "is no schema of metrics"),
        (["--scrape", "vllm"], "give JOB=FILE"),
        (["--scrape", "vlm={file}"], "jobs are alertmanager"),
        (["--scrape", "vllm=nowhere"], "nowhere: No such file"),
        (["--scrape", "vllm={file}"], "is no page of metrics"),
    ],
)
def test_a_call_that_cannot_be_used_says_why(tmp_path: Path, words: list[str], said: str) -> None:
    file = tmp_path / "file"
    file.write_text("<html>\n")
    done = call("check", *(word.format(file=file) for word in words))
    assert done.exit_code == ExitCode.USAGE
    assert said in done.output


# --- over a node


@dataclass
class Node:
    """A node whose targets are servers here: {job: page}. `variables` go into its inventory."""

    root: Path
    sites: dict[str, Site]
    variables: dict[str, Any] = field(default_factory=dict)

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        port = {job: int(site.url.rpartition(":")[2]) for job, site in self.sites.items()}
        host = {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": sys.executable,
            "ansible_remote_tmp": str(self.root / "remote"),
            "vllm_instances": [{"name": "chat", "port": port["vllm"]}],
            "prometheus_port": port["prometheus"],
            "alertmanager_port": port["alertmanager"],
            "node_exporter_port": port["node"],
            "dcgm_exporter_port": port["dcgm"],
            **self.variables,
        }
        inventory = self.root / "hosts.yml"
        inventory.write_text(yaml.safe_dump({"gpu_nodes": {"hosts": {"gpu1": host}}}))
        return subprocess.run(
            [sys.executable, "-m", "vllm_node", "metrics", *words, "-i", str(inventory)],
            env={**os.environ, "ANSIBLE_LOCAL_TEMP": str(self.root / "tmp")},
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as running:
        sites = {job: Site({"/metrics": (200, page(job, conditional=True))}) for job in dictionary.load().jobs()}
        sites["vllm"].pages["/version"] = (200, '{"version": "0.32.0"}')
        for site in sites.values():
            running.enter_context(serving(site))
        yield Node(tmp_path, sites)


def test_a_node_that_offers_everything_is_well(node: Node) -> None:
    done = node.call("check")
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    assert "gpu1: " in done.stdout
    assert "expressions, every metric that they ask for is there" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("metrics check: done")


def test_a_node_that_lacks_something_fails_and_says_what(node: Node) -> None:
    node.sites["vllm"].pages["/metrics"] = (200, page("vllm", conditional=True).replace("kv_cache_usage_perc", "kv_use"))
    node.variables["dcgm_exporter_enabled"] = False
    node.variables["node_exporter_port"] = int(nobody().rpartition(":")[2])
    done = node.call("check", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == ExitCode.TASK_FAILED
    host = document["hosts"]["gpu1"]
    told = {one["metric"]: one["seen"] for one in host["metrics_check"]["problems"]}
    assert told == {
        "node/node-exporter": "gives no metrics: Connection refused",
        "vllm:kv_cache_usage_perc": "is not offered by vllm/chat (0.32.0)",
    }
    assert host["metrics_check"]["off"] == [
        "dcgm/dcgm-exporter is switched off here: what is asked of it has no data, and is not judged"
    ]
    assert "asked by roles/grafana/files/dashboards/vllm-node-kv-cache.json: panel" in host["failure"]["message"]
    assert "gpu1: vllm:kv_cache_usage_perc is not offered" in host["failure"]["message"]


def test_alerts_are_those_of_the_inventory(node: Node) -> None:
    node.variables["prometheus_alerts"] = {"VllmNonsense": {"threshold": 1}}
    done = node.call("check")
    assert done.returncode == ExitCode.TASK_FAILED
    assert "gpu1: prometheus_alerts: there is no alert VllmNonsense" in done.stdout


def test_a_snapshot_is_saved_and_can_be_checked_without_the_node(node: Node) -> None:
    done = node.call("snapshot")
    path = node.root / "metrics-schema/gpu1.yml"
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    assert f"gpu1: {path}" in done.stdout
    (vllm,) = (one for one in schema.read(path) if one.job == "vllm")
    assert (vllm.instance, vllm.state, vllm.version) == ("chat", "ok", "0.32.0")
    assert "vllm:kv_cache_usage_perc" in vllm.series()
    assert call("check", "--schema", path).exit_code == ExitCode.OK


def test_a_snapshot_of_a_node_that_is_half_there_is_saved_and_fails(node: Node) -> None:
    node.sites["dcgm"].pages["/metrics"] = (503, "")
    done = node.call("snapshot", "--output", "here", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == ExitCode.TASK_FAILED
    host = document["hosts"]["gpu1"]
    assert "gpu1: no metrics from dcgm/dcgm-exporter (http://127.0.0.1:" in host["failure"]["message"]
    assert "HTTP 503" in host["failure"]["message"]
    states = {one.job: one.state for one in schema.read(Path(host["metrics_schema_file"]))}
    assert states == {"prometheus": "ok", "alertmanager": "ok", "node": "ok", "dcgm": "gone", "vllm": "ok"}


def test_the_role_looks_at_nothing_in_check_mode() -> None:
    tasks = yaml.safe_load((ROOT / "roles/metrics/tasks/main.yml").read_text())
    assert [task["name"] for task in tasks if "not ansible_check_mode" not in task["when"]] == []
