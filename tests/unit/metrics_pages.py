"""Pages of metrics as a target would give them, made of the dictionary: whatever should be there is there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tests.unit.node_code import ROOT
from vllm_node.metrics.dictionary import Metric, load, version_of
from vllm_node.metrics.exposition import schema_of
from vllm_node.metrics.schema import Endpoint, parse

SHARED = ROOT.parent / "shared" / "data"
VLLM_PAGE = SHARED / "metrics" / "vllm-0.32.0-cpu.prom"
COUNTERS = SHARED / "metrics" / "dcgm-default-counters.csv"
INSTANCES = {"vllm": "chat", "dcgm": "dcgm-exporter", "node": "node-exporter"}


def page(job: str, version: str | None = None, without: Collection[str] = (), conditional: bool = False) -> str:
    """Text of a job's page. `without`: logical names to leave out; `conditional`: with what need not be there."""
    wanted = [one for one in load() if job in one.jobs and one.logical not in without]
    return "".join(_text(one, version) for one in wanted if conditional or one.when is None)


def _text(metric: Metric, version: str | None) -> str:
    name = metric.name(version_of(version))
    if name is None:
        return ""
    labels = {label: metric.values.get(label, ("x",))[0] for label in sorted(metric.labels)}
    if metric.type not in ("histogram", "summary"):
        return f"# TYPE {name} {metric.type}\n{name}{_braces(labels)} 1\n"
    special = "le" if metric.type == "histogram" else "quantile"
    values = [*(metric.buckets or ("1.0", "10.0")), "+Inf"] if special == "le" else ["0.5", "0.9"]
    suffix = "_bucket" if special == "le" else ""
    lines = [f"{name}{suffix}{_braces({**labels, special: value})} 1" for value in values]
    lines += [f"{name}{part}{_braces(labels)} 1" for part in ("_sum", "_count")]
    return f"# TYPE {name} {metric.type}\n" + "".join(line + "\n" for line in lines)


def _braces(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""


def endpoint(job: str, text: str | None = None, **changes: Any) -> Endpoint:
    """An endpoint with that page; without one, with everything that should be on it."""
    said: dict[str, Any] = {
        "job": job,
        "instance": INSTANCES.get(job, job),
        "url": f"http://127.0.0.1:1/{job}",
        "state": "ok",
        "metrics": schema_of(page(job) if text is None else text),
        **changes,
    }
    return parse([said])[0]


def node(**changes: Endpoint) -> list[Endpoint]:
    """All endpoints of a node; `vllm=endpoint(…)` changes one."""
    usual = {job: endpoint(job) for job in load().jobs()} | {"vllm": endpoint("vllm", version="0.32.0")}
    return list({**usual, **changes}.values())


def needs(path: Path) -> str | None:
    """Why a test over a public file cannot run; None when the file is there."""
    return None if path.exists() else f"the public test data are not here ({path.name})"
