"""What many nodes cost one central Prometheus: scrapes, rules and memory, from the pages of one real lab node.

A lab node is brought up and its pages are taken as they are. A real Prometheus on this machine then scrapes them as if
they came from a few nodes, and from five times as many, with the rules that are shipped. What one more thousand series
takes is the difference of the two, so what Prometheus needs for itself cancels out. Exit code 1 when a bound is broken.
"""

# ruff: noqa: T201 - its table is for a person at a terminal

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.labs import Nodes
from tests.real.load import some_load
from vllm_node import alerts
from vllm_node.lab import tools
from vllm_node.lab.lab import Lab
from vllm_node.lab.node import Spec
from vllm_node.paths import project_root

LAB, NODE = "bench", "a"
PORTS = {"vllm": 8000, "dcgm": 9400, "node": 9100, "prometheus": 9091, "alertmanager": 9093}
FEW, MANY, FLEET = 8, 40, 200
INTERVAL_S, SCRAPES = 5, 12
# A store for 200 nodes of eight GPUs on an ordinary machine: 16 GiB, and a tenth of the time between two evaluations.
FLEET_MEMORY_LIMIT_GIB = 16.0
RULES_LIMIT_SHARE = 0.1
PAGE_LIMIT_KIB = 512


@dataclass(frozen=True)
class Measured:
    """What Prometheus says about itself: series in the head, bytes, seconds for all rule groups, samples per scrape round."""

    series: float
    memory_bytes: float
    rules_s: float
    samples: float


def pages(nodes: Nodes) -> dict[str, bytes]:
    """The page of each job on the node, after a small load."""
    found = {}
    with nodes.tunnel(NODE, PORTS["vllm"]) as url:
        some_load(url)
    for job, port in PORTS.items():
        with nodes.tunnel(NODE, port) as url, urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
            found[job] = answer.read()
    return found


@contextmanager
def serving(texts: Mapping[str, bytes]) -> Iterator[str]:
    """Serve the pages at /<job>; gives host:port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = texts[self.path.strip("/")]
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def configuration(shipped: Mapping[str, Any], address: str, count: int) -> dict[str, Any]:
    """The shipped configuration of one node, with each job asked once for each of `count` nodes."""
    jobs = []
    for job in shipped["scrape_configs"]:
        (static,) = job["static_configs"]
        targets = [
            {"targets": [address], "labels": {**static["labels"], "node": f"node{number}"}} for number in range(count)
        ]
        jobs.append({**job, "metrics_path": f"/{job['job_name']}", "static_configs": targets})
    times = {"scrape_interval": f"{INTERVAL_S}s", "evaluation_interval": f"{INTERVAL_S}s"}
    return {"global": times, "rule_files": ["rules/*.yml"], "scrape_configs": jobs}


def central(shipped: Mapping[str, Any], texts: Mapping[str, bytes], count: int) -> Measured:
    """Let a Prometheus scrape `count` nodes for a minute and ask it what that took."""
    with tempfile.TemporaryDirectory() as name, serving(texts) as address:
        folder = Path(name)
        (folder / "rules").mkdir()
        recording = (project_root() / "roles/prometheus/files/recording.yml").read_text()
        (folder / "rules/recording.yml").write_text(recording)
        for component in alerts.COMPONENTS:
            text = alerts.rule_file(component, {}, dashboards_url="http://127.0.0.1:3000")
            (folder / f"rules/{component}.yml").write_text(text)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration(shipped, address, count)))
        port = int(address.rpartition(":")[2]) + 1
        words = [
            *(*tools.prometheus("2.53"), f"--config.file={folder / 'prometheus.yml'}", "--log.level=error"),
            *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"),
        ]
        with subprocess.Popen(words) as prometheus:
            try:
                time.sleep(INTERVAL_S * SCRAPES)
                return ask(f"http://127.0.0.1:{port}")
            finally:
                prometheus.terminate()


def ask(url: str) -> Measured:
    """The numbers, from the store's own page; it has to be one on which every scrape was good."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#")]
    own = {name: float(value) for name, value in lines}
    rules = [value for name, value in own.items() if name.startswith("prometheus_rule_group_last_duration_seconds{")]
    if number(url, "min(up)") != 1:
        sys.exit("a scrape of the central store failed: its numbers would be too small")
    return Measured(
        own["prometheus_tsdb_head_series"], own["process_resident_memory_bytes"], sum(rules), number(url, "sum(scrape_samples_scraped)")
    )


def number(url: str, expr: str) -> float:
    """The one number that an expression gives."""
    with urllib.request.urlopen(f"{url}/api/v1/query?query={urllib.parse.quote(expr)}", timeout=30) as answer:
        (one,) = json.load(answer)["data"]["result"]
        return float(one["value"][1])


def main() -> int:
    """Run the comparison and print its table."""
    nodes = Nodes(LAB)
    Lab.up(LAB, [])
    try:
        nodes.make(Spec(NODE))
        run = nodes.run("up", limit=NODE)
        if run.code != 0:
            sys.exit(f"the node does not come up: {run.document}")
        texts = pages(nodes)
        shipped = yaml.safe_load(nodes.shell(NODE, "cat /etc/vllm-node/prometheus/prometheus.yml"))
        with nodes.tunnel(NODE, PORTS["prometheus"]) as url:
            print(f"{'job':<14} {'page KiB':>9} {'samples':>8} {'kept':>6} {'scrape ms':>10}   one node, measured")
            for job in PORTS:
                row = [number(url, f'sum({name}{{job="{job}"}})') for name in ("scrape_samples_scraped", "scrape_samples_post_metric_relabeling", "scrape_duration_seconds")]
                print(f"{job:<14} {len(texts[job]) / 1024:>9.1f} {row[0]:>8.0f} {row[1]:>6.0f} {row[2] * 1000:>10.1f}")
    finally:
        found = Lab.find(LAB)
        if found is not None:
            found.down()
    few, many = (central(shipped, texts, count) for count in (FEW, MANY))
    per_series = (many.memory_bytes - few.memory_bytes) / (many.series - few.series)
    series = (many.series - few.series) / (MANY - FEW)
    fleet_gib = (few.memory_bytes + per_series * series * (FLEET - FEW)) / 2**30
    rules_s = many.rules_s / MANY * FLEET
    print(f"\n{'nodes':>6} {'series':>8} {'memory MiB':>11} {'rules ms':>9}   one store, measured")
    for count, each in ((FEW, few), (MANY, many)):
        print(f"{count:>6} {each.series:>8.0f} {each.memory_bytes / 2**20:>11.0f} {each.rules_s * 1000:>9.1f}")
    print(f"ratio  {many.series / few.series:>8.2f} {many.memory_bytes / few.memory_bytes:>11.2f} {many.rules_s / few.rules_s:>9.2f}")
    print(f"derived: {series:.0f} series a node, {per_series * 1000 / 2**20:.1f} MiB a thousand series")
    print(
        f"derived for {FLEET} nodes: {series * FLEET:.0f} series, {fleet_gib:.1f} GiB (at most {FLEET_MEMORY_LIMIT_GIB:.0f}), "
        f"rules {rules_s:.2f} s (at most {RULES_LIMIT_SHARE * 15:.1f} of 15 s)"
    )
    largest = max(len(text) for text in texts.values()) / 1024
    good = fleet_gib <= FLEET_MEMORY_LIMIT_GIB and rules_s <= RULES_LIMIT_SHARE * 15 and largest <= PAGE_LIMIT_KIB
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
