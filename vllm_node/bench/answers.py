"""What Prometheus is asked about a server, over exactly the scored window, and how its answers are read."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from vllm_node.bench.buckets import Histogram
from vllm_node.bench.evidence import COUNTERS, FULLEST, HISTOGRAMS, RESETTABLE, RESTARTED, SERIES, Evidence, Gpu
from vllm_node.bench.window import Window
from vllm_node.diagnosis.facts import Instance, Subject
from vllm_node.metrics.dictionary import load

# A rate needs two scrapes; with fewer than this many, what happened between the last scrape and an end of the window
# weighs so much that the figures are rough.
FEW_SCRAPES = 8
_GPUS = {
    "gpu_util": ("avg_over_time", "DCGM_FI_DEV_GPU_UTIL"),
    "gpu_power": ("avg_over_time", "DCGM_FI_DEV_POWER_USAGE"),
    "gpu_energy": ("increase", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"),
    "gpu_energy_resets": ("resets", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"),
}


def queries(window: Window, instance: str, model: str | None = None, version: str | None = None) -> dict[str, str]:
    """Expressions by name, to be evaluated at the end of the window.

    instance: its name in the inventory; model: the name it serves, None for any; version: vLLM's, None for the newest
    names. What that version does not have is not asked for. Those of `SERIES` give the scrapes themselves.
    """
    return _queries(window, _matchers(instance, model), _matchers(instance, None), _named(version))


def expressions() -> dict[str, str]:
    """What can be asked, for `vllm-node metrics check`: any instance, each metric under all of its names.

    A range of raw samples cannot stand beside another with `or`, so here its last sample stands for it.
    """
    window = Window(0, 60)
    own, any_model = _matchers("$instance", "$model_name"), _matchers("$instance", None)
    # What the module `instance_facts` asks on the node.
    found = {"finished_last_minute": f"sum(increase({load().name('requests_finished')}{any_model}[1m]))"}
    for age in range(max(len(metric.names) for metric in load())):
        for name, text in _queries(window, own, any_model, _aged(age)).items():
            text = f"last_over_time({text})" if name in SERIES else text
            if text not in found.get(name, ""):
                found[name] = f"{found[name]} or {text}" if name in found else text
    return found


def read(answers: Mapping[str, Mapping[str, Any]], window: Window, gpus: Sequence[str] = ()) -> Evidence:
    """What the answers of the module `prometheus_query` come to. gpus: those of the instance, as CDI names them."""
    found = Evidence("prometheus", window.seconds, exact=False)
    for name in SERIES:
        _take(found, answers, name, partial(_series, fullest=name in FULLEST), found.series)
    for name, (_, label) in COUNTERS.items():
        # Of preemptions both are asked: the scrapes for the time line, the increase for the window.
        _take(found, answers, _count(name), partial(_by_label, label=label), found.counters, name)
    for name in HISTOGRAMS:
        rows = (answers.get(f"{name}_sum") or {}).get("result") or []
        total = _by_label(rows, None).get("")
        buckets = partial(_histogram, total=total)
        _take(found, answers, f"{name}_buckets", buckets, found.histograms, name)
    _gpus(found, answers, gpus)
    reset = any(_highest(answers, name) > 0 for name in (*map(_resets, RESETTABLE), "restarts"))
    # Between the start of the window and its first scrape nobody looked; the process tells when it began.
    if reset or _highest(answers, "started") > window.start:
        found.refused = RESTARTED
    _scrapes(found, answers)
    return found


def _queries(window: Window, own: str, any_model: str, named: Callable[[str], str | None]) -> dict[str, str]:
    over = f"[{window.duration}]"
    asked = {
        # The number of scrapes that told something, and of those that did not.
        "scrapes": f"sum_over_time(up{any_model}{over})",
        "scrapes_failed": f"count_over_time(up{any_model}{over}) - sum_over_time(up{any_model}{over})",
    }
    started = named("process_start_time_seconds")
    if started:
        asked["restarts"] = f"changes({started}{any_model}{over})"
        asked["started"] = f"max_over_time({started}{any_model}{over})"
    for logical in RESETTABLE:
        if metric := named(logical):
            asked[_resets(logical)] = f"sum(resets({metric}{own}{over}))"
    for name, logical in SERIES.items():
        if metric := named(logical):
            asked[name] = f"{metric}{own}{over}"
    for name, (logical, label) in COUNTERS.items():
        if metric := named(logical):
            asked[_count(name)] = f"sum {f'by ({label}) ' if label else ''}(increase({metric}{own}{over}))"
    for name, logical in HISTOGRAMS.items():
        if metric := named(logical):
            # Engines are added up before a quantile is taken; the mean of their quantiles would be no quantile.
            asked[f"{name}_buckets"] = f"sum by (le) (increase({metric}_bucket{own}{over}))"
            asked[f"{name}_sum"] = f"sum(increase({metric}_sum{own}{over}))"
    for name, (function, field) in _GPUS.items():
        if metric := named(field):
            asked[name] = f'max by (gpu, UUID) ({function}({metric}{{job="dcgm"}}{over}))'
    return asked


def _named(version: str | None) -> Callable[[str], str | None]:
    # A DCGM field or a process metric has no versions; the dictionary says the same name for all.
    dictionary = load()
    vllm = {metric.logical for metric in dictionary if metric.source == "vllm"}
    return lambda logical: dictionary.name(logical, version if logical in vllm else None)


def _aged(age: int) -> Callable[[str], str | None]:
    """The newest names, then those before them."""
    names = {metric.logical: [one.name for one in reversed(metric.names)] for metric in load()}
    return lambda logical: names[logical][min(age, len(names[logical]) - 1)]


def _matchers(instance: str, model: str | None) -> str:
    wanted = {"job": "vllm", "instance": instance, **({"model_name": model} if model is not None else {})}
    return "{" + ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in wanted.items()) + "}"


def _count(name: str) -> str:
    return f"{name}_count"


def _resets(logical: str) -> str:
    return f"resets_of_{logical}"


def _take(
    found: Evidence,
    answers: Mapping[str, Mapping[str, Any]],
    asked: str,
    read_rows: Callable[[Sequence[Mapping[str, Any]]], Any],
    place: dict[str, Any],
    name: str | None = None,
) -> None:
    answer, name = answers.get(asked), name or asked
    if answer is None:
        found.unseen[name] = "this version of vLLM has no such metric"
    elif answer.get("error"):
        found.unseen[name] = f"Prometheus did not answer: {answer['error']}"
    elif not answer.get("result"):
        found.unseen[name] = "Prometheus has no samples of it in the window, or only one"
    elif value := read_rows(answer["result"]):
        place[name] = value
    else:
        found.unseen[name] = "Prometheus has no number for it"


def _number(value: Any) -> float | None:
    """The module leaves what is no number as a word."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _by_label(rows: Sequence[Mapping[str, Any]], label: str | None) -> dict[str, float]:
    found: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        value = _number(row.get("value"))
        if value is not None:
            found[row["labels"].get(label, "") if label else ""] += value
    return dict(found)


def _series(rows: Sequence[Mapping[str, Any]], fullest: bool) -> list[tuple[float, float]]:
    found: defaultdict[float, list[float]] = defaultdict(list)
    for row in rows:
        for at, value in row.get("values") or []:
            if (number := _number(value)) is not None:
                found[float(at)].append(number)
    return [(at, max(values) if fullest else sum(values)) for at, values in sorted(found.items())]


def _histogram(rows: Sequence[Mapping[str, Any]], total: float | None) -> Histogram:
    counts = [(float(row["labels"]["le"]), _number(row.get("value"))) for row in rows if "le" in row["labels"]]
    return Histogram([(edge, count) for edge, count in counts if count is not None], total)


def _highest(answers: Mapping[str, Mapping[str, Any]], name: str) -> float:
    """The largest value of an answer; 0 where it has none, as the metric is one that need not be there."""
    rows = (answers.get(name) or {}).get("result") or []
    return max((_number(row.get("value")) or 0.0 for row in rows), default=0.0)


def _gpus(found: Evidence, answers: Mapping[str, Mapping[str, Any]], gpus: Sequence[str]) -> None:
    if not gpus:
        found.unseen["gpus"] = "no GPU is allocated to the instance"
        return
    owner = Subject("", Instance("", gpus=tuple(gpus)))
    values: dict[tuple[str, str], dict[str, float]] = {}
    for name in _GPUS:
        for row in (answers.get(name) or {}).get("result") or []:
            value = _number(row.get("value"))
            if value is not None and owner.owns(row["labels"]):
                key = (row["labels"].get("gpu", ""), row["labels"].get("UUID", ""))
                values.setdefault(key, {})[name] = value
    if not values:
        error = next((answers[name]["error"] for name in _GPUS if (answers.get(name) or {}).get("error")), None)
        found.unseen["gpus"] = (
            f"Prometheus did not answer: {error}"
            if error
            else "Prometheus has nothing of the DCGM exporter on these GPUs in the window"
        )
        return
    for (gpu, uuid), one in sorted(values.items()):
        energy = one.get("gpu_energy") if not one.get("gpu_energy_resets") else None
        joules = None if energy is None else energy / 1000
        found.gpus.append(Gpu(gpu, uuid, one.get("gpu_util"), one.get("gpu_power"), joules))
    if any(":" in name for name in gpus):
        found.unseen["gpus_alone"] = "a MIG device draws its power together with the others on its board"


def _scrapes(found: Evidence, answers: Mapping[str, Mapping[str, Any]]) -> None:
    scrapes, failed = (round(_highest(answers, name)) for name in ("scrapes", "scrapes_failed"))
    if scrapes < FEW_SCRAPES:
        found.notices.append(
            f"Prometheus scraped the server {scrapes} times in {found.seconds:.0f} s: the window is short for its "
            "scrape interval, and counts near both ends are extrapolated"
        )
    if failed:
        found.notices.append(f"{failed} of {scrapes + failed} scrapes in the window failed")
