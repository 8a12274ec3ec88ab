"""A report as one HTML file that loads nothing: readable without a network, without scripts, and on paper."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from vllm_node.bench.report.page import Bullets, Chart, Figure, Mark, Page, Paragraph, Table, Terms, clean, inlines

_FOLDER = Path(__file__).parent
_KINDS = {
    "bullets": Bullets,
    "chart": Chart,
    "figure": Figure,
    "mark": Mark,
    "paragraph": Paragraph,
    "table": Table,
    "terms": Terms,
}


def render(page: Page) -> str:
    """The page as a document. Each figure is a `data` element: its value, and where it stands in the JSON."""
    return _environment().get_template("page.html.j2").render(page=page)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        attribute=_attribute,
        clean=clean,
        # What matplotlib drew has its texts escaped already.
        drawing=lambda text: Markup(text),  # noqa: S704
        parts=inlines,
        spaced=_spaced,
    )
    environment.tests.update({name: _is(kind) for name, kind in _KINDS.items()})
    environment.globals["style"] = Markup((_FOLDER / "report.css").read_text())  # noqa: S704 - a file of ours
    return environment


def _is(kind: type) -> Any:
    return lambda one: isinstance(one, kind)


def _attribute(value: Any) -> str:
    """A value as an attribute: words as they are, all else as JSON."""
    return clean(value) if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _spaced(text: str) -> str:
    """Text of others; spaces at its borders part it from its neighbours."""
    before, after = (" " if text[:1] == " " else ""), (" " if text[-1:] == " " and text.strip() else "")
    return f"{before}{clean(text)}{after}"
