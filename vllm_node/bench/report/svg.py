"""A matplotlib figure as SVG that may stand inside a page: named, described, in the colours of the page."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours that nobody would choose stand for those of the page, which has others in the dark and on paper.
INK, FAINT, GRID, BAND, LIMIT = "#010a01", "#010a02", "#010a03", "#010a04", "#010a05"
LINES = tuple(f"#010b0{number}" for number in range(1, 8))
_OF_PAGE = {INK: "ink", FAINT: "faint", GRID: "grid", BAND: "band", LIMIT: "limit"} | {
    colour: f"line-{number}" for number, colour in enumerate(LINES, 1)
}
_COLOUR = re.compile("|".join(_OF_PAGE))
_REFERENCE = re.compile(r"url\(#([^)]*)\)")
_DROPPED = ("metadata", "style", "title", "desc")


def settings(name: str) -> dict[Any, Any]:
    """What matplotlib has to be told for `markup`: text stays text, and the same figure gives the same bytes."""
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "text.parse_math": False,
        "font.size": 9,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": FAINT,
        "axes.facecolor": "none",
        "axes.prop_cycle": _cycle(),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "figure.facecolor": "none",
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "xtick.color": FAINT,
        "xtick.labelcolor": INK,
        "ytick.color": FAINT,
        "ytick.labelcolor": INK,
    }


def markup(figure: Figure, name: str, title: str, description: str) -> str:
    """The SVG element, with `name` before each of its ids, so that two of them may stand in one page."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    target = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    FigureCanvasSVG(figure).print_svg(target, metadata=nothing)  # type: ignore[no-untyped-call]
    root = ElementTree.fromstring(target.getvalue())  # noqa: S314 - what was just drawn
    for element in list(root.iter()):
        for child in list(element):
            if _bare(child.tag) in _DROPPED:
                element.remove(child)
    for element in root.iter():
        _adapt(element, name)
    for gone in ("width", "height"):
        root.attrib.pop(gone, None)
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title {name}-description")
    root.set("style", "stroke-linejoin:round;stroke-linecap:butt")
    for place, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(tag, id=f"{name}-{'description' if tag == 'desc' else tag}")
        element.text = text
        root.insert(place, element)
    return ElementTree.tostring(root, encoding="unicode")


def _adapt(element: ElementTree.Element, name: str) -> None:
    # Inside HTML neither elements nor links have name spaces.
    element.tag = _bare(element.tag)
    attributes = {_bare(key): value for key, value in element.attrib.items()}
    element.attrib.clear()
    for key, value in attributes.items():
        if key == "id":
            value = f"{name}-{value}"
        elif key == "href":
            value = f"#{name}-{value.removeprefix('#')}"
        value = _REFERENCE.sub(rf"url(#{name}-\1)", value)
        element.set(key, _COLOUR.sub(lambda found: f"var(--{_OF_PAGE[found[0]]})", value))


def _bare(tag: str) -> str:
    return tag.rpartition("}")[2]


def _cycle() -> object:
    from cycler import cycler

    # Lines differ in their dashes too: on paper, and for those who do not see colours, that tells them apart.
    return cycler(linestyle=["-", "--", "-.", ":"]) * cycler(color=LINES)
