"""`vllm-node bench` and its playbook as a user calls them, with the real Ansible and the real generator.

What a node would run in units and containers is in `measuring/`; the server is one that streams tokens by the clock.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.plays.test_cli import CALL
from tests.unit.node_code import ROOT
from tests.unit.server_answers import page
from vllm_node.bench.report import document
from vllm_node.exit_codes import ExitCode
from vllm_node.runner import environment

TOKEN_S = 0.01
MEASURING = Path(__file__).with_name("measuring")
IMAGE = {"repository": "registry.site.example:5000/vllm", "digest": "sha256:" + "1" * 64}


class Server(ThreadingHTTPServer):
    """Streams as many tokens as it is asked for, counts them on its page of metrics, and keeps what it was asked."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        body = page(0.0, float(len(self.server.asked)), running=1.0)["text"].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for _ in range(asked["max_tokens"]):
                time.sleep(TOKEN_S)
                self.chunk({"choices": [{"index": 0, "text": " x", "finish_reason": None}]})
            self.chunk({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": asked["max_tokens"]}})
            self.wfile.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def chunk(self, event: dict[str, Any]) -> None:
        data = b"data: " + json.dumps(event).encode() + b"\n\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield made
        made.shutdown()
        thread.join(5)


class Site:
    """A project with the real role and `measuring/`, and an inventory of one node: this machine."""

    def __init__(self, root: Path, server: Server) -> None:
        self.root, self.server = root, server
        self.folder = root / "vllm-node-load"
        self.quiet = root / "vllm-node-load.quiet"
        (root / "playbooks").mkdir()
        play = {"name": "Measured", "hosts": "gpu_nodes", "gather_facts": False, "roles": ["benchmark"]}
        (root / "playbooks/benchmark.yml").write_text(json.dumps([play]))
        # A role's own modules win over others of their name, so this one has all but those.
        (root / "roles/benchmark").mkdir(parents=True)
        for part in ("defaults", "meta", "tasks", "vars"):
            (root / "roles/benchmark" / part).symlink_to(ROOT / "roles/benchmark" / part)
        (root / "ansible.cfg").write_text(
            "[defaults]\ngathering = explicit\n"
            f"roles_path = {root}/roles:{MEASURING}/roles\nlibrary = {MEASURING}/library\n"
        )
        self.inventory = root / "hosts.json"
        self.write()

    def write(self, **variables: Any) -> None:
        host = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "ansible_remote_tmp": str(self.root / "remote"),
            "vllm_instances": [{"name": "tiny", "port": self.server.server_address[1], "gpus": [], "model": "/srv/tiny"}],
            "images_lock": {"vllm": IMAGE},
            "prometheus_enabled": False,
            "prometheus_port": 9090,
            "prometheus_scrape_interval": "1s",
            "benchmark_slo": {"ttft_p95_s": 5},
            "benchmark_lead_in_s": 1,
            "benchmark_warmup_requests": 2,
            **variables,
        }
        self.inventory.write_text(json.dumps({"gpu_nodes": {"hosts": {"gpu1": host}}}))

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "MEASURING": str(self.folder), "PYTHONPATH": str(ROOT), "COLUMNS": "200"}

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CALL, str(self.root), "bench", "gpu1", "-i", str(self.inventory), *words]
        return self.popen([*command, "--output", str(self.root / "runs")], self.environment)

    def plain(self, **variables: Any) -> subprocess.Popen[str]:
        """Without the wrapper, as `ansible-playbook` in a terminal: a group of its own, which gets the signals."""
        command = ["ansible-playbook", "-i", str(self.inventory), str(self.root / "playbooks/benchmark.yml")]
        more = {"benchmark_output": str(self.root / "runs"), "benchmark_rates": [5], "benchmark_duration_s": 60}
        more |= variables
        return self.popen([*command, "-e", json.dumps(more)], {**self.environment, **environment(self.root)})

    @staticmethod
    def popen(command: list[str], variables: dict[str, str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def run(self) -> dict[str, Any]:
        """The one document that was written."""
        (found,) = self.root.glob("runs/gpu1/*/run.json")
        return dict(document.read(found))

    def wait_for_answers(self, process: subprocess.Popen[str], count: int) -> None:
        before, end = len(self.server.asked), time.monotonic() + 60
        while len(self.server.asked) < before + count:
            assert time.monotonic() < end, "the load did not begin"
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)

    def generator(self) -> int | None:
        """Process id of the generator, if one is at work."""
        try:
            pid = int((self.folder / "pid").read_text())
            return None if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z" else pid
        except FileNotFoundError:
            return None


@pytest.fixture
def site(tmp_path: Path, server: Server) -> Iterator[Site]:
    made = Site(tmp_path, server)
    yield made
    if (pid := made.generator()) is not None:
        os.kill(pid, signal.SIGKILL)


def test_an_interrupt_ends_the_stage_and_keeps_what_was_measured(site: Site) -> None:
    process = site.start("--rate", "5,10", "--duration", "60")
    site.wait_for_answers(process, 20)
    assert site.quiet.exists()
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED, out + err
    assert "what was measured is written" in err
    found = site.run()
    assert found["partial"] == "interrupted in stage 1 of 2 (5 requests/s, repeat 1)"
    assert found["verdict"]["verdict"] == "insufficient"
    (step,) = found["steps"]
    assert step["repeats"][0]["client"]["counts"]["completed"] > 5
    assert step["repeats"][0]["server"]["source"] == "scrapes"
    assert "its report has what was measured" in out
    assert str(site.root / "runs") in out
    # Warnings are told again, and nothing of the load is left.
    assert not site.quiet.exists()
    assert not site.folder.exists()
    assert not list((site.root / "remote").glob("*"))


def test_a_second_interrupt_ends_at_once(site: Site) -> None:
    process = site.start("--rate", "5", "--duration", "60")
    site.wait_for_answers(process, 10)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - begun < 8
    assert process.returncode == ExitCode.INTERRUPTED, out + err
    assert "systemctl stop vllm-node-load" in out
    assert list(site.root.glob("runs/*")) == []
    # Its worker has gone as well: the generator is all that is left.
    listed = subprocess.run(["ps", "-eo", "args", "-ww"], capture_output=True, text=True, check=True).stdout
    assert str(site.inventory) not in listed


def test_plain_ansible_keeps_what_was_measured_too(site: Site) -> None:
    process = site.plain()
    site.wait_for_answers(process, 20)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2, out + err
    assert "interrupted in stage 1 of 1" in out
    assert site.run()["partial"] == "interrupted in stage 1 of 1 (5 requests/s, repeat 1)"
    assert not site.quiet.exists()
    assert not site.folder.exists()


def test_plain_ansible_ends_at_the_second_interrupt(site: Site) -> None:
    process = site.plain()
    site.wait_for_answers(process, 10)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode not in (0, 2), out + err
    assert list(site.root.glob("runs/*")) == []


def test_own_requests_and_a_trace_are_sent_as_they_were_brought(site: Site) -> None:
    lines = [{"prompt": f"Größe {number}", "max_tokens": 8} for number in range(13)]
    requests = site.root / "mine.jsonl"
    requests.write_text("".join(json.dumps(one) + "\n" for one in lines))
    trace = site.root / "acme.times"
    trace.write_text("".join(f"2025-11-30T10:00:{second:02}Z\n" for second in range(0, 20, 2)))
    before = len(site.server.asked)
    words = ("--requests", str(requests), "--trace", str(trace), "--speed", "2", "--param", "skip_special_tokens=false")
    done = site.call(*words, "--redact")
    assert done.returncode == ExitCode.INSUFFICIENT, done.stdout + done.stderr  # ten answers have no p95
    asked = site.server.asked[before:]
    assert [one["prompt"] for one in asked] == [one["prompt"] for one in lines[:12]]
    assert {one["skip_special_tokens"] for one in asked} == {False}
    found = site.run()
    assert found["partial"] is None
    (step,) = found["steps"]
    client = step["repeats"][0]["client"]
    # One second apart at twice the speed, and the first second is the lead-in.
    assert client["counts"]["offered"] == 9
    assert client["window"]["seconds"] == pytest.approx(9.0)
    assert (client["plan"]["arrivals"]["kind"], client["plan"]["arrivals"]["duration_s"]) == ("trace", 10.0)
    workload = found["workload"]
    assert (workload["requests"]["count"], workload["arrivals"]["count"]) == (13, 10)
    assert "the trace is played 2 times as fast as it was recorded" in workload["notices"]
    # On the way there, figures for people who watch.
    assert "1 running, 0 waiting, first token after " in done.stderr
    assert " s left" in done.stderr
    (report,) = site.root.glob("runs/gpu1/*/report.md")
    assert "recorded arrivals" in report.read_text()
    assert "the trace is played 2 times as fast" in report.read_text()
    # Redacted were the files' names too, which say whose they are.
    assert "mine.jsonl" not in json.dumps(found)
    assert "acme" not in json.dumps(found)


def test_a_wrong_file_is_refused_before_anything_is_asked(site: Site) -> None:
    path = site.root / "mine.jsonl"
    path.write_text('{"prompt": "x", "max_tokens": 5}\n{"prompt": "x", "max_tokens": 5, "n": 100}\n')
    done = site.call("--requests", str(path))
    assert done.returncode == ExitCode.USAGE
    assert f"{path}: line 2: the field 'n' is not allowed" in done.stderr
    assert not site.quiet.exists()
    # The same without the wrapper: other roles have looked at the node by then, and the benchmark has not.
    process = site.plain(benchmark_requests=str(path))
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"gpu1: nothing was asked of the node: {path}: line 2: " in out
    assert not site.quiet.exists()
