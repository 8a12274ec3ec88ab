"""A report before it is Markdown or HTML: both are made from the same sections, in the same order."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from vllm_node.bench.report.numbers import shown

# Control characters break files; the others turn the direction of a line, so that it reads as something else.
_HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class Figure:
    """A number or word out of the document, with the way back to it.

    `paths` are JSON pointers; `by` says how `value` comes from what stands there: `value`, `median`, `low`, `high`,
    `mean`, `max`, `passes` or `histogram` (counts added up). `part` is the first and the one after the last element
    where a path leads to a list.
    """

    value: Any
    text: str
    paths: tuple[str, ...]
    by: str = "value"
    part: tuple[int, int] | None = None


@dataclass(frozen=True)
class Mark:
    """A verdict, an outcome or another word that may have a colour; the word alone says it all."""

    word: str


Inline = str | Figure | Mark
Text = Inline | Sequence[Inline]


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    text: Text


@dataclass(frozen=True)
class Bullets:
    """A list without order."""

    items: Sequence[Text]


@dataclass(frozen=True)
class Table:
    """The first cell of each row is its head. `folded` tables are for looking things up."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Text]]
    folded: bool = False


@dataclass(frozen=True)
class Terms:
    """Terms and what they mean."""

    entries: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Chart:
    """A drawing; `draw` gives SVG with this id. `figures` and `table` hold all that is drawn."""

    id: str
    title: str
    description: str
    draw: Callable[[], str]
    figures: Sequence[Figure] = ()
    table: Table | None = None


Block = Paragraph | Bullets | Table | Terms | Chart


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it."""

    id: str
    title: str
    blocks: Sequence[Block]
    parts: Sequence[Section] = ()


@dataclass(frozen=True)
class Page:
    """A whole report; `verdict` is its first word."""

    title: str
    verdict: Mark
    summary: Text
    sections: Sequence[Section]


def pointer(*keys: str | int) -> str:
    """JSON pointer to a place, as in a URI fragment (RFC 6901, section 6), so that there is no space in it."""
    escaped = (str(key).replace("~", "~0").replace("/", "~1") for key in keys)
    return "".join("/" + quote(key, safe="~!$()*+,;:@", errors="surrogatepass") for key in escaped)


def resolve(document: Any, keys: Sequence[str | int]) -> Any:
    """What stands at a place; None where nothing does."""
    for key in keys:
        try:
            document = document[key]
        except (KeyError, IndexError, TypeError):
            return None
    return document


def figure(document: Any, keys: Sequence[str | int], unit: str = "") -> Figure:
    """The figure at a place."""
    value = resolve(document, keys)
    return Figure(value, shown(value, unit), (pointer(*keys),))


def inlines(text: Text) -> Sequence[Inline]:
    """Text as its parts."""
    return (text,) if isinstance(text, str | Figure | Mark) else text


def clean(text: object) -> str:
    """Text of others on one line, without characters that do harm."""
    return " ".join(_HARMFUL.sub("\N{REPLACEMENT CHARACTER}", str(text)).split())
