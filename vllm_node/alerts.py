"""The alert catalogue: what ships, what a site may change, and the rule files of Prometheus that come of both.

The entries are data, `roles/prometheus/files/alerts/<component>.yml`. A site's changes are the inventory variable
`prometheus_alerts`: `{alert name: {threshold, for, window, severity, enabled, and the alert's own numbers}}`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

import yaml

from vllm_node.paths import project_root

COMPONENTS = ("vllm", "gpu", "node", "exporters", "prometheus")
SEVERITIES = ("critical", "warning", "info", "none")
RUNBOOKS = "vllm-node-runbooks"
"""The dashboard that holds a panel with the runbook of each alert: it is at hand where there is no internet."""

# Jobs without which an alert of a component could never fire; an entry may name its own.
_JOBS = {"vllm": ("vllm",), "gpu": ("dcgm",), "node": ("node",), "exporters": (), "prometheus": ("prometheus",)}
_OWN = ("threshold", "for", "window", "severity", "enabled")
# As Prometheus reads them: each unit once, the larger ones first.
_DURATION = re.compile(r"(?:(\d+)y)?(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?")
_UNITS_S = (31536000.0, 604800.0, 86400.0, 3600.0, 60.0, 1.0, 0.001)
# Two samples are the least that a rate can be made of; one of them may be missing.
_SAMPLES = 4


@dataclass(frozen=True)
class Alert:
    """One entry of the catalogue, with the values that are in force.

    Of the keys of an entry these need words. `kind`: what a benchmark window may silence is `service`; `hardware`,
    `monitoring` and `watchdog` it never may. `expr`: PromQL in which `$window`, `$threshold` and the names of `params`
    stand for numbers. `trap`: the look-alike that it stays silent on. `panel`: where it can be watched. `jobs`: scrape
    jobs without which it is left out. `params_of`: the alert whose numbers it shares. `choices`: the only values that a
    number may have. `expr_expected`: in place of `expr` where the number of GPUs is known, as `$gpus`. `each_job`:
    `expr` once for each of its jobs that the node has, as `$job`. Durations (`for`, `window`) are those of Prometheus.
    """

    name: str
    component: str
    severity: str
    kind: str
    for_: str
    expr: str
    summary: str
    means: str
    trap: str
    do: tuple[str, ...]
    dashboard: str
    panel: str
    jobs: tuple[str, ...]
    window: str | None = None
    threshold: float | None = None
    unit: str = ""
    params: Mapping[str, float | str] = field(default_factory=dict)
    params_of: str | None = None
    choices: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    expr_expected: str | None = None
    each_job: bool = False
    enabled: bool = True

    @property
    def changeable(self) -> tuple[str, ...]:
        """Keys that `prometheus_alerts` may hold for it."""
        missing = {name for name in ("threshold", "window") if getattr(self, name) is None}
        return (*(name for name in _OWN if name not in missing), *(() if self.params_of else self.params))


def load_catalogue(folder: Path | None = None) -> dict[str, Alert]:
    """All alerts as shipped, in the order of the files.

    Raises:
        ValueError: an entry lacks a key, or a name occurs twice; the file and the alert are named.
    """
    return dict(_load(folder or project_root() / "roles/prometheus/files/alerts"))


@cache
def _load(folder: Path) -> Mapping[str, Alert]:
    found: dict[str, Alert] = {}
    for component in COMPONENTS:
        path = folder / f"{component}.yml"
        for entry in yaml.safe_load(path.read_text()) or []:
            try:
                alert = _alert(component, entry)
            except (KeyError, TypeError) as error:
                raise ValueError(f"{path.name}, {entry.get('alert', entry)}: {error}") from None
            if alert.name in found:
                raise ValueError(f"{path.name}: {alert.name} is there twice")
            found[alert.name] = alert
    for name, alert in found.items():
        if alert.params_of:
            found[name] = replace(alert, **_shared(found[alert.params_of]))
    return found


def _alert(component: str, entry: Mapping[str, Any]) -> Alert:
    rest = dict(entry)
    panel = rest.pop("panel")
    return Alert(
        name=rest.pop("alert"),
        component=component,
        for_=rest.pop("for"),
        dashboard=panel["dashboard"],
        panel=panel["title"],
        do=tuple(rest.pop("do")),
        jobs=tuple(rest.pop("jobs", _JOBS[component])),
        choices={name: tuple(values) for name, values in rest.pop("choices", {}).items()},
        **rest,
    )


def _shared(owner: Alert) -> dict[str, Any]:
    """What an alert takes from the one whose numbers it uses."""
    return {"params": owner.params, "choices": owner.choices}


def seconds(duration: str) -> float:
    """A duration of Prometheus in seconds.

    Raises:
        ValueError: it is none.
    """
    found = _DURATION.fullmatch(duration)
    if duration == "0":
        return 0
    if not duration or found is None:
        raise ValueError(f"{duration!r} is not a duration such as 90s, 10m or 1h30m")
    return sum(int(number or 0) * unit for number, unit in zip(found.groups(), _UNITS_S, strict=True))


def problems(overrides: object, *, scrape_interval: str = "1s") -> list[str]:
    """What is wrong with `prometheus_alerts`, a sentence each; nothing, when the list is empty.

    `scrape_interval` is the site's; without it a window is not measured against it.
    """
    if not isinstance(overrides, Mapping):
        return ["it is not a dictionary of alert names"]
    catalogue = load_catalogue()
    found = []
    for name, changes in overrides.items():
        if name not in catalogue:
            found.append(f"there is no alert {name}{_guess(name, catalogue)}")
        elif not isinstance(changes, Mapping):
            found.append(f"{name}: it is not a dictionary; it may hold {', '.join(catalogue[name].changeable)}")
        else:
            found += [f"{name}: {text}" for text in _problems(catalogue[name], changes, scrape_interval)]
    return found


def _problems(alert: Alert, changes: Mapping[Any, Any], scrape_interval: str) -> Iterator[str]:
    for key, value in changes.items():
        if key not in alert.changeable:
            if key in alert.params:
                yield f"{key} is set at {alert.params_of}, whose numbers this alert shares"
            else:
                known = "; it has " + ", ".join(alert.changeable)
                yield f"it has no {key}{_guess(key, alert.changeable) or known}"
        elif key == "enabled":
            if not isinstance(value, bool):
                yield f"enabled is {value!r}, not true or false"
        elif key == "severity":
            if value not in SEVERITIES:
                yield f"severity is {value!r}, not one of {', '.join(SEVERITIES)}"
        elif key in ("for", "window"):
            yield from _duration_problems(key, value, scrape_interval)
        else:
            yield from _value_problems(alert, key, value)


def _duration_problems(key: str, value: object, scrape_interval: str) -> Iterator[str]:
    try:
        length_s = seconds(value) if isinstance(value, str) else None
    except ValueError as error:
        yield f"{key}: {error}"
        return
    if length_s is None:
        yield f"{key} is {value!r}, and not a text such as 10m"
    elif key == "window" and length_s < (least_s := _SAMPLES * _interval_s(scrape_interval)):
        yield f"a window of {value} holds too few samples to fire at all; the least is {least_s:g}s"


def _interval_s(scrape_interval: object) -> float:
    """The site's interval; a wrong one is told elsewhere."""
    try:
        return seconds(str(scrape_interval))
    except ValueError:
        return seconds("15s")


def _value_problems(alert: Alert, key: str, value: object) -> Iterator[str]:
    if isinstance(alert.params.get(key), str):
        if not (isinstance(value, str) and re.fullmatch(r"\d+(\|\d+)*", value)):
            yield f"{key} is {value!r}, and not numbers with | between them"
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        yield f"{key} is {value!r}, and not a number"
    elif key in alert.choices and value not in alert.choices[key]:
        near = min(alert.choices[key], key=lambda edge: abs(edge - value))
        yield f"{key} cannot be {value:g}, which is no edge of the histogram; the nearest is {near:g}"


def _guess(name: object, known: Collection[str]) -> str:
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def in_force(overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, Alert]:
    """All alerts with the site's changes, those that are switched off too.

    Raises:
        ValueError: the changes are not good; see `problems`.
    """
    if wrong := problems(overrides):
        raise ValueError("prometheus_alerts: " + "; ".join(wrong))
    merged = {name: _changed(alert, overrides.get(name) or {}) for name, alert in load_catalogue().items()}
    return {
        name: replace(alert, **_shared(merged[alert.params_of])) if alert.params_of else alert
        for name, alert in merged.items()
    }


def _changed(alert: Alert, changes: Mapping[str, Any]) -> Alert:
    own = {"for_" if key == "for" else key: value for key, value in changes.items() if key in _OWN}
    return replace(alert, **own, params={name: changes.get(name, value) for name, value in alert.params.items()})


def thresholds(overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The number of each alert that has one, in its own unit; for the lines in dashboards."""
    return {name: alert.threshold for name, alert in in_force(overrides).items() if alert.threshold is not None}


def expression(alert: Alert, *, jobs: Collection[str] | None = None, gpus: int | None = None) -> str:
    """PromQL of an alert with its numbers filled in. `jobs` are those of the node (None: all), `gpus` its GPUs."""
    text = alert.expr_expected if alert.expr_expected is not None and gpus is not None else alert.expr
    values: dict[str, object] = {name: _number(alert, name, value) for name, value in alert.params.items()}
    values |= {"window": alert.window, "threshold": alert.threshold, "gpus": gpus}
    if alert.each_job:
        own = [job for job in alert.jobs if jobs is None or job in jobs]
        return "\nor\n".join(Template(text).substitute(values, job=job).strip() for job in own)
    return Template(text).substitute(values).strip()


def _number(alert: Alert, name: str, value: float | str) -> float | str:
    """An edge of a histogram is a label, and has to be written as the exporter writes it: 1.0, not 1."""
    return next((edge for edge in alert.choices.get(name, ()) if edge == value), value)


def rule(
    alert: Alert, *, dashboards_url: str, jobs: Collection[str] | None = None, gpus: int | None = None
) -> dict[str, Any]:
    """An alerting rule as Prometheus takes it."""
    # An alert about a series that is absent has no labels; the node's own name is known to its Prometheus.
    node = "{{ or $labels.node $externalLabels.node }}"
    return {
        "alert": alert.name,
        "expr": expression(alert, jobs=jobs, gpus=gpus) + "\n",
        "for": alert.for_,
        "labels": {"severity": alert.severity, "kind": alert.kind, "component": alert.component},
        "annotations": {
            "summary": alert.summary,
            "description": alert.means,
            "runbook_url": f"{dashboards_url}{_panel(RUNBOOKS, alert.name)}",
            "dashboard_url": f"{dashboards_url}{_panel(alert.dashboard, alert.panel)}&var-node={node}",
        },
    }


@cache
def _panel(dashboard: str, title: str) -> str:
    """Address of a panel below that of Grafana; a large file is read for each."""
    # Here, because the dashboards' own code asks this module for the runbooks.
    from vllm_node.dashboards.store import panel_path

    return panel_path(dashboard, title)


def rule_file(
    component: str,
    overrides: Mapping[str, Mapping[str, Any]],
    *,
    dashboards_url: str,
    jobs: Collection[str] | None = None,
    gpus: int | None = None,
) -> str:
    """Rule file of one component (`COMPONENTS`); empty when the node has nothing that it could watch.

    `jobs` are the scrape jobs of the node (None: all): an alert without its job could never fire, or would never end.
    `gpus` is how many GPUs the node has, when that is known.

    Raises:
        ValueError: the site's changes are not good, or an alert names a panel that does not exist.
    """
    url = dashboards_url.rstrip("/")
    wanted = [alert for alert in in_force(overrides).values() if alert.component == component and _fits(alert, jobs)]
    rules = [rule(alert, dashboards_url=url, jobs=jobs, gpus=gpus) for alert in wanted if alert.enabled]
    if not rules:
        return ""
    groups = [{"name": f"vllm-node-{component}", "rules": rules}]
    return "# Installed by vllm-node.\n" + yaml.dump({"groups": groups}, Dumper=_Dumper, sort_keys=False, width=1000)


def _fits(alert: Alert, jobs: Collection[str] | None) -> bool:
    if jobs is None:
        return True
    return any(job in jobs for job in alert.jobs) if alert.each_job else all(job in jobs for job in alert.jobs)


class _Dumper(yaml.SafeDumper):
    """Writes expressions of several lines as they are, for whoever reads the file on the node."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(value), style="|" if "\n" in value else None)


# Ansible hands values on as types of its own below these.
_Dumper.add_multi_representer(str, _text)
_Dumper.add_representer(str, _text)
