"""The few words in which all dashboards are written: queries, panels, thresholds, variables, layout.

Needs the builder library, so nothing that runs at a site may import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from grafana_foundation_sdk.builders import common, gauge, heatmap, prometheus, stat, table, text, timeseries
from grafana_foundation_sdk.builders import dashboard as building
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heat_model
from grafana_foundation_sdk.models import prometheus as query_model
from grafana_foundation_sdk.models import text as text_model

Query = prometheus.Dataquery
Builder = Any
"""A panel builder. The library has one class a panel type, alike by their methods and not by a common base."""

SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
VLLM = 'node=~"$node",instance=~"$instance",model_name=~"$model_name"'
"""Selector of what vLLM itself measures."""
SERVER = 'node=~"$node",instance=~"$instance"'
"""Selector of what its HTTP server measures: that knows no model."""
NODE = 'node=~"$node"'

GREEN, ORANGE, RED, BLUE = "green", "orange", "red", "blue"
WIDTH = 24


@dataclass(frozen=True)
class Panel:
    """A panel with its place still open. `id` is fixed for good: links in old notifications name it."""

    id: int
    title: str
    builder: Builder
    alerts: tuple[str, ...] = ()
    """Alerts whose threshold it shows."""


@dataclass(frozen=True)
class Row:
    """Panels side by side. `height` in units of the grid, `widths` too; equal ones when not given."""

    height: int
    panels: tuple[Panel, ...]
    widths: tuple[int, ...] = ()


@dataclass(frozen=True)
class Limits:
    """Colours from numbers: `base`, and from each value of `steps` on another. A value may be `alert:<Name>`."""

    base: str = GREEN
    steps: tuple[tuple[float | str, str], ...] = ()

    @property
    def alerts(self) -> tuple[str, ...]:
        """Names of the alerts among the steps."""
        return tuple(str(value).removeprefix("alert:") for value, _ in self.steps if isinstance(value, str))

    def config(self) -> building.ThresholdsConfig:
        """As the library has it. The type says float, the texts are replaced when the dashboard is staged."""
        later: list[model.Threshold] = [model.Threshold(value, colour) for value, colour in self.steps]  # type: ignore[arg-type]
        return (
            building.ThresholdsConfig()
            .mode(model.ThresholdsMode.ABSOLUTE)
            .steps([model.Threshold(None, self.base), *later])
        )


NO_LIMITS = Limits()


def above(alert: str, colour: str = RED) -> Limits:
    """Bad from the threshold of an alert on."""
    return Limits(GREEN, ((f"alert:{alert}", colour),))


def below(alert: str, colour: str = RED) -> Limits:
    """Bad under the threshold of an alert."""
    return Limits(colour, ((f"alert:{alert}", GREEN),))


def ask(expr: str, legend: str = "", *, instant: bool = False) -> Query:
    """A query, over the time range or for now."""
    query = Query().expr(expr).datasource(SOURCE).editor_mode(query_model.QueryEditorMode.CODE).legend_format(legend)
    return query.instant() if instant else query.range()


def rate(selector: str, by: str) -> str:
    """Increase a second of a counter, summed."""
    return f"sum by ({by}) (rate({selector}[$__rate_interval]))"


def quantile(q: float, histogram: str, by: str = "node, instance", selector: str = VLLM) -> str:
    """A quantile over the requests of the interval; NaN, so a gap in the line, without any."""
    return f"histogram_quantile({q}, {rate(f'{histogram}_bucket{{{selector}}}', f'le, {by}')})"


def quantiles(histogram: str, of: Iterable[float] = (0.5, 0.95, 0.99)) -> list[Query]:
    """The usual three lines an instance."""
    return [ask(quantile(q, histogram), f"{{{{node}}}} {{{{instance}}}} p{100 * q:g}") for q in of]


def ratio(part: str, whole: str) -> str:
    """A share. Without anything in `whole` there is no share: the line has a gap instead of a zero."""
    return f"{part} / ({whole} > 0)"


def _common(
    builder: Builder, number: int, title: str, description: str, unit: str, queries: Sequence[Query]
) -> Builder:
    for index, query in enumerate(queries):
        builder.with_target(query.ref_id("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[index]))
    return builder.id(number).title(title).description(description).datasource(SOURCE).unit(unit)


def lines(
    number: int,
    title: str,
    description: str,
    unit: str,
    queries: Sequence[Query],
    *,
    limits: Limits = NO_LIMITS,
    stacked: bool = False,
    top: float | None = None,
) -> Panel:
    """Values over time. `top` fixes the upper end of the axis."""
    builder = _common(timeseries.Panel(), number, title, description, unit, queries)
    (
        builder.min(0)
        .fill_opacity(25 if stacked else 6)
        .show_points(options.VisibilityMode.NEVER)
        .thresholds(limits.config())
        .color_scheme(building.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC))
        .legend(
            common.VizLegendOptions()
            .display_mode(options.LegendDisplayMode.LIST)
            .placement(options.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(options.TooltipDisplayMode.MULTI).sort(options.SortOrder.DESCENDING))
    )
    if top is not None:
        builder.max(top)
    if stacked:
        builder.stacking(common.StackingConfig().mode(options.StackingMode.NORMAL).group("A"))
    if limits.steps:
        builder.thresholds_style(common.GraphThresholdsStyleConfig().mode(options.GraphThresholdsStyleMode.DASHED))
    return Panel(number, title, builder, limits.alerts)


def number(
    number: int,
    title: str,
    description: str,
    unit: str,
    query: Query,
    *,
    limits: Limits = NO_LIMITS,
    none: str | None = None,
) -> Panel:
    """One value, now, a series. `none` is shown when there is no series at all."""
    builder = _common(stat.Panel(), number, title, description, unit, [query])
    (
        builder.thresholds(limits.config())
        .color_scheme(building.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
        .color_mode(options.BigValueColorMode.VALUE)
        .graph_mode(options.BigValueGraphMode.NONE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    if none is not None:
        builder.no_value(none)
    return Panel(number, title, builder, limits.alerts)


def dial(
    number: int, title: str, description: str, unit: str, query: Query, top: float, *, limits: Limits = NO_LIMITS
) -> Panel:
    """One value, now, between zero and `top`."""
    builder = _common(gauge.Panel(), number, title, description, unit, [query])
    (
        builder.min(0)
        .max(top)
        .thresholds(limits.config())
        .color_scheme(building.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    return Panel(number, title, builder, limits.alerts)


@dataclass(frozen=True)
class Column:
    """A column of values: its head, its query, its unit and its colours."""

    head: str
    expr: str
    unit: str = "short"
    limits: Limits = field(default_factory=Limits)


def rows(
    number: int,
    title: str,
    description: str,
    columns: Sequence[Column],
    labels: Sequence[tuple[str, str]],
    none: str = "none",
) -> Panel:
    """A table of what is now: a line a set of `labels` (label, head), then a column a query."""
    queries = [ask(column.expr, instant=True).format(query_model.PromQueryFormat.TABLE) for column in columns]
    builder = _common(table.Panel(), number, title, description, "short", queries).no_value(none)
    builder.align(options.FieldTextAlignment.AUTO)
    # Grafana names a lone query's column "Value", and "Value #A", "Value #B" those of several.
    values = (
        ["Value"] if len(columns) == 1 else [f"Value #{'ABCDEFGHIJKLMNOPQRSTUVWXYZ'[i]}" for i in range(len(columns))]
    )
    names = dict(labels) | {value: column.head for value, column in zip(values, columns, strict=True)}
    builder.with_transformation(model.DataTransformerConfig("merge", options={}))
    builder.with_transformation(
        model.DataTransformerConfig("filterFieldsByName", options={"include": {"names": list(names)}})
    )
    builder.with_transformation(
        model.DataTransformerConfig(
            "organize",
            options={
                "excludeByName": {},
                "indexByName": {name: index for index, name in enumerate(names)},
                "renameByName": {name: head for name, head in names.items() if name != head},
            },
        )
    )
    for column in columns:
        properties: list[model.DynamicConfigValue] = [model.DynamicConfigValue("unit", column.unit)]
        if column.limits.steps:
            properties += [
                model.DynamicConfigValue("thresholds", column.limits.config().build()),
                model.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}),
            ]
        builder.override_by_name(column.head, properties)
    return Panel(number, title, builder, tuple(name for column in columns for name in column.limits.alerts))


def heat(number: int, title: str, description: str, unit: str, query: Query) -> Panel:
    """How often which value was seen: the buckets of a histogram over time."""
    builder = _common(
        heatmap.Panel(), number, title, description, unit, [query.format(query_model.PromQueryFormat.HEATMAP)]
    )
    (
        builder.calculate(False)
        .scale_distribution(common.ScaleDistributionConfig().type(options.ScaleDistribution.LINEAR))
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .color(heatmap.HeatmapColorOptions().mode(heat_model.HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
    )
    return Panel(number, title, builder)


def prose(number: int, title: str, description: str, markdown: str) -> Panel:
    """A text."""
    builder = text.Panel().id(number).title(title).description(description)
    return Panel(number, title, builder.mode(text_model.TextMode.MARKDOWN).content(markdown))


def go(title: str, url: str, tooltip: str = "") -> building.DashboardLink:
    """A link of a panel or a dashboard, relative to Grafana's own address."""
    return (
        building.DashboardLink(title)
        .type(model.DashboardLinkType.LINK)
        .url(url)
        .tooltip(tooltip)
        .icon("doc")
        .target_blank(False)
    )


def _variable(name: str, label: str, values: str) -> building.QueryVariable:
    return (
        building.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(values)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        # Also what has no such label yet, such as a model that is still being loaded, is in "All".
        .all_value(".*")
        .current(model.VariableOption(text=["All"], value=["$__all"], selected=True))
    )


def variables(*wanted: str) -> list[Any]:
    """The data source and the named ones of `node`, `instance`, `model_name`."""
    source = (
        building.DatasourceVariable("datasource")
        .label("Data source")
        .type("prometheus")
        .current(model.VariableOption(text="Prometheus", value="vllm-node-prometheus", selected=True))
    )
    known = {
        "node": _variable("node", "Node", "label_values(up, node)"),
        "instance": _variable(
            "instance", "Instance", 'label_values(vllm:num_requests_running{node=~"$node"}, instance)'
        ),
        "model_name": _variable(
            "model_name",
            "Model",
            'label_values(vllm:num_requests_running{node=~"$node",instance=~"$instance"}, model_name)',
        ),
    }
    return [source, *(known[name] for name in wanted)]


@dataclass(frozen=True)
class Board:
    """A dashboard before it is laid out."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[str, ...] = ("node", "instance", "model_name")
    refresh: str = "30s"

    @property
    def panels(self) -> list[Panel]:
        """All of its panels."""
        return [panel for row in self.rows for panel in row.panels]


def row(height: int, *panels: Panel, widths: Sequence[int] = ()) -> Row:
    """Panels side by side."""
    return Row(height, panels, tuple(widths))
