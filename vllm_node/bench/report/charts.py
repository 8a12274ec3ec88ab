"""The charts of a report, drawn by matplotlib, which is imported when one is drawn and not before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_node.bench.report import svg
from vllm_node.bench.report.numbers import UNOBSERVABLE

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

_WIDTH_IN = 9.0
_LEAST_RANGE = 8.0
_MOST_NAMES = 12


@dataclass(frozen=True)
class Distribution:
    """A panel: for each line the (seconds, share at or below) of its steps; `limit_s` is what was promised."""

    title: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    limit_s: float | None = None


@dataclass(frozen=True)
class Lane:
    """A panel of a timeline: for each line its values at the common times; None is a gap."""

    title: str
    lines: Mapping[str, Sequence[float | None]]
    share: bool = False


@dataclass(frozen=True)
class Stretch:
    """A window on the time axis, in seconds, with its name."""

    start: float
    end: float
    name: str


def distributions(name: str, title: str, description: str, panels: Sequence[Distribution]) -> str:
    """Share of the samples at or below a time, on a logarithmic axis, two panels beside each other."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rows = (len(panels) + 1) // 2
    with mpl.rc_context(svg.settings(name)):
        figure = Figure(figsize=(_WIDTH_IN, 2.7 * rows), layout="constrained")
        grid = figure.subplots(rows, 2, squeeze=False, sharey=True).flat
        for axes, panel in zip(grid, panels, strict=False):
            axes.set_title(panel.title)
            axes.set_xscale("log")
            _log_ticks(axes, panel)
            axes.set_ylim(0, 1.02)
            axes.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1))
            axes.grid(True)
            for label, points in panel.lines.items():
                # It rises at each bound, from the lowest share that is not 0.
                axes.step([at for at, _ in points], [share for _, share in points], where="post", label=label)
            if panel.limit_s is not None:
                axes.axvline(panel.limit_s, color=svg.LIMIT, linewidth=1, linestyle="-")
                axes.axhline(0.95, color=svg.LIMIT, linewidth=0.5, linestyle="-")
        for axes in list(grid):
            axes.set_axis_off()
        handles: dict[str, Artist] = {}
        for axes in figure.axes:
            lines, labels = axes.get_legend_handles_labels()
            handles.update(zip(labels, lines, strict=True))
        if handles:
            figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=5)
        return svg.markup(figure, name, title, description)


def timeline(
    name: str,
    title: str,
    description: str,
    times: Sequence[float | None],
    lanes: Sequence[Lane],
    stretches: Sequence[Stretch],
) -> str:
    """Lanes above each other on one time axis; None in `times` ends a line, where nothing was scored."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    at = [float("nan") if one is None else one for one in times]
    upright = len(stretches) > _MOST_NAMES
    # Points above the first lane, for the names of the windows.
    room = 45 if upright else 16
    with mpl.rc_context(svg.settings(name)):
        figure = Figure(figsize=(_WIDTH_IN, 1.5 * len(lanes) + 0.8), layout="constrained")
        for axes, lane in zip(figure.subplots(len(lanes), 1, sharex=True, squeeze=False).flat, lanes, strict=True):
            axes.set_title(lane.title, pad=room if axes is figure.axes[0] else None)
            axes.grid(True, axis="y")
            for number, one in enumerate(stretches):
                if number % 2 == 0:
                    axes.axvspan(one.start, one.end, color=svg.BAND, linewidth=0)
            for label, values in lane.lines.items():
                axes.plot(at, [float("nan") if one is None else one for one in values], label=label, linewidth=1.3)
            if all(one is None for values in lane.lines.values() for one in values):
                axes.text(0.5, 0.5, UNOBSERVABLE, transform=axes.transAxes, ha="center", va="center")
                axes.set_yticks([])
                continue
            axes.set_ylim(bottom=0)
            if lane.share:
                axes.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1))
            if len(lane.lines) > 1:
                axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
        for one in stretches:
            figure.axes[0].text(
                (one.start + one.end) / 2,
                1.03,
                one.name,
                transform=figure.axes[0].get_xaxis_transform(),
                ha="center",
                va="bottom",
                fontsize=6 if upright else 7,
                rotation=90 if upright else 0,
            )
        figure.axes[-1].set_xlabel("seconds since the first window began")
        return svg.markup(figure, name, title, description)


def _log_ticks(axes: Axes, panel: Distribution) -> None:
    """Named ticks however little the times differ: an axis of less than a power of ten would have none."""
    from matplotlib import ticker

    times = [at for line in panel.lines.values() for at, _ in line] + [panel.limit_s or 0]
    times = [at for at in times if at > 0]
    low, high = min(times) / 1.25, max(times) * 1.25
    if high / low < _LEAST_RANGE:
        middle = (low * high) ** 0.5
        low, high = middle / _LEAST_RANGE**0.5, middle * _LEAST_RANGE**0.5
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high / low < 1000 else (1,)))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(_seconds))
    axes.xaxis.set_minor_locator(ticker.NullLocator())


def _seconds(value: float, _place: object) -> str:
    return f"{value * 1e6:g} µs" if value < 1e-3 else f"{value * 1e3:g} ms" if value < 1 else f"{value:g} s"
