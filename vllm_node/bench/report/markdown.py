"""A report as Markdown: readable as it stands, and as CommonMark with the tables of GitHub."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vllm_node.bench.report.page import (
    Block,
    Bullets,
    Chart,
    Figure,
    Mark,
    Page,
    Paragraph,
    Section,
    Table,
    Text,
    clean,
    inlines,
)

_SPECIAL = re.compile(
    r"[\\`*\[\]<>|~&]"
    r"|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])"  # inside of a word it marks nothing
    r"|^(?:#|[+=-](?=[\s=-]|$)|\d+(?=[.)](?:\s|$)))"  # only at the start of a line
)


def render(page: Page) -> str:
    """The page as text. Charts are left out: their figures stand in its tables and in the HTML."""
    return "\n".join(_lines(page)) + "\n"


def escaped(text: object) -> str:
    """Text of others as text: no mark, no HTML, no link with another name, on one line."""
    return _SPECIAL.sub(lambda found: _escape(found[0]), clean(text))


def _escape(found: str) -> str:
    return f"{found}\\" if found[0].isdigit() else f"\\{found}"


def _lines(page: Page) -> Iterator[str]:
    yield f"# {escaped(page.title)}"
    yield ""
    yield _text(page.summary)
    for section in page.sections:
        yield from _section(section, 2)


def _section(section: Section, level: int) -> Iterator[str]:
    lines = [line for block in section.blocks for line in _block(block)]
    lines += [line for part in section.parts for line in _section(part, level + 1)]
    if lines:
        yield ""
        yield f"{'#' * level} {escaped(section.title)}"
        yield from lines


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Chart):
        return
    yield ""
    if isinstance(block, Paragraph):
        yield _text(block.text)
    elif isinstance(block, Bullets):
        for item in block.items:
            yield f"- {_text(item)}"
    elif isinstance(block, Table):
        yield f"{escaped(block.caption)}:"
        yield ""
        yield _row(map(escaped, block.head))
        yield _row(["---"] * len(block.head))
        for row in block.rows:
            yield _row(map(_text, row))
    else:
        for term, meaning in block.entries:
            yield f"- **{escaped(term)}**: {escaped(meaning)}"


def _row(cells: Iterator[str] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(text: Text) -> str:
    return "".join(_inline(one) for one in inlines(text))


def _inline(one: str | Figure | Mark) -> str:
    if isinstance(one, Mark):
        return f"**{escaped(one.word)}**"
    if isinstance(one, Figure):
        return escaped(one.text)
    # Spaces at the borders of a part are not its own.
    before = " " if one[:1] == " " else ""
    after = " " if one[-1:] == " " and one.strip() else ""
    return f"{before}{escaped(one)}{after}"
