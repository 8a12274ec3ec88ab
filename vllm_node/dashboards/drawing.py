"""A dashboard as a picture: the same grid, the same queries, drawn by a plotting library instead of a browser."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import dates
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle, Wedge
from PIL import Image

from vllm_node.dashboards.asking import Answerer, Question, Series, of_panel

COLUMNS = 24
WIDTH_IN, UNIT_IN, DPI = 15.0, 0.32, 80
LONGEST = 66
"""Units of height after which a picture is cut; the runbooks would be as tall as a house."""
PAPER, CARD, INK, FAINT = "#f4f5f5", "#ffffff", "#24292e", "#8a8f94"
COLOURS = {"green": "#3f9a4a", "orange": "#e8871a", "red": "#d13438", "blue": "#3274d9"}
LINES = ("#3f9a4a", "#3274d9", "#e8871a", "#8f3bb8", "#d13438", "#00808a", "#a98600", "#c15c9b", "#5b6c7d")

Answers = list[tuple[Question, list[Series]]]


def picture(model: Mapping[str, Any], answer: Answerer) -> bytes:
    """A PNG of a dashboard whose thresholds are numbers."""
    panels = [panel for panel in model["panels"] if panel["gridPos"]["y"] + panel["gridPos"]["h"] <= LONGEST]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) + 2
    # mathtext would take a dollar or an underscore of a label for a formula.
    with mpl.rc_context({"font.size": 8, "font.family": "DejaVu Sans", "text.parse_math": False}):
        figure = Figure(figsize=(WIDTH_IN, height * UNIT_IN), dpi=DPI, facecolor=PAPER)
        figure.text(0.01, 1 - 0.9 / height, str(model["title"]), fontsize=14, weight="bold", color=INK, va="center")
        left = len(model["panels"]) - len(panels)
        if left:
            figure.text(0.99, 1 - 0.9 / height, f"{left} more panels below", color=FAINT, ha="right", va="center")
        for panel in panels:
            _panel(figure, panel, height, answer)
        return _png(figure)


def _png(figure: Figure) -> bytes:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    # A plot has few colours: with a palette the file is a quarter of the size.
    image = Image.fromarray(_pixels(canvas)).convert("RGB").quantize(128)
    target = io.BytesIO()
    image.save(target, "PNG", optimize=True)
    return target.getvalue()


def _pixels(canvas: FigureCanvasAgg) -> Any:
    return np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]


def _panel(figure: Figure, panel: Mapping[str, Any], height: float, answer: Answerer) -> None:
    place = panel["gridPos"]
    x, w = place["x"] / COLUMNS, place["w"] / COLUMNS
    y, h = 1 - (place["y"] + place["h"] + 1.8) / height, place["h"] / height
    gap_x, gap_y = 0.003, 0.12 / height
    figure.patches.append(
        Rectangle(
            (x + gap_x, y + gap_y),
            w - 2 * gap_x,
            h - 2 * gap_y,
            transform=figure.transFigure,
            facecolor=CARD,
            edgecolor="#d8dadd",
            linewidth=0.6,
            zorder=-1,
        )
    )
    title = textwrap.shorten(str(panel["title"]), max(12, int(w * 190)), placeholder="…")
    figure.text(x + 0.008, y + h - 0.55 / height, title, weight="bold", color=INK, va="center", fontsize=8.5)
    axes = figure.add_axes((x + 0.008, y + 0.25 / height, w - 0.016, h - 1.25 / height))
    axes.set_facecolor(CARD)
    asked: Answers = [(question, answer(question)) for question in of_panel(panel)]
    if panel["type"] != "text" and not any(series for _, series in asked):
        _blank(axes)
        axes.text(0.5, 0.5, _none(panel), ha="center", va="center", color=FAINT, fontsize=11)
        return
    _DRAW[panel["type"]](axes, panel, asked)


def _none(panel: Mapping[str, Any]) -> str:
    return str(panel["fieldConfig"]["defaults"].get("noValue") or "no data")


def _blank(axes: Axes) -> None:
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)


# --- one function a type ---------------------------------------------------------------------------------


def _timeseries(axes: Axes, panel: Mapping[str, Any], asked: Answers) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    unit = defaults.get("unit", "short")
    named = [(name(question.legend, series), series) for question, answer in asked for series in answer]
    stacked = defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal"
    base: dict[float, float] = {}
    for index, (label, series) in enumerate(named):
        times = [_day(time) for time, _ in series.points]
        values = [value + (base.get(time, 0.0) if stacked else 0.0) for time, value in series.points]
        if stacked:
            base.update({time: value for (time, _), value in zip(series.points, values, strict=True) if value == value})
        colour = LINES[index % len(LINES)]
        axes.plot(times, values, color=colour, linewidth=1.1, label=label, marker="." if len(times) == 1 else None)
        if stacked:
            axes.fill_between(times, values, color=colour, alpha=0.12, linewidth=0)
    steps = defaults.get("thresholds", {}).get("steps", [])
    low, high = axes.get_ylim()
    highest = max([value for _, series in named for _, value in series.points if value == value], default=1)
    for step in steps:
        value = step["value"]
        # A limit far above everything would press the lines to the floor; it is drawn only where it is near.
        if value is not None and value <= max(highest * 6, high):
            axes.axhline(value, color=COLOURS.get(step["color"], FAINT), linewidth=0.9, linestyle="--")
    axes.set_ylim(bottom=min(0, low), top=defaults.get("max"))
    axes.tick_params(labelsize=6.5, colors=FAINT, length=2)
    axes.yaxis.set_major_formatter(lambda value, _: shown(value, unit))
    axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M", tz=UTC))  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(dates.AutoDateLocator(minticks=3, maxticks=6))  # type: ignore[no-untyped-call]
    axes.grid(color="#e6e8ea", linewidth=0.5)
    for side in axes.spines.values():
        side.set_visible(False)
    _inset(axes, below_px=26)
    _legend(axes, [label for label, _ in named])


def _day(time: float) -> float:
    """Unix time in seconds as the library counts: in days."""
    return float(dates.date2num(datetime.fromtimestamp(time, UTC)))  # type: ignore[no-untyped-call]


def _legend(axes: Axes, labels: Sequence[str]) -> None:
    """One line below the axis, with as many names as fit."""
    handles = axes.get_lines()[: len(labels)]
    fits, used = 0, 0
    room = axes.get_position().width * WIDTH_IN * DPI / 4.2
    for label in labels:
        used += len(label) + 7
        if used > room:
            break
        fits += 1
    shown_labels = [*labels[:fits]]
    if fits < len(labels) and fits:
        shown_labels[-1] += f" and {len(labels) - fits} more"
    low = -22 / (axes.get_position().height * axes.get_figure(root=True).get_figheight() * DPI)  # type: ignore[union-attr]
    axes.legend(
        handles[:fits],
        shown_labels,
        fontsize=6,
        loc="center left",
        bbox_to_anchor=(-0.04, low),
        ncols=max(1, fits),
        frameon=False,
        labelcolor=INK,
        columnspacing=1.2,
        handlelength=1.2,
    )


def _inset(axes: Axes, below_px: float = 14) -> None:
    """Room for the numbers beside the axes."""
    box = axes.get_position()
    figure = axes.get_figure(root=True)
    assert figure is not None
    wide, high = 0.035, below_px / (figure.get_figheight() * DPI)
    axes.set_position((box.x0 + wide, box.y0 + high, box.width - wide, box.height - high))


def _stat(axes: Axes, panel: Mapping[str, Any], asked: Answers) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    _blank(axes)
    found = [(name(question.legend, series), series.points[-1][1]) for question, answer in asked for series in answer]
    many = len(found) > 1
    for index, (label, value) in enumerate(found[:6]):
        label = textwrap.shorten(label, 18, placeholder="…")
        y = 0.5 if not many else 1 - (index + 0.5) / min(len(found), 6)
        text = (
            f"{label}  {shown(value, defaults.get('unit', 'short'))}"
            if many
            else shown(value, defaults.get("unit", "short"))
        )
        axes.text(0.5, y, text, ha="center", va="center", fontsize=9 if many else 17, color=coloured(value, defaults))


def _gauge(axes: Axes, panel: Mapping[str, Any], asked: Answers) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    _blank(axes)
    axes.set_aspect("equal")
    value = next(series.points[-1][1] for _, answer in asked for series in answer)
    share = 0.0 if math.isnan(value) else min(1.0, max(0.0, value / float(defaults["max"])))
    axes.add_patch(Wedge((0.5, 0.25), 0.6, 0, 180, width=0.16, facecolor="#e6e8ea"))
    axes.add_patch(Wedge((0.5, 0.25), 0.6, 180 - 180 * share, 180, width=0.16, facecolor=coloured(value, defaults)))
    axes.text(0.5, 0.28, shown(value, defaults.get("unit", "short")), ha="center", va="bottom", fontsize=12, color=INK)


def _table(axes: Axes, panel: Mapping[str, Any], asked: Answers) -> None:
    head, lines = table(panel, asked)
    _blank(axes)
    shown_lines = lines[:14]
    grid = axes.table(
        cellText=[[textwrap.shorten(cell, 40, placeholder="…") for cell in line] for line in shown_lines],
        colLabels=head,
        loc="upper left",
        cellLoc="left",
        colLoc="left",
        edges="horizontal",
    )
    grid.auto_set_font_size(False)
    grid.set_fontsize(6.5)
    grid.auto_set_column_width(list(range(len(head))))
    for (line, _), cell in grid.get_celld().items():
        cell.set_edgecolor("#e6e8ea")
        cell.get_text().set_color(FAINT if line == 0 else INK)
    if len(lines) > len(shown_lines):
        axes.text(
            1, 0, f"{len(lines) - len(shown_lines)} more lines", ha="right", va="bottom", color=FAINT, fontsize=6.5
        )


def table(panel: Mapping[str, Any], asked: Answers) -> tuple[list[str], list[list[str]]]:
    """Head and lines of a table panel: what its transformations make of the answers."""
    steps = {each["id"]: each["options"] for each in panel["transformations"]}
    names: list[str] = steps["filterFieldsByName"]["include"]["names"]
    heads: Mapping[str, str] = steps["organize"]["renameByName"]
    units = {
        override["matcher"]["options"]: prop["value"]
        for override in panel["fieldConfig"].get("overrides", [])
        for prop in override["properties"]
        if prop["id"] == "unit"
    }
    merged: dict[tuple[str, ...], dict[str, str]] = {}
    labels = [each for each in names if not each.startswith("Value")]
    for question, answer in asked:
        column = "Value" if len(asked) == 1 else f"Value #{question.ref}"
        for series in answer:
            key = tuple(series.labels.get(label, "") for label in labels)
            line = merged.setdefault(key, dict(zip(labels, key, strict=True)))
            line[column] = shown(series.points[-1][1], units.get(heads.get(column, column), "short"))
    return [heads.get(each, each) for each in names], [
        [line.get(each, "") for each in names] for _, line in sorted(merged.items())
    ]


def _heatmap(axes: Axes, panel: Mapping[str, Any], asked: Answers) -> None:
    unit = panel["fieldConfig"]["defaults"].get("unit", "short")
    series = sorted((each for _, answer in asked for each in answer), key=lambda each: float(each.labels["le"]))
    times = sorted({time for each in series for time, _ in each.points})
    below = dict.fromkeys(times, 0.0)
    cells = []
    for each in series:
        values = dict(each.points)
        cells.append([max(0.0, values.get(time, 0.0) - below[time]) for time in times])
        below = {time: values.get(time, below[time]) for time in times}
    most = max((value for line in cells for value in line), default=0.0)
    used = [index for index, line in enumerate(cells) if max(line, default=0) > 0] or [0]
    cells, series = cells[used[0] : used[-1] + 1], series[used[0] : used[-1] + 1]
    axes.imshow(cells, aspect="auto", origin="lower", cmap="Oranges", vmin=0, vmax=most or 1, interpolation="nearest")
    axes.set_yticks(
        range(len(series)), [shown(float(each.labels["le"]), unit) for each in series], fontsize=6.5, color=FAINT
    )
    ticks = list(range(0, len(times), max(1, len(times) // 5)))
    axes.set_xticks(ticks, [f"{datetime.fromtimestamp(times[i], UTC):%H:%M}" for i in ticks], fontsize=6.5, color=FAINT)
    for side in axes.spines.values():
        side.set_visible(False)
    _inset(axes)


def _unmarked(line: str) -> str:
    """A line of Markdown without its marks."""
    return line.lstrip("# ").replace("**", "").replace("`", "")


def _text(axes: Axes, panel: Mapping[str, Any], _asked: Answers) -> None:
    _blank(axes)
    figure = axes.get_figure(root=True)
    assert figure is not None
    box = axes.get_position()
    wide = max(20, int(box.width * WIDTH_IN * DPI / 4.5))
    line_height = 11.5 / (box.height * figure.get_figheight() * DPI)
    y = 1.0
    for line in str(panel["options"]["content"]).splitlines():
        for part in textwrap.wrap(_unmarked(line), wide) or [""]:
            if y < line_height:
                axes.text(0, y, "…", va="top", color=FAINT)
                return
            axes.text(0, y, part, va="top", fontsize=7, color=INK, weight="bold" if line.startswith("#") else "normal")
            y -= line_height


_DRAW: dict[str, Callable[[Axes, Mapping[str, Any], Answers], None]] = {
    "timeseries": _timeseries,
    "stat": _stat,
    "gauge": _gauge,
    "table": _table,
    "heatmap": _heatmap,
    "text": _text,
}


# --- words ------------------------------------------------------------------------------------------------


def name(legend: str, series: Series) -> str:
    """The legend of a series: its labels where the format has them in double braces."""
    if not legend:
        return ", ".join(series.labels.values()) or "value"
    parts = legend.split("{{")
    return parts[0] + "".join(
        series.labels.get(part.partition("}}")[0].strip(), "") + part.partition("}}")[2] for part in parts[1:]
    )


def coloured(value: float, defaults: Mapping[str, Any]) -> str:
    """Colour of a value by the thresholds of its field."""
    colour = "green"
    for step in defaults.get("thresholds", {}).get("steps", []):
        if step["value"] is None or value >= step["value"]:
            colour = step["color"]
    return COLOURS.get(colour, INK)


_SCALES: Mapping[str, Sequence[tuple[float, float, str]]] = {
    "s": (
        (86400, 1 / 86400, " d"),
        (3600, 1 / 3600, " h"),
        (60, 1 / 60, " min"),
        (1, 1, " s"),
        (0.001, 1000, " ms"),
        (0, 1e6, " µs"),
    ),
    "hertz": ((1e9, 1e-9, " GHz"), (1e6, 1e-6, " MHz"), (0, 1, " Hz")),
    "Bps": ((1e9, 1e-9, " GB/s"), (1e6, 1e-6, " MB/s"), (1e3, 1e-3, " kB/s"), (0, 1, " B/s")),
    "short": ((1e9, 1e-9, " bn"), (1e6, 1e-6, " M"), (1e4, 1e-3, " k"), (0, 1, "")),
}
_SUFFIX = {"percent": " %", "celsius": " °C", "watt": " W", "joule": " J", "reqps": " req/s", "ops": " /s"}


def shown(value: float, unit: str) -> str:
    """A value as a person reads it."""
    if math.isnan(value):
        return "no value"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    for least, factor, suffix in _SCALES.get(unit, ()):
        if abs(value) >= least:
            return f"{value * factor:.3g}{suffix}" if value else "0"
    text = f"{value:.0f}" if value == round(value) and abs(value) < 1e6 else f"{value:.3g}"
    return text + _SUFFIX.get(unit, "")
