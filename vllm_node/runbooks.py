"""Runbooks: the page of each alert for whoever is woken by it, and the index of all pages.

The same text stands in `docs/runbooks` and, because a node has no internet, in a dashboard of its Grafana.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from vllm_node.alerts import COMPONENTS, Alert, expression, load_catalogue

_WRITTEN = "<!-- written by python -m vllm_node.docs from roles/prometheus/files/alerts; edit those -->"
_TITLES = {
    "vllm": "vLLM",
    "gpu": "GPUs",
    "node": "The node",
    "exporters": "What is scraped",
    "prometheus": "Prometheus and Alertmanager",
}
_KINDS = {
    "service": "It is silenced in a benchmark window unless its severity is critical.",
    "hardware": "A benchmark window does not silence it.",
    "monitoring": "A benchmark window does not silence it.",
    "watchdog": "Nothing silences it.",
}
_SEVERITIES = {
    "critical": "Somebody has to act now.",
    "warning": "Somebody has to act within the working day.",
    "info": "Good to know; nobody is told unless a receiver asks for it.",
    "none": "It is a sign of life.",
}
MEANINGS = {
    "for": "how long it has to last before it is told",
    "window": "how far back is looked",
    "severity": "critical, warning, info or none",
    "objective_s": "seconds within which the first token is to come",
    "min_samples": "with fewer requests in the window it is silent",
    "min_finished": "with fewer finished requests in the window it is silent",
    "min_preemptions": "with fewer in the window it is silent",
    "min_errors": "with fewer in 5 minutes it is silent",
    "min_waiting": "requests that have to wait on average",
    "min_tokens_per_s": "with less traffic it is silent",
    "min_ratio": "a usual ratio below this is nothing to fall from",
    "warmup_s": "seconds after a start during which it is silent",
    "app_xids": "codes that a program causes by itself, with | between them",
    "below": "codes from here on are a failure, which has an alert of its own",
    "fallback_celsius": "temperature that counts on parts without the distance",
    "horizon_s": "seconds ahead at which nothing would be left",
}
"""What the numbers of the catalogue mean, each under one name wherever it occurs."""
_INDEX = f"""# Runbooks

{_WRITTEN}

A page for each alert: what it means, what it is not, what to do. Each alert links to its page in Grafana, which works
where there is no internet. Numbers are those that ship; a site changes them with `prometheus_alerts` in its inventory,
and preflight refuses a misspelt alert or key.
"""


def pages(folder: Path) -> dict[Path, str]:
    """Text of every page below `folder`, the index as `README.md`."""
    catalogue = load_catalogue()
    written = {folder / f"{name}.md": _page(alert) for name, alert in catalogue.items()}
    return {folder / "README.md": _index([*catalogue.values()]), **written}


def _page(alert: Alert) -> str:
    return f"# {alert.name}\n\n{_WRITTEN}\n\n{runbook_markdown(alert)}"


def runbook_markdown(alert: Alert) -> str:
    """The page of one alert without its title."""
    return "\n".join(
        [
            f"**{alert.severity.capitalize()}** · {_TITLES[alert.component]} · {_waiting(alert)}",
            "",
            f"> {_message(alert.summary)}",
            "",
            "## What it means",
            "",
            f"{_line(alert.means)} {_SEVERITIES[alert.severity]}",
            "",
            "## What it is not",
            "",
            _line(alert.trap),
            "",
            "## What to do",
            "",
            *(f"{number}. {_line(step)}" for number, step in enumerate(alert.do, 1)),
            "",
            f'Watch the panel "{alert.panel}" of the dashboard {alert.dashboard} meanwhile.',
            "",
            "## The rule",
            "",
            *_rule(alert),
            "",
        ]
    )


def _waiting(alert: Alert) -> str:
    when = "fires at once" if alert.for_ in ("0", "0s") else f"fires after {alert.for_}"
    return when if alert.enabled else f"{when} · off until a site switches it on"


def _message(summary: str) -> str:
    """A summary with `{node}` and the like where their names will stand."""
    named = re.sub(r"\{\{ \$(?:labels|externalLabels)\.(\w+) \}\}", r"{\1}", summary)
    return re.sub(r"\{\{ \$value[^}]*\}\}", "{value}", named)


def _rule(alert: Alert) -> Iterator[str]:
    yield "```promql"
    yield expression(alert)
    yield "```"
    if alert.expr_expected is not None:
        yield ""
        yield "Where the inventory says how many GPUs the node has, it is compared with that number instead."
    yield ""
    yield "| setting | as shipped | unit or meaning |"
    yield "| --- | --- | --- |"
    for name, value, unit in _settings(alert):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in (f"`{name}`", value, unit)) + " |"
    if alert.params_of:
        yield ""
        yield f"Its other numbers are those of [{alert.params_of}]({alert.params_of}.md)."
    yield ""
    yield f"A site changes a setting in its inventory. {_KINDS[alert.kind]}"
    yield ""
    yield "```yaml"
    yield "prometheus_alerts:"
    yield f"  {alert.name}:"
    name, value, _ = next(_settings(alert)) if alert.enabled else ("enabled", "true", "")
    # Text in quotes: a list of codes is no number.
    yield f"    {name}: " + (f'"{value}"' if "|" in value else value)
    yield "```"


def _settings(alert: Alert) -> Iterator[tuple[str, str, str]]:
    if alert.threshold is not None:
        yield "threshold", f"{alert.threshold:g}", alert.unit
    for name, value in alert.params.items() if alert.params_of is None else ():
        choices = ", ".join(f"{choice:g}" for choice in alert.choices.get(name, ()))
        meaning = MEANINGS[name] + (f", one of {choices}" if choices else "")
        yield name, value if isinstance(value, str) else f"{value:g}", meaning
    if alert.window is not None:
        yield "window", alert.window, MEANINGS["window"]
    yield "for", alert.for_, MEANINGS["for"]
    yield "severity", alert.severity, MEANINGS["severity"]
    yield "enabled", "true" if alert.enabled else "false", ""


def _index(alerts: list[Alert]) -> str:
    parts = [_INDEX]
    for component in COMPONENTS:
        parts += [f"## {_TITLES[component]}", "", "| alert | severity | what it means |", "| --- | --- | --- |"]
        parts += [
            f"| [{alert.name}]({alert.name}.md) | {alert.severity} | {_first(alert.means)} |"
            for alert in alerts
            if alert.component == component
        ]
        parts.append("")
    return "\n".join(parts)


def _first(text: str) -> str:
    """The first sentence."""
    return re.split(r"(?<=[.!?])\s", _line(text), maxsplit=1)[0]


def _line(text: str) -> str:
    return " ".join(text.split())
