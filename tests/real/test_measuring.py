"""What is measured with real vLLM: at the end of a bring-up, and by benchmarks of one's own.

The tests of this file build on each other: the node is brought up once, and then again with other wishes.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.labs import Nodes, Run
from tests.real.load import INSTANCE, some_load
from vllm_node.bench.report import document
from vllm_node.lab.node import Spec
from vllm_node.paths import project_root

pytestmark = pytest.mark.real
NAME = "measured"
# A bring-up with nothing to do takes half of that, on a machine that does nothing else; on a busy one all takes longer.
SECOND_RUN_LIMIT_S = 20
SECOND_RUN_SHARE = 0.25


@pytest.fixture(scope="module")
def measured(nodes: Nodes) -> Iterator[Nodes]:
    """A bare node."""
    nodes.make(Spec(NAME, podman="5.4"))
    yield nodes
    nodes.lab.remove(NAME)


@pytest.fixture(scope="module")
def wishes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Variables of every run: measured as the lab's inventory has it, and written to a folder of this test."""
    output = str(tmp_path_factory.mktemp("runs"))
    return {"smoke_benchmark": True, "benchmark_output": output, "vllm_instances": [INSTANCE]}


@pytest.fixture(scope="module")
def first(measured: Nodes, wishes: dict[str, Any]) -> Run:
    """The first bring-up."""
    return measured.run("up", limit=NAME, variables=wishes)


def measurement(run: Run) -> dict[str, Any]:
    """What the document says of the one instance."""
    found = run.host(NAME)["measurements"]
    assert [one["instance"] for one in found] == ["tiny"], run.document
    return dict(found[0])


def test_a_new_instance_is_asked_and_measured(first: Run) -> None:
    found = measurement(first)
    # How fast a lab is nobody knows, and a busy machine voids the run; the lab's promise is one that it can keep.
    assert (first.code, found["verdict"]) in ((0, "pass"), (0, "insufficient")), first.document
    if found["verdict"] == "insufficient":
        assert "INVALID" in found["reason"]
    host = first.host(NAME)
    assert host["answers"][0]["tokens"] == 32
    assert host["answers"][0]["text"].strip()
    assert 0 < found["ttft_p95_s"] < 5
    assert 0 < found["completed_per_s"] < 5


def test_the_run_is_a_whole_one_with_its_answers_and_no_failed_request(first: Run) -> None:
    page = Path(measurement(first)["report"])
    assert "Smoke benchmark" in page.read_text()
    run = document.read(page.with_name("run.json"))
    assert run["kind"] == "smoke"
    assert [one["outcome"] for one in run["correctness"]].count("pass") >= 6
    (stage,) = run["steps"][0]["repeats"]
    counts = stage["client"]["counts"]
    # Each answer of the lab's model has a text, so none of them counts as a failure.
    assert counts["completed"] == counts["offered"] >= 30
    assert stage["server"]["source"] == "prometheus"
    assert run["provenance"]["vllm"]["version"]


def test_a_second_run_measures_nothing_and_has_the_verdict_on_the_screen(
    measured: Nodes, first: Run, wishes: dict[str, Any]
) -> None:
    runs = list(Path(wishes["benchmark_output"]).rglob("run.json"))
    started = time.monotonic()
    words = ("up", "-i", "inventories/lab", "--limit", NAME, "-e", json.dumps(wishes))
    done = measured.program(sys.executable, "-m", "vllm_node", *words, limit_s=600)
    took_s = time.monotonic() - started
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^{NAME} +\d+ +0 +0 +0$", done.stdout, re.MULTILINE), done.stdout
    verdict = measurement(first)["verdict"].upper()
    line = rf"{NAME}: tiny: not measured: it has not started in this run; last measured .* UTC: {verdict}; report: /.+\.html"
    assert re.search(f"^{line}$", done.stdout, re.MULTILINE), done.stdout
    assert f"{NAME}: it answered: " in done.stdout
    assert list(Path(wishes["benchmark_output"]).rglob("run.json")) == runs
    assert took_s < max(SECOND_RUN_LIMIT_S, SECOND_RUN_SHARE * first.document["took_s"])


def test_a_wrong_answer_fails_the_bring_up_and_says_what_to_do(
    measured: Nodes, first: Run, wishes: dict[str, Any]
) -> None:
    run = measured.run("up", limit=NAME, variables={**wishes, "smoke_max_tokens": 100_000})
    assert run.code == 4, run.document
    message = run.host(NAME)["failure"]["message"]
    for word in (f"{NAME}: instance tiny fails 'the question is answered'", "seen 400", "next:", "smoke_max_tokens"):
        assert word in message


def test_a_promise_that_is_not_kept_ends_with_its_own_code_and_a_node_that_serves(
    measured: Nodes, first: Run, wishes: dict[str, Any]
) -> None:
    measured.shell(NAME, "systemctl stop vllm-tiny")
    run = measured.run("up", limit=NAME, variables={**wishes, "benchmark_slo": {"ttft_p95_s": 0.0001}})
    found = measurement(run)
    assert found["verdict"] != "pass"
    assert {row["state"] for row in run.host(NAME)["rows"]} == {"ready"}
    assert '"data"' in measured.shell(NAME, "curl -sf 127.0.0.1:8000/v1/models")
    if found["verdict"] == "insufficient" and "INVALID" in found["reason"]:
        assert run.code == 0
        pytest.skip(f"the machine was too busy to measure anything: {found['reason']}")
    assert (run.code, found["verdict"]) == (7, "fail"), run.document
    assert "ttft_p95_s" in found["reason"]


# What a benchmark of one's own may come to: how fast a lab is nobody knows, and a busy one voids its own run.
VERDICTS = {0: "pass", 7: "fail", 8: "insufficient"}


def command(output: Path, *words: str) -> list[str]:
    """The words of `vllm-node bench`."""
    return [
        *(sys.executable, "-m", "vllm_node", "bench", NAME, "-i", "inventories/lab", "--json", "--workload", "smoke"),
        *("--output", str(output), *words),
    ]


def bench(nodes: Nodes, output: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and what the document of the command says of the node."""
    done = nodes.program(*command(output, *words), limit_s=900)
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found["hosts"][NAME] | {"said": done.stdout + done.stderr}


def run_of(host: dict[str, Any]) -> Mapping[str, Any]:
    """The run document that a benchmark has left."""
    return document.read(next(Path(path) for path in host["reports"] if path.endswith("run.json")))


def nothing_is_left(nodes: Nodes) -> None:
    for unit in ("vllm-node-load", "vllm-node-peer"):
        assert nodes.shell(NAME, f"systemctl is-active {unit} || true").strip() == "inactive"
        assert nodes.shell(NAME, f"ls -d /run/{unit} 2>/dev/null || true") == ""
    assert "vllm-node-" not in nodes.shell(NAME, "podman ps --all --format '{{.Names}}'")
    with nodes.tunnel(NAME, 9093) as url, urllib.request.urlopen(f"{url}/api/v2/silences", timeout=30) as answer:
        silences = json.load(answer)
    assert {one["status"]["state"] for one in silences} == {"expired"}


def test_a_run_is_judged_and_leaves_a_document_and_nothing_else(measured: Nodes, first: Run, tmp_path: Path) -> None:
    before = measured.tree(NAME)
    # The requests of the bring-up are in the server's last minute; this file does not wait until they are not.
    code, host = bench(measured, tmp_path, "--approved", "--rate", "1", "--duration", "30", "--lead-in", "2")
    assert code in VERDICTS, host["said"]
    run = run_of(host)
    assert run["verdict"]["verdict"] == VERDICTS[code]
    assert [one["check"] for one in run["correctness"] if one["outcome"] == "fail"] == []
    (stage,) = run["steps"][0]["repeats"]
    assert stage["client"]["counts"]["completed"] > 10
    assert stage["server"]["source"] == "prometheus"
    assert stage["server"]["refused"] is None
    # Both sides tell the same story. Two cores that also do other things may let a request wait before the server knows of
    # it: then the client has waited longer, and never less long.
    figures = stage["agreement"]["figures"]
    assert any(one["agrees"] for one in figures), figures
    assert all(one["difference"] > 0 for one in figures if one["agrees"] is False), figures
    assert run["provenance"]["vllm"]["version"]
    assert {Path(path).suffix for path in host["reports"]} == {".json", ".md", ".html"}
    assert measured.tree(NAME) == before
    nothing_is_left(measured)


def test_own_requests_arrive_as_they_were_recorded(measured: Nodes, first: Run, tmp_path: Path) -> None:
    lines = [{"prompt": f"Question {number}: what is a GPU node for?", "max_tokens": 8} for number in range(40)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    (tmp_path / "arrivals.txt").write_text("".join(f"{number * 0.5}\n" for number in range(30)))
    given = ("--approved", "--requests", str(tmp_path / "own.jsonl"), "--trace", str(tmp_path / "arrivals.txt"), "--lead-in", "0")
    # The workload is the requests.
    words = [word for word in command(tmp_path / "runs", *given) if word not in ("--workload", "smoke")]
    done = measured.program(*words, limit_s=600)
    assert done.returncode in VERDICTS, done.stdout + done.stderr
    run = run_of(json.loads(done.stdout)["hosts"][NAME])
    counts = run["steps"][0]["repeats"][0]["client"]["counts"]
    assert counts["offered"] == 30
    assert run["workload"]["name"].startswith("own")
    nothing_is_left(measured)


def test_an_overload_is_called_one_and_the_closed_loop_does_not_see_it(
    measured: Nodes, first: Run, tmp_path: Path
) -> None:
    """Whatever the times are by then: a queue without an end is told as one."""
    closed_code, closed = bench(measured, tmp_path / "closed", "--approved", "--clients", "4", "--duration", "20")
    hidden = run_of(closed)["steps"][0]["repeats"][0]["client"]
    served = hidden["rates"]["completed_per_s"]
    rate = f"{max(2.0, 1.6 * served):.1f}"
    # Nothing is held back: a queue that is cut off does not grow.
    hard = ("--approved", "--duration", "30", "--lead-in", "2", "--max-in-flight", "10000")
    code, host = bench(measured, tmp_path / "open", *hard, "--rate", rate)
    stage = run_of(host)["steps"][0]["repeats"][0]
    told = {"served": served, "offered": rate, "verdict": stage["client"]["verdict"], "self": stage["client"]["selfcheck"]}
    assert not any(word in reason for reason in hidden["verdict"]["reasons"] for word in ("overload", "queue")), hidden
    assert closed_code in (0, 8), closed
    assert any("closed loop" in notice for notice in hidden["notices"])
    assert stage["client"]["verdict"]["queue"]["slope"] > 0, told
    if not stage["client"]["selfcheck"]["valid"]:
        assert code == 8
        pytest.skip(f"the machine was too busy to send {rate} requests a second in time: {told}")
    assert code == 7, told
    assert any(reason.startswith("overload") for reason in stage["client"]["verdict"]["reasons"]), told
    assert max(stage["client"]["server"]["waiting"]) > 5, told


def test_an_interrupt_leaves_what_was_measured_and_a_clean_node(measured: Nodes, first: Run, tmp_path: Path) -> None:
    words = command(tmp_path, "--approved", "--rate", "1", "--duration", "300", "--lead-in", "1")
    running = subprocess.Popen(
        words, cwd=project_root(), env=measured.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert running.stderr is not None
        said = ""
        while "in flight" not in said:
            line = running.stderr.readline()
            assert line, f"it ended before a stage was under way:\n{said}"
            said += line
        running.send_signal(signal.SIGINT)
        _told, rest = running.communicate(timeout=300)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 130, said + rest
    run = document.read(next(tmp_path.rglob("run.json")))
    assert "interrupted" in run["partial"]
    assert run["verdict"]["verdict"] == "insufficient"
    assert run["steps"][0]["repeats"][0]["client"]["counts"]["completed"] > 0
    nothing_is_left(measured)


def test_an_instance_that_serves_others_is_left_alone(measured: Nodes, first: Run, tmp_path: Path) -> None:
    with measured.tunnel(NAME, 8000) as url:
        load = threading.Thread(target=some_load, args=(url,))
        load.start()
        code, host = bench(measured, tmp_path, "--duration", "5")
        load.join()
    assert code == 4, host
    assert "serves others at the moment" in host["said"]
    assert list(tmp_path.iterdir()) == []
