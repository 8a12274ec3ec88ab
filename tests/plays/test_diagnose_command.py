"""`vllm-node diagnose` as a user calls it: the real playbook on this machine, and a server that answers as Prometheus."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.node_code import ROOT
from tests.unit.web import Site, nobody, serving
from vllm_node.diagnosis.signals import expressions
from vllm_node.exit_codes import ExitCode

AT = 1_800_000_000
FULL = {"kv_use": 0.99, "waiting": 40.0, "preemptions": 0.5, "finished": 500.0}


class Answers(dict[str, tuple[int, str]]):
    """Answers every expression of a 15-minute window: the given signals, and nothing for all others."""

    def __init__(self, values: dict[str, float]) -> None:
        super().__init__({"/-/ready": (200, "ready")})
        self._values = {text: values[name] for name, text in expressions("15m").items() if name in values}

    def get(self, path: str, default: Any = None) -> Any:
        asked = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query).get("query")
        if asked is None:
            return super().get(path, default)
        labels = {"node": "gpu1", "instance": "chat"}
        known = self._values.get(asked[0])
        result = [] if known is None else [{"metric": labels, "value": [AT, str(known)]}]
        return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})


@pytest.fixture(scope="module")
def prometheus() -> Iterator[Site]:
    with serving(Site(pages=Answers(FULL))) as site:
        yield site


def call(folder: Path, url: str, *words: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    host = {
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "ansible_remote_tmp": str(folder / "remote"),
        "prometheus_port": int(url.rpartition(":")[2]),
        "node_snapshot_time_limit_s": 2,
        "vllm_instances": [{"name": "chat", "model": "/srv/models/chat", "gpus": [], "port": 8000}],
        **variables,
    }
    inventory = folder / "hosts.json"
    inventory.write_text(json.dumps({"gpu_nodes": {"hosts": {"gpu1": host}}}))
    command = [sys.executable, "-m", "vllm_node", "diagnose", *words, "-i", str(inventory)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)


def test_the_report_comes_to_stdout_and_the_exit_code_is_zero(tmp_path: Path, prometheus: Site) -> None:
    done = call(tmp_path, prometheus.url, "gpu1")
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    assert "SUPPORTED  kv_pressure: " in done.stdout
    assert "for      preemptions for each finished request: 0.5 (derived, 15m), above 0.2" in done.stdout
    assert "unobservable: heat: " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("diagnose: done")


def test_json_holds_the_diagnosis_of_the_moment_asked_for(tmp_path: Path, prometheus: Site) -> None:
    words = ("--json", "--at", "2027-01-15T08:00:00Z")
    done = call(tmp_path, prometheus.url, "gpu1", *words, prometheus_alerts={"VllmKVCacheSaturated": {"threshold": 0.995}})
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"] == ExitCode.OK
    found = document["hosts"]["gpu1"]["diagnosis"]
    assert (found["at"], found["window_s"]) == (AT, 900)
    chat = found["subjects"][0]
    verdicts = {one["id"]: one["verdict"] for one in chat["hypotheses"]}
    # The site's own threshold is above what was measured.
    assert verdicts["kv_pressure"] == "unsupported"
    assert chat["signals"]["kv_use"]["value"] == 0.99
    asked = urllib.parse.parse_qs(urllib.parse.urlsplit(prometheus.asked[-1][0]).query)
    assert asked["time"] == [str(float(AT))]


def test_a_prometheus_that_does_not_answer_is_told(tmp_path: Path) -> None:
    url = nobody()
    done = call(tmp_path, url, "gpu1")
    assert done.returncode == ExitCode.TASK_FAILED
    assert f"gpu1: Prometheus at {url} does not answer" in done.stdout
    assert "systemctl status prometheus.service" in done.stdout


def test_a_node_without_prometheus_is_told(tmp_path: Path) -> None:
    done = call(tmp_path, nobody(), "gpu1", prometheus_enabled=False)
    assert done.returncode == ExitCode.TASK_FAILED
    assert "gpu1: Prometheus is off on this node (prometheus_enabled is false)" in done.stdout


def test_an_unknown_host_is_an_error_of_the_call(tmp_path: Path) -> None:
    done = call(tmp_path, nobody(), "gpu2")
    assert done.returncode == ExitCode.USAGE
    assert "gpu2" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gpu1", "--window", "soon"), "'soon' is no duration"),
        (("gpu1", "--at", "noon"), "'noon' is no time"),
        (("gpu1", "--client", "/nowhere"), "does not exist"),
        ((), "Missing argument"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_runs(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = call(tmp_path, nobody(), *words)
    assert done.returncode == ExitCode.USAGE
    assert said in done.stderr
