"""Panel types: those that Grafana itself has, and what to use in the place of those that it has no more."""

from __future__ import annotations

CORE = frozenset(
    """
    alertlist annolist barchart bargauge candlestick canvas dashlist datagrid debug flamegraph gauge geomap
    gettingstarted heatmap histogram live logs news nodeGraph piechart row stat state-timeline status-history
    table text timeseries traces trend welcome xychart
    """.split()  # noqa: SIM905 - a list of words, and nothing else
)

RETIRED = {
    "graph": "timeseries",
    "singlestat": "stat",
    "grafana-singlestat-panel": "stat",
    "table-old": "table",
    "grafana-piechart-panel": "piechart",
    "grafana-worldmap-panel": "geomap",
    "natel-discrete-panel": "state-timeline",
}
"""Types that were taken out of Grafana, and that it turns into these by itself when it opens a dashboard."""

INSTEAD = {
    "bargauge-panel": "bargauge",
    "briangann-gauge-panel": "gauge",
    "flant-statusmap-panel": "status-history",
    "grafana-polystat-panel": "stat",
    "heatmap-new": "heatmap",
    "jdbranham-diagram-panel": "canvas",
    "michaeldmoore-multistat-panel": "bargauge",
    "mtanda-histogram-panel": "histogram",
    "natel-plotly-panel": "xychart",
    "savantly-heatmap-panel": "heatmap",
    "vonage-status-panel": "stat",
    "yesoreyeram-boomtable-panel": "table",
}
"""Plugins that people often have, and the type of Grafana itself that shows the same."""


def complaint(kind: object) -> str | None:
    """What is wrong with a panel type, and what to use instead; None for a type that Grafana has."""
    name = str(kind)
    if name in CORE:
        return None
    if name in RETIRED:
        return f"is of the retired type {name}: use {RETIRED[name]} (Grafana converts it when it is opened and saved)"
    if name in INSTEAD or name.startswith("natel-"):
        return f"needs the plugin {name}: use {INSTEAD.get(name, 'a type of Grafana itself')} instead"
    return f"is of the type {name}, which Grafana itself does not have: use a type of its own, such as timeseries"
