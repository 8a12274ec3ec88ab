"""What a node says about itself, with real vLLM, Prometheus 2.53 and 3, and Alertmanager: every panel, every alert's way.

The tests of this file build on each other: a node comes up, is loaded and hurt, and gets the next major Prometheus.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.labs import Nodes, Run
from tests.real.load import some_load
from vllm_node.dashboards import asking, store
from vllm_node.lab.node import Spec
from vllm_node.paths import project_root

pytestmark = pytest.mark.real
NAME = "watched"
PROMETHEUS, ALERTMANAGER = 9091, 9093
PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
# Timings of seconds instead of minutes, a small KV cache, and a receiver.
DRILL: dict[str, Any] = yaml.safe_load((project_root() / "inventories/lab/fire-drill.yml").read_text())
# Series of a node after a scrape; the model is one instance, the GPUs are eight.
SERIES_PER_INSTANCE, SERIES_PER_GPU, SERIES_PER_CORE = 500, 60, 5
SERIES_OF_NODE, SERIES_OF_PROMETHEUS, SERIES_OF_ALERTMANAGER, SERIES_OF_RULES = 200, 500, 200, 150


@pytest.fixture(scope="module")
def watched(nodes: Nodes) -> Iterator[Nodes]:
    """A bare node with a small disk."""
    nodes.make(Spec(NAME))
    nodes.lab.attach_disk(NAME, DRILL["fire_drill_folder"])
    yield nodes
    nodes.lab.remove(NAME)


@pytest.fixture(scope="module")
def up(watched: Nodes) -> Run:
    """The bring-up, and something to look at."""
    run = watched.run("up", limit=NAME, variables=DRILL)
    if run.code == 0:
        with watched.tunnel(NAME, 8000) as url:
            some_load(url)
    return run


def query(nodes: Nodes, expr: str) -> list[dict[str, Any]]:
    """Result of an instant query."""
    with nodes.tunnel(NAME, PROMETHEUS) as url:
        words = urllib.parse.quote(expr)
        with urllib.request.urlopen(f"{url}/api/v1/query?query={words}", timeout=30) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return found


def value(nodes: Nodes, expr: str) -> float:
    """The one number that an expression gives."""
    (one,) = query(nodes, expr)
    return float(one["value"][1])


def container(nodes: Nodes, name: str) -> str:
    """Id of a running container."""
    return nodes.shell(NAME, f"podman inspect {name} --format '{{{{.Id}}}}'").strip()


def silent_panels(nodes: Nodes) -> set[tuple[str, str]]:
    """(dashboard, panel) of each panel that has a query without a single sample."""
    silent = set()
    with nodes.tunnel(NAME, PROMETHEUS) as url:
        prometheus = asking.Prometheus(url, time.time(), span_s=600, step_s=10)
        for path in store.paths():
            board = json.loads(path.read_text())
            filled = json.loads(store.text(path, store.numbers({})))
            for question in asking.questions(filled, rate_interval="1m"):
                if not any(series.points for series in prometheus(question)):
                    silent.add((board["uid"], question.panel))
    return silent


def may_be_empty() -> set[tuple[str, str]]:
    """The short list of panels that show nothing on a healthy node, with a reason each."""
    text = (project_root() / "roles/grafana/files/panels-that-may-be-empty.yml").read_text()
    return {(uid, title) for uid, panels in yaml.safe_load(text).items() for title, reason in panels.items() if reason}


def test_the_node_comes_up_with_all_of_it(up: Run) -> None:
    assert up.code == 0, up.document


def test_every_name_that_is_used_is_there(watched: Nodes, up: Run) -> None:
    run = watched.run("metrics check", limit=NAME)
    assert run.code == 0, run.document


def test_every_panel_shows_something(watched: Nodes, up: Run) -> None:
    silent = silent_panels(watched)
    assert silent - may_be_empty() == set()


def test_series_are_counted_and_bounded(watched: Nodes, up: Run) -> None:
    found = {one["metric"].get("job", "rules"): float(one["value"][1]) for one in query(watched, 'count by (job) ({__name__!=""})')}
    cores = value(watched, 'count(node_cpu_seconds_total{mode="idle"})')
    limits = {
        "vllm": SERIES_PER_INSTANCE,
        "dcgm": 8 * SERIES_PER_GPU,
        "node": SERIES_OF_NODE + cores * SERIES_PER_CORE,
        "prometheus": SERIES_OF_PROMETHEUS,
        "alertmanager": SERIES_OF_ALERTMANAGER,
    }
    assert set(limits) <= set(found), "a job without series would be within any limit"
    assert {job: count for job, count in found.items() if job in limits and count > limits[job]} == {}, found
    recorded = value(watched, 'count({__name__=~".+:.+:.+"})')
    assert 0 < recorded <= SERIES_OF_RULES
    assert query(watched, '{__name__=~".+_created"}') == []


def test_one_scheme_of_labels(watched: Nodes, up: Run) -> None:
    assert {(one["metric"]["job"], one["metric"]["instance"], one["metric"]["node"]) for one in query(watched, "up")} == {
        ("prometheus", "prometheus", NAME),
        ("alertmanager", "alertmanager", NAME),
        ("vllm", "tiny", NAME),
        ("dcgm", "dcgm-exporter", NAME),
        ("node", "node-exporter", NAME),
    }
    labels = {label for one in query(watched, "DCGM_FI_DEV_GPU_UTIL") for label in one["metric"]}
    assert not {"Hostname", "hostname", "DCGM_FI_DRIVER_VERSION"} & labels
    assert {"gpu", "UUID", "node", "instance"} <= labels


def test_a_threshold_is_taken_up_without_a_restart(watched: Nodes, up: Run) -> None:
    before = container(watched, "prometheus"), container(watched, "alertmanager")
    changed = {**DRILL, "prometheus_alerts": {**DRILL["prometheus_alerts"], "VllmQueueBacklog": {"threshold": 3, "window": "20s", "for": "5s"}}}
    run = watched.run("up", limit=NAME, variables={**changed, "alertmanager_repeat_interval": "1h"})
    assert run.code == 0, run.document
    assert (container(watched, "prometheus"), container(watched, "alertmanager")) == before
    with watched.tunnel(NAME, PROMETHEUS) as url, urllib.request.urlopen(f"{url}/api/v1/rules", timeout=30) as answer:
        rules = {rule["name"]: rule for group in json.load(answer)["data"]["groups"] for rule in group["rules"]}
    assert "> 3" in rules["VllmQueueBacklog"]["query"]
    with watched.tunnel(NAME, ALERTMANAGER) as url, urllib.request.urlopen(f"{url}/api/v2/status", timeout=30) as answer:
        assert "repeat_interval: 1h" in json.load(answer)["config"]["original"]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"prometheus_labels": {"9-is-no-label": "x"}}, "promtool check config"),
        ({"alertmanager_repeat_interval": "soon"}, "amtool check-config"),
    ],
)
def test_a_broken_configuration_replaces_nothing(watched: Nodes, up: Run, broken: dict[str, Any], words: str) -> None:
    files = "cd /etc/vllm-node && sha256sum prometheus/*.yml prometheus/rules/* alertmanager/*"
    before = watched.shell(NAME, files)
    run = watched.run("up", limit=NAME, variables={**DRILL, **broken})
    assert run.code == 4, run.document
    assert words in json.dumps(run.document)
    assert watched.shell(NAME, files) == before
    assert value(watched, "prometheus_config_last_reload_successful") == 1


def test_each_fault_reaches_the_receiver(watched: Nodes, up: Run) -> None:
    run = watched.run("up", limit=NAME, variables=DRILL)
    assert run.code == 0, run.document
    words = (str(PLAYBOOK), "-i", "inventories/lab", "playbooks/fire-drill.yml", "--limit", NAME)
    more = ("-e", "@inventories/lab/fire-drill.yml", "-e", f"fire_drill_on={NAME}")
    done = watched.program(*words, *more, limit_s=900)
    assert done.returncode == 0, done.stdout[-3000:]
    # Nothing of the drill stays.
    assert watched.shell(NAME, "ls /run/vllm-node-fire-drill /srv/spare/fire-drill.fill 2>&1 | grep -vc 'No such' || true").strip() == "0"


def alerts(nodes: Nodes) -> dict[str, str]:
    """State in Alertmanager of each alert that a test has posted, by its name."""
    with nodes.tunnel(NAME, ALERTMANAGER) as url, urllib.request.urlopen(f"{url}/api/v2/alerts", timeout=30) as answer:
        return {one["labels"]["alertname"]: one["status"]["state"] for one in json.load(answer) if "posted" in one["labels"]}


def post(nodes: Nodes, *told: dict[str, str]) -> None:
    """Tell Alertmanager alerts, as Prometheus would."""
    body = json.dumps([{"labels": {"node": NAME, "posted": "yes", **labels}} for labels in told]).encode()
    with nodes.tunnel(NAME, ALERTMANAGER) as url:
        request = urllib.request.Request(f"{url}/api/v2/alerts", data=body, headers={"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=30).close()


def window(nodes: Nodes, tasks: str) -> None:
    """Begin or end a benchmark window, with the role's own tasks."""
    play = [{"hosts": NAME, "gather_facts": False, "tasks": [{"ansible.builtin.include_role": {"name": "alertmanager", "tasks_from": tasks}}]}]
    path = Path(nodes.lab.folder) / "window.yml"
    path.write_text(yaml.safe_dump(play))
    done = subprocess.run(
        [PLAYBOOK, "-i", "inventories/lab", path], cwd=project_root(), env=nodes.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_a_benchmark_silences_warnings_and_never_hardware(watched: Nodes, up: Run) -> None:
    window(watched, "quiet.yml")
    try:
        post(
            watched,
            {"alertname": "Slow", "severity": "warning", "kind": "service"},
            {"alertname": "Down", "severity": "critical", "kind": "service", "instance": "other"},
            {"alertname": "Hot", "severity": "warning", "kind": "hardware"},
        )
        assert _eventually(watched, {"Slow": "suppressed", "Down": "active", "Hot": "active"})
    finally:
        window(watched, "loud.yml")
    assert _eventually(watched, {"Slow": "active"})


def test_a_node_that_is_down_silences_its_instances(watched: Nodes, up: Run) -> None:
    post(
        watched,
        {"alertname": "NodeDown", "severity": "critical", "kind": "service"},
        {"alertname": "InstanceDown", "severity": "critical", "kind": "service", "instance": "tiny"},
        {"alertname": "Burnt", "severity": "critical", "kind": "hardware"},
    )
    assert _eventually(watched, {"InstanceDown": "suppressed", "NodeDown": "active", "Burnt": "active"})


def _eventually(nodes: Nodes, wanted: dict[str, str]) -> bool:
    for _ in range(60):
        if wanted.items() <= alerts(nodes).items():
            return True
        time.sleep(1)
    raise AssertionError(f"wanted {wanted}, got {alerts(nodes)}")


def test_the_next_prometheus_keeps_the_history_and_shows_the_same(watched: Nodes, up: Run) -> None:
    oldest = value(watched, "min(min_over_time(timestamp(up)[1h:10s]))")
    lock = watched.lab.inventory()["all"]["vars"]["images_lock"]
    before = {name: container(watched, name) for name in ("vllm-tiny", "grafana", "alertmanager", "prometheus")}
    variables = {**DRILL, "images_lock": {**lock, "prometheus": lock["prometheus_3"]}}
    run = watched.run("up", limit=NAME, variables=variables)
    assert run.code == 0, run.document
    after = {name: container(watched, name) for name in before}
    assert {name for name in before if after[name] != before[name]} == {"prometheus"}
    with watched.tunnel(NAME, PROMETHEUS) as url, urllib.request.urlopen(f"{url}/api/v1/status/buildinfo", timeout=30) as answer:
        assert json.load(answer)["data"]["version"].startswith("3.")
    watched.shell(NAME, "systemctl restart prometheus")
    with watched.tunnel(NAME, 8000) as url:
        some_load(url)
    assert abs(value(watched, "min(min_over_time(timestamp(up)[1h:10s]))") - oldest) <= 15
    assert watched.run("metrics check", limit=NAME).code == 0
    assert silent_panels(watched) - may_be_empty() == set()
